"""Where things are in a scene: positions, what is within bounds, and how far apart two are."""

import math
from dataclasses import dataclass

from scenes.document import Section

#: (x, y) or (x, y, z), in units of the game.
Position = tuple[float, ...]
#: The key of an entity that holds its position.
POS = "pos"
#: Beyond this a position is a mistake.
FARTHEST = 1_000_000.0
_DIGITS = 3  # a thousandth of a unit is seen by nobody, and every digit is a byte


@dataclass(frozen=True, slots=True)
class Bounds:
    """A box. A position with more numbers than its corners may be anywhere in those."""

    low: Position
    high: Position

    def hold(self, at: Position) -> bool:
        """Whether a position is inside."""
        return all(
            low <= here <= high for low, here, high in zip(self.low, at, self.high, strict=False)
        )


def as_position(value: object) -> Position:
    """A value of a message or a file as a position, to a thousandth.

    Raises:
        ValueError: says what a position is.
    """
    if (
        not isinstance(value, (list, tuple))
        or len(value) not in (2, 3)
        or not all(_is_coordinate(part) for part in value)
    ):
        raise ValueError(f"must be [x, y] or [x, y, z], numbers within ±{FARTHEST:.0f}")
    return tuple(_short(round(float(part), _DIGITS)) for part in value)


def distance(one: Position, other: Position) -> float:
    """How far apart; without a z, it is 0."""
    return math.dist((*one, 0.0)[:3], (*other, 0.0)[:3])


def read_position(section: Section, field: str, bounds: Bounds | None = None) -> Position | None:
    """A position in a file; None if it is absent.

    Raises:
        PackError: it is none, or out of bounds.
    """
    value = section.data(field)
    if value is None:
        return None
    try:
        at = as_position(value)
    except ValueError as error:
        section.fail(field, str(error))
    if bounds is not None and not bounds.hold(at):
        section.fail(field, "is outside the bounds of the scene")
    return at


def read_bounds(section: Section) -> Bounds | None:
    """The `bounds:` of a scene file, two opposite corners; None if it is absent.

    Raises:
        PackError: they are no corners.
    """
    value = section.data("bounds")
    if value is None:
        return None
    try:
        one, other = (as_position(corner) for corner in value)  # type: ignore[union-attr]
        corners = list(zip(one, other, strict=True))
    except (TypeError, ValueError):
        section.fail("bounds", "must be two corners, [[x, y], [x, y]], each of as many numbers")
    return Bounds(tuple(map(min, corners)), tuple(map(max, corners)))


def read_radius(section: Section, field: str) -> float:
    """A distance above 0 in a file; 0 if it is absent.

    Raises:
        PackError: it is none.
    """
    value = section.data(field)
    if value is None:
        return 0.0
    if not _is_coordinate(value) or value <= 0:  # type: ignore[operator]
        section.fail(field, "must be a number above 0")
    return float(value)  # type: ignore[arg-type]


def _short(number: float) -> float:
    """A whole number without its fraction: two bytes less in JSON, eight in msgpack."""
    return int(number) if number.is_integer() else number


def _is_coordinate(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) <= FARTHEST  # which NaN is not, either
    )
