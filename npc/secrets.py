"""Secrets: what an NPC tells some players, and not before their time has come.

A secret stands in a prompt only if everybody who hears the answer may know it. What is said aloud
is heard by whoever is in the scene, and read by whoever comes later; so a secret that depends on
who listens is told in whispers only, to a circle in which each player may know it. One that depends
on nothing but the world may be told aloud.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from scenes.conditions import PUBLIC, Condition, WorldState, read_conditions
from scenes.document import Section
from scenes.reactions import Reaction

#: Secrets of one NPC.
MAX_SECRETS = 64
MAX_TEXT = 2_000
MAX_AFTER = 16
_MAX_ID = 64
_MOST_PRIORITY = 1_000_000


@dataclass(frozen=True, slots=True)
class Secret:
    """Something to be kept.

    Attributes:
        id: unique among those of its NPC.
        text: what is known, in words the NPC may use.
        when: how the world must be, and how each listener and the NPC must stand.
        after: ids of reactions each of which every listener must have caused.
        happened: ids of reactions each of which somebody must have caused, or the world.
        priority: if not everything fits, higher ones are told first.
    """

    id: str
    text: str
    when: tuple[Condition, ...] = ()
    after: tuple[str, ...] = ()
    happened: tuple[str, ...] = ()
    priority: int = 0

    @property
    def personal(self) -> bool:
        """Whether it depends on who listens."""
        return bool(self.after) or any(condition.about not in PUBLIC for condition in self.when)

    def open_to(
        self, state: WorldState, caused: Collection[str], happened: Collection[str]
    ) -> bool:
        """Whether one listener may know it.

        Args:
            state: how things are for this listener.
            caused: ids of the reactions that this listener has caused.
            happened: ids of all reactions that somebody or the world has caused.
        """
        return (
            all(condition.holds(state) for condition in self.when)
            and all(reaction in caused for reaction in self.after)
            and all(reaction in happened for reaction in self.happened)
        )


def read_secrets(section: Section) -> tuple[Secret, ...]:
    """The `secrets:` of an NPC file.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    return tuple(section.entries("secrets", MAX_SECRETS, _secret).values())


def check_causes(
    section: Section, secrets: Iterable[Secret], reactions: Iterable[Reaction]
) -> None:
    """Complain about secrets that wait for a reaction which neither NPC nor scene has.

    Raises:
        PackError: names the secret.
    """
    known = {reaction.id for reaction in reactions}
    for secret in secrets:
        for name in (*secret.after, *secret.happened):
            if name not in known:
                problem = f"{secret.id}: neither this NPC nor its scene has a reaction {name!r}"
                section.fail("secrets", problem)


def _secret(section: Section) -> Secret:
    secret = Secret(
        id=section.id("id"),
        text=section.text("text", MAX_TEXT),
        when=read_conditions(section),
        after=_reactions(section, "after"),
        happened=_reactions(section, "happened"),
        priority=section.number("priority", -_MOST_PRIORITY, _MOST_PRIORITY, default=0),
    )
    if not (secret.when or secret.after or secret.happened):
        section.fail("", "needs when, after or happened; what everybody may know belongs in knows")
    section.finish()
    return secret


def _reactions(section: Section, field: str) -> tuple[str, ...]:
    names = []
    for at, (line, name) in enumerate(section.texts(field, MAX_AFTER, _MAX_ID)):
        section.check_id(f"{field}[{at}]", name, line)
        names.append(name)
    return tuple(names)
