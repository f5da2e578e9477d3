"""Who an NPC is: one YAML file, read and checked."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npc.mood import Temper, read_temper
from npc.priority import KINDS
from npc.relations import Relation, read_stranger
from npc.secrets import Secret, check_causes, read_secrets
from scenes.actions import USUAL, Action, markup, read_actions
from scenes.document import Section, read_document
from scenes.entities import Surroundings
from scenes.lore import MAX_TOKENS, LoreEntry, check_who, read_lore
from scenes.pack import ScenePack, check_rules
from scenes.reactions import Reaction, check_ids, read_reactions
from scenes.space import Position, read_position

#: Characters; about four make a token, and all of them are read by the model.
MAX_NAME = 64
MAX_ROLE = 200
MAX_VOICE = 8_000
MAX_LINE = 1_000
MAX_GREETING = 4_000
MAX_GREETINGS = 32
MAX_BARKS = 16
MAX_FACTS = 64
MAX_EXAMPLES = 32
MAX_FACTIONS = 16
MAX_FACTION = 64


@dataclass(frozen=True, slots=True)
class Example:
    """What a player may say, and how this NPC would answer: the best way to show a voice.

    Attributes:
        player, npc: the words.
        does: the action that goes with them, as it stands in a reply; "" for none.
    """

    player: str
    npc: str
    does: str = ""

    @property
    def reply(self) -> str:
        """The answer as the model would write it."""
        return f"{self.npc} {self.does}" if self.does else self.npc


@dataclass(frozen=True, slots=True)
class Persona:
    """One character.

    Attributes:
        id: unique in its scene.
        name: what others call it.
        kind: one of `npc.priority.KINDS`; decides how urgent its words are.
        role: what it is to the people around, as part of a sentence ("the innkeeper").
        voice: who it is and how it talks.
        knows: facts, in its own words.
        greeting: its first line to somebody who comes in; "" for none.
        examples: lines it has never said but would.
        greetings: other first lines; each running scene takes one of all.
        barks: what it says when there is no time for an answer: short, and never wrong.
        factions: ids of the groups it belongs to, whose lore it knows.
        actions: what it can do beside talking; most NPCs only talk.
        lore: what it alone knows, and not all the time.
        lore_tokens: most tokens of lore in one turn; 0 leaves it to the scene.
        temper: how its mood behaves.
        stranger: what it thinks of a player it has never met.
        reactions: what moves its feelings, beside those of the scene.
        secrets: what it tells some players, under conditions.
        at: where in the scene it is; None: nowhere in particular.
    """

    id: str
    name: str
    kind: str
    role: str
    voice: str
    knows: tuple[str, ...] = ()
    greeting: str = ""
    examples: tuple[Example, ...] = ()
    greetings: tuple[str, ...] = ()
    barks: tuple[str, ...] = ()
    factions: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    lore: tuple[LoreEntry, ...] = ()
    lore_tokens: int = 0
    temper: Temper = field(default_factory=Temper)
    stranger: Relation = field(default_factory=Relation)
    reactions: tuple[Reaction, ...] = ()
    secrets: tuple[Secret, ...] = ()
    at: Position | None = None

    @property
    def quest_giver(self) -> bool:
        """Whether players need it to go on with the game."""
        return self.kind == "quest_giver"


def load_persona(file: Path) -> Persona:
    """Read and check one persona file.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    return _persona(read_document(file))


def read_personas(pack: ScenePack) -> Iterator[Persona]:
    """The people of a pack one by one, in the scene file's order.

    Raises:
        PackError: a file is wrong, two personas share an id or a name, lore is for somebody who is
            not there, or a secret waits for a reaction that nobody has.
    """
    taken: set[tuple[str, str]] = set()
    npcs, factions = set[str](), set[str]()
    for file in pack.npcs:
        section = read_document(file)
        persona = _persona(section, pack.actions)
        for what, mine in (("id", persona.id), ("name", persona.name)):
            if (what, mine.casefold()) in taken:
                section.fail(what, f"{mine!r} is the {what} of another NPC of this scene")
            taken.add((what, mine.casefold()))
        _check_place(section, pack.surroundings, persona)
        npcs.add(persona.id)
        factions.update(persona.factions)
        check_ids(section, pack.reactions, persona.reactions)
        check_rules(section, "reactions", persona.reactions, pack)
        check_causes(section, persona.secrets, [*pack.reactions, *persona.reactions])
        yield persona
    check_who(pack.file, pack.lore, npcs, factions)


def _check_place(section: Section, around: Surroundings, persona: Persona) -> None:
    if persona.id in around.entities:
        section.fail("id", f"{persona.id!r} is the id of an entity of the scene file")
    if persona.at is not None and around.bounds is not None and not around.bounds.hold(persona.at):
        section.fail("at", "is outside the bounds of the scene")


def _persona(section: Section, known: Mapping[str, Action] = USUAL) -> Persona:
    actions = read_actions(section, known)
    persona = Persona(
        id=section.id("id"),
        name=section.name("name", MAX_NAME),
        kind=sys.intern(section.choice("kind", KINDS)),
        role=section.text("role", MAX_ROLE),
        voice=section.text("voice", MAX_VOICE),
        knows=tuple(fact for _, fact in section.texts("knows", MAX_FACTS, MAX_LINE)),
        greeting=section.text("greeting", MAX_GREETING, default=""),
        examples=tuple(_example(e, actions) for e in section.sections("examples", MAX_EXAMPLES)),
        greetings=tuple(
            words for _, words in section.texts("greetings", MAX_GREETINGS, MAX_GREETING)
        ),
        barks=tuple(words for _, words in section.texts("barks", MAX_BARKS, MAX_LINE)),
        factions=_factions(section),
        actions=actions,
        lore=read_lore(section, of_one=True),
        lore_tokens=section.number("lore_tokens", 1, MAX_TOKENS, default=0),
        temper=read_temper(section),
        stranger=read_stranger(section),
        reactions=read_reactions(section),
        secrets=read_secrets(section),
        at=read_position(section, "at"),
    )
    if persona.greetings and not persona.greeting:
        section.fail("greetings", "are others beside greeting, which is missing")
    section.finish()
    return persona


def _example(section: Section, actions: tuple[Action, ...]) -> Example:
    example = Example(
        section.text("player", MAX_LINE), section.text("npc", MAX_LINE), _done(section, actions)
    )
    section.finish()
    return example


def _done(section: Section, actions: tuple[Action, ...]) -> str:
    """The action of an example, `does: {trade: {item: rope, price: 6}}`, as a reply has it."""
    does = section.data("does")
    if does is None:
        return ""
    if not isinstance(does, dict) or len(does) != 1:
        section.fail("does", "must be one action with its arguments, as in {emote: {gesture: nod}}")
    ((name, args),) = does.items()
    action = next((action for action in actions if action.name == name), None)
    if action is None:
        section.fail("does", f"{name!r} is none of this NPC's actions")
    args = {} if args is None else args
    if not isinstance(args, dict) or not set(args) <= {arg.name for arg in action.args}:
        known = ", ".join(arg.name for arg in action.args) or "none"
        section.fail("does", f"{name} has other arguments (known are {known})")
    return markup(name, args)


def _factions(section: Section) -> tuple[str, ...]:
    factions: dict[str, None] = {}
    for at, (line, faction) in enumerate(section.texts("factions", MAX_FACTIONS, MAX_FACTION)):
        section.check_id(f"factions[{at}]", faction, line)
        factions[faction] = None
    return tuple(factions)
