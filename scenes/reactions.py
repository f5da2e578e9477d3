"""Reactions: what moves an NPC's mood and its relation to a player, as an author writes it.

A reaction is data. It waits for something to happen: an event of the game, words that a player says
to the NPC, the result of an action, a stage of a quest, another value of a thing in the scene.
`npc.feelings` does the waiting.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from scenes.conditions import PUBLIC, Condition, read_conditions
from scenes.document import Scalar, Section

#: Reactions of one file.
MAX_REACTIONS = 200
MAX_NAMES = 64
MAX_NAME = 200
#: Both ends of trust and affection; fear begins at 0.
MOST = 100
#: Times a day that one player can cause one reaction, unless the author says otherwise: words cost
#: nothing, and a game may report the same thing again and again.
PER_DAY = 3
_MOST_PER_DAY = 1_000
_STRENGTH = 50

#: What an NPC's mood can be. The first is for those without any in particular.
MOODS = (
    "neutral",
    "content",
    "cheerful",
    "amused",
    "curious",
    "proud",
    "sad",
    "worried",
    "afraid",
    "angry",
    "disgusted",
)

Cause = Literal["event", "said", "action", "quest", "thing"]
CAUSES: tuple[Cause, ...] = ("event", "said", "action", "quest", "thing")


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that an NPC may react to.

    Attributes:
        cause: what kind of thing it is.
        name: of the event, action or quest; of a thing ENTITY.KEY; for what was said, the words.
        details: of an event its data, of an action its arguments and `ok`, of a quest its `stage`,
            of a thing what it `is` now and what it `was`.
    """

    cause: Cause
    name: str
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shift:
    """By how much a relation moves; zeros leave it alone."""

    trust: int = 0
    affection: int = 0
    fear: int = 0

    def __add__(self, other: "Shift") -> "Shift":
        """Both."""
        return Shift(
            self.trust + other.trust, self.affection + other.affection, self.fear + other.fear
        )

    def __bool__(self) -> bool:
        return bool(self.trust or self.affection or self.fear)


@dataclass(frozen=True, slots=True)
class Reaction:
    """One rule.

    Attributes:
        id: unique among those of an NPC and its scene.
        cause: what it waits for.
        names: of the event, action, quest or thing; of words, any of them will do.
        fields: details that must be as named, each with the values it may have.
        shift: of the relation to the player who caused it.
        mood: that it stirs; "" for none.
        strength: how much, in percent.
        per_day: how many times a day one player can cause it.
        when: what must hold for this NPC and the player who caused it.
    """

    id: str
    cause: Cause
    names: tuple[str, ...]
    fields: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()
    shift: Shift = Shift()
    mood: str = ""
    strength: int = _STRENGTH
    per_day: int = PER_DAY
    when: tuple[Condition, ...] = ()

    @property
    def personal(self) -> bool:
        """Whether it depends on what others cannot know of a player, so that others must not see
        whether it has happened."""
        return any(condition.about not in PUBLIC for condition in self.when)

    def fits(self, details: Mapping[str, object]) -> bool:
        """Whether a happening of the right name has these details."""
        return all(
            any(same(details.get(name), value) for value in values) for name, values in self.fields
        )


def same(left: object, right: object) -> bool:
    """Whether two values of a scene file or a message are equal. In Python True is 1; there not."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def read_reactions(section: Section) -> tuple[Reaction, ...]:
    """The `reactions:` of a scene or NPC file.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    return tuple(section.entries("reactions", MAX_REACTIONS, _reaction).values())


def check_ids(section: Section, scene: Iterable[Reaction], own: Iterable[Reaction]) -> None:
    """Complain if an NPC's reaction has the id of one of its scene's.

    Raises:
        PackError: names the reaction.
    """
    taken = {reaction.id for reaction in scene}
    for reaction in own:
        if reaction.id in taken:
            section.fail("reactions", f"{reaction.id!r} is the id of a reaction of the scene")


def read_shift(section: Section) -> Shift:
    """The fields trust, affection and fear of a section, each 0 if it is absent."""
    trust, affection, fear = (
        section.number(axis, -MOST, MOST, default=0) for axis in ("trust", "affection", "fear")
    )
    return Shift(trust, affection, fear)


def _reaction(section: Section) -> Reaction:
    name = section.id("id")
    named = {cause: _names(section, cause) for cause in CAUSES}
    when = read_conditions(section)
    causes = [cause for cause in CAUSES if named[cause]]
    if len(causes) != 1:
        section.fail("", f"must have one of {', '.join(CAUSES)}; it has {len(causes)} of them")
    cause = causes[0]
    fields = section.scalar_lists("with", MAX_NAMES, MAX_NAME)
    if cause == "said" and fields:
        section.fail("with", "is for events, actions and quests; what was said has no fields")
    reaction = Reaction(
        id=name,
        cause=cause,
        names=named[cause],
        fields=tuple(fields.items()),
        shift=read_shift(section),
        mood=section.choice("mood", ("", *MOODS), default=""),
        strength=section.number("strength", 1, 100, default=_STRENGTH),
        per_day=section.number("per_day", 1, _MOST_PER_DAY, default=PER_DAY),
        when=when,
    )
    if reaction.mood and reaction.personal:
        problem = "everybody sees a mood, so its when may ask for world and things only"
        section.fail("mood", problem)
    section.finish()
    return reaction


def _names(section: Section, cause: Cause) -> tuple[str, ...]:
    """What a reaction waits for: words of which any will do, or the id of one thing."""
    if cause == "said":
        return tuple(word for _, word in section.texts(cause, MAX_NAMES, MAX_NAME))
    name = section.text(cause, MAX_NAME, default="")
    if name and cause != "thing":  # there are those that the scene file has, see `scenes.pack`
        section.check_id(cause, name)
    return (name,) if name else ()
