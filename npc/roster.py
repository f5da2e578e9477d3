"""Everybody in a scene, in little memory: who they are to others is at hand, the rest is packed."""

import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from npc.persona import Persona, read_personas
from scenes.pack import ScenePack
from scenes.space import Position

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Persona)


@dataclass(frozen=True, slots=True)
class Npc:
    """What others know of an NPC, and everything else about it, packed.

    Attributes:
        id, name, kind, role: as in `Persona`.
        mood: the one it rests in.
        greets: whether it has a greeting.
        acts: whether it can do anything beside talking.
        at: where in the scene it is.
        notices: the things that it reacts to, ENTITY.KEY.
        packed: the persona; most NPCs of a large world are never spoken to.
    """

    id: str
    name: str
    kind: str
    role: str
    mood: str
    greets: bool
    acts: bool
    packed: bytes
    at: Position | None = None
    notices: frozenset[str] = frozenset()

    @property
    def quest_giver(self) -> bool:
        """Whether players need it to go on with the game."""
        return self.kind == "quest_giver"


class Roster(Mapping[str, Npc]):
    """The NPCs of one version of a pack by id, in the scene file's order.

    Attributes:
        names: of all of them.
    """

    def __init__(self, people: Mapping[str, Npc]) -> None:
        self._people = people
        self.names = tuple(npc.name for npc in people.values())

    def __getitem__(self, npc: str) -> Npc:
        return self._people[npc]

    def __iter__(self) -> Iterator[str]:
        return iter(self._people)

    def __len__(self) -> int:
        return len(self._people)

    def persona(self, npc: str) -> Persona:
        """Everything about one NPC; raises KeyError if there is none."""
        return _decoder.decode(zlib.decompress(self._people[npc].packed))

    def first(self, most: int) -> list[str]:
        """Whom players will need first, at most so many: quest-givers, then by order."""
        ordered = sorted(self._people.values(), key=lambda npc: not npc.quest_giver)
        return [npc.id for npc in ordered[:most]]


def load_roster(pack: ScenePack) -> Roster:
    """Read and check all personas of a pack.

    Raises:
        PackError: a file is wrong, or two personas share an id or a name.
    """
    return Roster({persona.id: _packed(persona) for persona in read_personas(pack)})


def _packed(persona: Persona) -> Npc:
    return Npc(
        persona.id,
        persona.name,
        persona.kind,
        persona.role,
        sys.intern(persona.temper.resting),
        bool(persona.greeting),
        bool(persona.actions),
        zlib.compress(_encoder.encode(persona)),
        persona.at,
        frozenset(each.names[0] for each in persona.reactions if each.cause == "thing"),
    )
