"""Conditions: what must hold of the world for lore to come to mind, an action to be open, or a
quest to go on.

A condition is data. Those who run the scene say how things are (`WorldState`); nothing here knows
where they know it from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from scenes.document import Scalar, Section

MAX_CONDITIONS = 16
MAX_VALUE = 200

About = Literal["world", "things", "quests", "flags", "items", "relation"]
#: Asked by value: the fact must be one of those named.
_BY_VALUE: tuple[About, ...] = ("world", "things", "quests", "flags")
#: Asked by amount: at least the number named, or within the two that are.
_BY_AMOUNT: tuple[About, ...] = ("items", "relation")
#: The same for everybody in a scene.
PUBLIC: frozenset[About] = frozenset({"world", "things"})


@dataclass(frozen=True, slots=True)
class WorldState:
    """What conditions ask about, as it is for one NPC and one player.

    Attributes:
        world: facts by name, as in a scene's `meta`.
        quests: the stage of each quest by its id.
        flags: what the game has told of the player, by name.
        items: how many of each thing the player has; what is not named is none.
        relation: how the NPC stands to the player, by name ("trust"), and how others do, by their
            id and name ("harn.trust"); what is not named is 0.
        things: values of the scene's entities, by id and key ("front_door.open").
    """

    world: Mapping[str, Scalar] = field(default_factory=dict)
    quests: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Scalar] = field(default_factory=dict)
    items: Mapping[str, float] = field(default_factory=dict)
    relation: Mapping[str, float] = field(default_factory=dict)
    things: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that must be as named.

    Attributes:
        about: what is asked.
        name: of the fact, thing, quest, flag, item or feeling.
        values: for facts, things, quests and flags, it must be one of these; what is unknown is
            none of them. For items and relations, one number: at least so much; or two: from, to.
    """

    about: About
    name: str
    values: tuple[Scalar, ...]

    def holds(self, state: WorldState) -> bool:
        """Whether the state is as named."""
        facts: Mapping[str, Scalar] = getattr(state, self.about)
        if self.about in _BY_AMOUNT:
            amount = float(facts.get(self.name, 0))
            least, most = float(self.values[0]), float(self.values[-1])
            return least <= amount and (len(self.values) == 1 or amount <= most)
        actual = facts.get(self.name)
        # In Python True is 1; in a scene file it is not.
        return any(
            actual == value and isinstance(actual, bool) == isinstance(value, bool)
            for value in self.values
        )


def read_conditions(section: Section) -> tuple[Condition, ...]:
    """The `when:` of a section; absent means that nothing is asked.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    inner = section.section("when")
    if inner is None:
        return ()
    found: list[Condition] = []
    for about in _BY_VALUE:
        for name, values in inner.scalar_lists(about, MAX_CONDITIONS, MAX_VALUE).items():
            found.append(Condition(about, name, values))
    for about in _BY_AMOUNT:
        for name, values in inner.scalar_lists(about, MAX_CONDITIONS, MAX_VALUE).items():
            _check_amount(inner, about, name, values)
            found.append(Condition(about, name, values))
    if not found:
        inner.fail("", f"must name something under {', '.join((*_BY_VALUE, *_BY_AMOUNT))}")
    inner.finish()
    return tuple(found)


def in_words(condition: Condition) -> str:
    """A condition in few words, for people."""
    if condition.about not in _BY_AMOUNT:
        return f"{condition.name} {one_of(condition.values)}"
    if len(condition.values) == 1:
        return f"{condition.name} ≥ {condition.values[0]}"
    return f"{condition.values[0]} ≤ {condition.name} ≤ {condition.values[1]}"


def one_of(values: tuple[object, ...]) -> str:
    """Values of which one will do, in few words, as YAML spells them."""
    return "= " + " or ".join(
        str(value).lower() if value in (True, False) else str(value) for value in values
    )


def _check_amount(section: Section, about: About, name: str, values: tuple[Scalar, ...]) -> None:
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) != len(values) or len(numbers) > 2 or numbers[0] > numbers[-1]:
        section.fail(about, f"{name}: must be one number (at least), or two (from, to)")
