"""A recorded run of the demo scene: who walked where, what was opened and lit, how the wind blew.

The record is this generator and its seed: the same evening each time.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gameserver.commands import StateWrite

STEP_S = 0.1
#: Paces a second, as one walks indoors.
SPEED = 1.4
_STANDS_S = (4.0, 20.0)
_POSES = ("stands", "sits", "drinks", "waves")
_ROOM = (20.0, 12.0)


@dataclass(slots=True)
class Guest:
    """Somebody who walks to a place, stays a while, and goes on."""

    name: str
    at: tuple[float, float]
    goal: tuple[float, float]
    stays_s: float = 0.0
    restless: bool = False
    dice: random.Random = field(default_factory=random.Random)

    def step(self) -> Iterator[StateWrite]:
        """A tenth of a second."""
        if self.stays_s > 0:
            self.stays_s -= STEP_S
            return
        (x, y), (to_x, to_y) = self.at, self.goal
        apart = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
        stride = SPEED * STEP_S
        if apart <= stride:
            self.at, self.goal = self.goal, somewhere(self.dice)
            if not self.restless:
                self.stays_s = self.dice.uniform(*_STANDS_S)
                yield StateWrite(self.name, "pose", self.dice.choice(_POSES))
        else:
            self.at = (x + (to_x - x) * stride / apart, y + (to_y - y) * stride / apart)
        yield StateWrite(self.name, "pos", list(self.at))


def somewhere(dice: random.Random) -> tuple[float, float]:
    """A place in the common room."""
    return dice.uniform(0, _ROOM[0]), dice.uniform(0, _ROOM[1])


def evening(
    guests: int, seconds: float, seed: int, *, restless: bool = False
) -> Iterator[list[StateWrite]]:
    """What changes in each tenth of a second.

    Args:
        restless: nobody ever stands still.
    """
    dice = random.Random(seed)
    people = [
        Guest(f"guest{n}", somewhere(dice), somewhere(dice), restless=restless, dice=dice)
        for n in range(guests)
    ]
    yield [StateWrite(guest.name, "pos", list(guest.at)) for guest in people]
    for _ in range(int(seconds / STEP_S)):
        writes = [write for guest in people for write in guest.step()]
        for entity, key, per_minute, values in _HAPPENS:
            if dice.random() < per_minute * STEP_S / 60:
                writes.append(StateWrite(entity, key, dice.choice(values)))
        yield writes


#: Entity, key, how often a minute it is set, and to what.
_HAPPENS: tuple[tuple[str, str, float, tuple[Any, ...]], ...] = (
    ("front_door", "open", 6, (True, False)),
    ("hearth", "fire", 1, ("high", "low", "out")),
    ("lantern", "lit", 1, (True, False)),
    ("wind", "force", 12, tuple(range(2, 11))),
    ("duchess", "does", 2, ("sleeps", "washes", "watches")),
    ("duchess", "pos", 2, ([17, 4], [9.5, 1], [14, 3])),
)
