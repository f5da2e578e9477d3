"""Entities of a scene: what there is, how it begins, who may change it, and what that means.

All of it stands in the scene file. What is not named there does not exist, so that a running scene
has nothing that could grow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from scenes.document import Data, Scalar, Section
from scenes.reactions import same
from scenes.space import POS, Bounds, Position, read_bounds, read_position, read_radius

MAX_ENTITIES = 256
MAX_KEYS = 32
MAX_TOLD = 32
MAX_TEXT = 300
MAX_VALUE = 200
#: Bytes of a value as JSON.
MAX_BYTES = 1024
#: The key of an entity that holds the id of the player it belongs to.
OWNER = "owner"

Writer = Literal["player", "owner", "server"]
_WRITERS: tuple[Writer, ...] = ("player", "owner", "server")


@dataclass(frozen=True, slots=True)
class Told:
    """What everybody in a scene knows while an entity is so.

    Attributes:
        fields: keys that must have one of these values.
        text: in the author's words.
    """

    fields: tuple[tuple[str, tuple[Scalar, ...]], ...]
    text: str

    def holds(self, entity: str, things: Mapping[str, Scalar]) -> bool:
        """Whether it is so, where things are as named: ENTITY.KEY."""
        return all(
            any(same(things.get(f"{entity}.{key}"), value) for value in values)
            for key, values in self.fields
        )


@dataclass(frozen=True, slots=True)
class Entity:
    """One thing.

    Attributes:
        id: unique among the entities, NPCs and players of a scene.
        initial: how it begins, by key; without keys that begin without a value.
        writers: who may change what, by key; of all its keys.
        told: what is known of it.
    """

    id: str
    initial: Mapping[str, Data]
    writers: Mapping[str, Writer]
    told: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a scene file says of space and things.

    Attributes:
        bounds: where positions may be; None: anywhere.
        sight, hearing: how far one sees others move, and hears them; 0: everywhere.
        entry: where a player stands who comes in; None: nowhere.
        player_keys: what a player's entity has beside a position.
        entities: by id.
    """

    bounds: Bounds | None = None
    sight: float = 0.0
    hearing: float = 0.0
    entry: Position | None = None
    player_keys: frozenset[str] = frozenset()
    entities: Mapping[str, Entity] = field(default_factory=dict)

    def names(self) -> frozenset[str]:
        """What conditions may ask about: ENTITY.KEY."""
        entities = self.entities.values()
        return frozenset(f"{entity.id}.{key}" for entity in entities for key in entity.writers)


def read_surroundings(scene: Section) -> Surroundings:
    """The fields of a scene file about space and things.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    bounds = read_bounds(scene)
    entry, keys = None, frozenset[str]()
    players = scene.section("players")
    if players is not None:
        entry = read_position(players, "at", bounds)
        keys = _player_keys(players)
        players.finish()
    return Surroundings(
        bounds=bounds,
        sight=read_radius(scene, "sight"),
        hearing=read_radius(scene, "hearing"),
        entry=entry,
        player_keys=keys,
        entities=scene.entries("entities", MAX_ENTITIES, lambda inner: _entity(inner, bounds)),
    )


def _player_keys(players: Section) -> frozenset[str]:
    keys: dict[str, None] = {}
    for at, (line, key) in enumerate(players.texts("keys", MAX_KEYS, MAX_VALUE)):
        players.check_id(f"keys[{at}]", key, line)
        if key == POS or key in keys:
            players.fail(f"keys[{at}]", f"{key!r} is there already", line)
        keys[key] = None
    return frozenset(keys)


def _entity(section: Section, bounds: Bounds | None) -> Entity:
    name = section.id("id")
    at = read_position(section, "at", bounds)
    initial: dict[str, Data] = {} if at is None else {POS: list(at)}
    writers: dict[str, Writer] = {POS: "server"}
    keys = section.section("keys")
    for key in keys.fields() if keys is not None else ():
        assert keys is not None
        keys.check_id(key[:80], key, keys.line_of(key))
        if key == POS:
            keys.fail(key, "stands in the field at")
        value = keys.data(key)
        if len(msgspec.json.encode(value)) > MAX_BYTES:
            keys.fail(key, f"is longer than {MAX_BYTES} bytes")
        writers[key] = "server"
        if value is not None:
            initial[key] = value
    if len(writers) > MAX_KEYS:
        section.fail("keys", f"has {len(writers)} entries with {POS}, the limit is {MAX_KEYS}")
    writers |= _writers(section, writers)
    told = tuple(_told(inner, writers) for inner in section.sections("told", MAX_TOLD))
    section.finish()
    return Entity(name, initial, writers, told)


def _writers(section: Section, known: Mapping[str, Writer]) -> dict[str, Writer]:
    inner = section.section("write")
    if inner is None:
        return {}
    for key in inner.fields():
        if key not in known:
            inner.fail(key, f"is none of its keys, which are {', '.join(known)}")
    return {key: inner.choice(key, _WRITERS) for key in inner.fields()}


def _told(section: Section, known: Mapping[str, Writer]) -> Told:
    fields = tuple(section.scalar_lists("with", MAX_KEYS, MAX_VALUE).items())
    if not fields:
        section.fail("with", "must name keys and their values")
    for key, _ in fields:
        if key not in known:
            section.fail("with", f"{key} is none of its keys, which are {', '.join(known)}")
    told = Told(fields, section.text("text", MAX_TEXT))
    section.finish()
    return told
