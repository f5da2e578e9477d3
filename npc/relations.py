"""What an NPC thinks of each player: trust, affection and fear. Pure; time is handed in."""

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from scenes.document import Section
from scenes.reactions import MOST, Reaction, Shift, read_shift

_DAY_MS = 24 * 3600 * 1000
#: Changes of one relation that are kept to be looked at.
_HISTORY = 64
#: How strong a feeling must be to be told, and to be told in strong words.
_MILD, _STRONG = 25, 60
_WORDS: Mapping[str, tuple[str, str, str, str]] = {
    "trust": ("sure that {} lies", "wary of {}", "trustful of {}", "ready to trust {} with all"),
    "affection": ("full of hate for {}", "cold towards {}", "fond of {}", "full of love for {}"),
    "fear": ("", "", "afraid of {}", "terrified of {}"),
}
AXES = tuple(_WORDS)


@dataclass(frozen=True, slots=True)
class Relation:
    """What one NPC thinks of one player.

    Attributes:
        trust, affection: from -100 to 100.
        fear: from 0 to 100.
    """

    trust: int = 0
    affection: int = 0
    fear: int = 0

    def moved(self, shift: Shift) -> "Relation":
        """This relation after a shift, as far as its bounds allow."""
        return Relation(
            _within(self.trust + shift.trust, -MOST, MOST),
            _within(self.affection + shift.affection, -MOST, MOST),
            _within(self.fear + shift.fear, 0, MOST),
        )

    def amounts(self) -> dict[str, float]:
        """Each feeling by its name, for conditions."""
        return {axis: float(getattr(self, axis)) for axis in AXES}

    def told(self, name: str) -> list[str]:
        """What of it is worth telling, each in words that name the player."""
        told = []
        for axis, words in _WORDS.items():
            value: int = getattr(self, axis)
            if abs(value) >= _MILD:
                strong = abs(value) >= _STRONG
                told.append(words[2 + strong if value > 0 else 1 - strong].format(name))
        return told


@dataclass(frozen=True, slots=True)
class Change:
    """A relation as it became.

    Attributes:
        at: wall clock, ms.
        relation: from then on.
    """

    at: int
    relation: Relation


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One relation in a snapshot.

    Attributes:
        trust, affection, fear: as in `Relation`.
        caused: ids of all reactions that the player has ever caused.
        day: number of the day since 1970 that the counts below are of.
        today: how often the player has caused each reaction.
        judged: how far judgements have moved each axis.
    """

    trust: int = 0
    affection: int = 0
    fear: int = 0
    caused: tuple[str, ...] = ()
    day: int = 0
    today: dict[str, int] = {}
    judged: dict[str, int] = {}


class _Acquaintance:
    """One player, as an NPC knows them."""

    __slots__ = ("caused", "day", "history", "judged", "relation", "today")

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.caused: dict[str, None] = {}
        self.day = 0
        self.today: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()
        self.history: deque[Change] = deque(maxlen=_HISTORY)

    def at(self, now: int) -> None:
        """A new day has new counts; a clock that runs backwards brings no old ones back."""
        if (day := now // _DAY_MS) > self.day:
            self.day = day
            self.today.clear()
            self.judged.clear()


class Relations:
    """An NPC's relations to all players it has to do with.

    Times are wall clock in ms. A day begins at midnight UTC.

    Attributes:
        stranger: the relation to a player of whom it knows nothing.
    """

    def __init__(self, most: int) -> None:
        """Keeps at most so many relations: those that changed last."""
        self.stranger = Relation()
        self._most = most
        self._known: OrderedDict[str, _Acquaintance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def of(self, player: str) -> Relation:
        """What the NPC thinks of a player."""
        known = self._known.get(player)
        return known.relation if known is not None else self.stranger

    def caused(self, player: str) -> Collection[str]:
        """Ids of the reactions that a player has ever caused."""
        known = self._known.get(player)
        return known.caused if known is not None else ()

    def history(self, player: str) -> Sequence[Change]:
        """The latest changes of a relation, oldest first."""
        known = self._known.get(player)
        return tuple(known.history) if known is not None else ()

    def open(self, player: str, reactions: Iterable[Reaction], now: int) -> list[Reaction]:
        """Those of some reactions that a player can still cause today."""
        known = self._known.get(player)
        if known is None or now // _DAY_MS > known.day:
            return list(reactions)
        return [each for each in reactions if known.today[each.id] < each.per_day]

    def react(self, player: str, reactions: Sequence[Reaction], now: int) -> bool:
        """A player has caused these reactions together; their order does not matter.

        Returns:
            Whether the relation is another one now.
        """
        if not reactions:
            return False
        known = self._acquaintance(player, now)
        for reaction in reactions:
            known.caused[reaction.id] = None
            known.today[reaction.id] += 1
        return self._move(known, sum((each.shift for each in reactions), Shift()), now)

    def judge(self, player: str, shift: Shift, per_day: int, now: int) -> bool:
        """A model thinks that a relation should move.

        Args:
            per_day: how far each axis may move in a day, both directions added up.

        Returns:
            Whether the relation is another one now.
        """
        known = self._acquaintance(player, now)
        allowed = {}
        for axis in AXES:
            room = max(per_day - known.judged[axis], 0)
            allowed[axis] = _within(getattr(shift, axis), -room, room)
            known.judged[axis] += abs(allowed[axis])
        return self._move(known, Shift(**allowed), now)

    def forget(self, player: str) -> None:
        """A player becomes a stranger again."""
        self._known.pop(player, None)

    def snapshot(self) -> dict[str, Kept]:
        """All relations by player."""
        return {
            player: Kept(
                trust=known.relation.trust,
                affection=known.relation.affection,
                fear=known.relation.fear,
                caused=tuple(known.caused),
                day=known.day,
                today=dict(known.today),
                judged=dict(known.judged),
            )
            for player, known in self._known.items()
        }

    def restore(self, kept: Mapping[str, Kept]) -> None:
        """Go on from a snapshot, in place of what is known now."""
        self._known.clear()
        for player, was in list(kept.items())[-self._most :]:
            moved = Relation().moved(Shift(was.trust, was.affection, was.fear))
            known = self._known[player] = _Acquaintance(moved)
            known.caused = dict.fromkeys(was.caused)
            known.day = was.day
            known.today.update(was.today)
            known.judged.update(was.judged)

    def _acquaintance(self, player: str, now: int) -> _Acquaintance:
        if player not in self._known:
            self._known[player] = _Acquaintance(self.stranger)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        self._known.move_to_end(player)
        known = self._known[player]
        known.at(now)
        return known

    def _move(self, known: _Acquaintance, shift: Shift, now: int) -> bool:
        before, known.relation = known.relation, known.relation.moved(shift)
        if known.relation == before:
            return False
        if not known.history:
            known.history.append(Change(now, before))
        known.history.append(Change(now, known.relation))
        return True


def read_stranger(section: Section) -> Relation:
    """The `relations:` of an NPC file: what it thinks of a player it has never met.

    Raises:
        PackError: names file, line and field of the first mistake.
    """
    inner = section.section("relations")
    if inner is None:
        return Relation()
    shift = read_shift(inner)
    if shift.fear < 0:
        inner.fail("fear", "begins at 0")
    inner.finish()
    return Relation().moved(shift)


def _within(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)
