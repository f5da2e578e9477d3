"""The world state of one running scene: takes in changes, keeps them, and lets clients know."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gameserver.admission import TokenBucket, rate_limited
from gameserver.attendance import Attendance
from gameserver.commands import StateSet, StateWrite
from gameserver.ledger import Ledger
from gameserver.messages import StateDelta
from gameserver.protocol import Code, Encoded, Refusal, encode, now_ms
from gameserver.safety import Safety
from gameserver.settings import Settings
from gameserver.state.catalogue import Catalogue
from gameserver.state.clock import MOST, FromTheFuture, HybridClock, stamp_of
from gameserver.state.pulse import Pulse
from gameserver.state.registers import Item, Register
from gameserver.state.shelf import StateShelf
from gameserver.state.watch import Watch, everything
from gameserver.streams import Stream
from npc.cast import OpenScene
from scenes.document import ID, Scalar
from scenes.entities import OWNER
from scenes.space import POS, Position, as_position, distance

if TYPE_CHECKING:
    from gameserver.session import Session


@dataclass(frozen=True, slots=True)
class Change:
    """Another value of a key of an entity of the scene file."""

    e: str
    k: str
    before: Any
    now: Any


class SceneState:
    """The only writer of a scene's registers.

    Attributes:
        stream: the scene's; its listeners are woken when there is something to tell.
        registers: how things are.
        published: the newest change that clients may be told.
        far_published: the newest one of which they may be told wherever it is.
    """

    def __init__(
        self,
        stream: Stream,
        pack: OpenScene,
        attendance: Attendance,
        ledger: Ledger,
        settings: Settings,
        safety: Safety,
    ) -> None:
        """Goes on where an earlier owner of the scene has ended."""
        self.stream = stream
        self.published = self.far_published = 0
        #: Told of what matters to the scene (`OpenScene.noticed`), and of the player who did it;
        #: None: somebody else did.
        self.on_change: Callable[[Sequence[Change], str | None], None] = lambda changes, who: None
        self._changes: list[Change] = []
        self._pack = pack
        self._catalogue = Catalogue(pack.surroundings, pack.npcs)
        self._attendance = attendance
        self._settings = settings.state
        self._limits = settings.limits
        self._safety = safety
        self._origin = settings.node
        self._clock = HybridClock(now_ms, settings.state.drift_ms)
        self._pulse = Pulse(settings.state.pace_ms / 1000, self._publish)
        self._far_at = float("-inf")  # monotonic time of the last beat for all moves
        self._buckets: dict[str, TokenBucket] = {}
        self._messages: dict[tuple[int, ...], Encoded] = {}  # of this beat
        self._shelf = StateShelf(ledger.state(), ledger.book)
        self.registers, kept = self._shelf.take()
        for e, k, v in self._catalogue.initial():
            self.registers.merge(Item(e, k, v, 0, ""))
        for item in kept:
            if self._catalogue.has(item.e, item.k):
                self._clock.see(item.h)
                self.registers.merge(item)
            else:  # the scene file has changed meanwhile
                self._shelf.drop(item.e, item.k)
        self.published = self.registers.rev

    # What is known

    @property
    def rev(self) -> int:
        """The newest change."""
        return self.registers.rev

    @property
    def has_sight(self) -> bool:
        """Whether moves are told by distance."""
        return self._pack.surroundings.sight > 0

    @property
    def hearing(self) -> float:
        """How far one is heard; 0: everywhere."""
        return self._pack.surroundings.hearing

    def since(self, rev: int) -> list[Item]:
        """What has changed after `rev` and may be told, removals included, in order."""
        changed = self.registers.since(rev)
        return [register.item for register in changed if register.rev <= self.published]

    def position(self, e: str) -> Position | None:
        """Where an entity is; None: nowhere in particular."""
        at = self.registers.value(e, POS)
        return None if at is None else tuple(at)

    def place(self, player: str) -> Position | None:
        """Where a player is; None: nowhere in particular."""
        return None if self._catalogue.is_fixed(player) else self.position(player)

    def view(self, player: str) -> Callable[[Position], bool]:
        """Whether a player sees what is at a place, and so is told of each move there."""
        sight, here = self._pack.surroundings.sight, self.place(player)
        if not sight or here is None:
            return everything
        return lambda there: distance(here, there) <= sight

    def things(self) -> dict[str, Scalar]:
        """What conditions of authors may ask about, by ENTITY.KEY."""
        return {
            f"{entity.id}.{key}": value
            for entity in self._pack.surroundings.entities.values()
            for key in entity.writers
            if isinstance(value := self.registers.value(entity.id, key), (str, bool, int, float))
        }

    # What changes

    def set(self, session: "Session", command: StateSet) -> None:
        """A player's client says what has changed: all of it comes to be, or nothing.

        Raises:
            Refusal: `forbidden`, `bad_field`, `too_large` or `rate_limited`.
        """
        self._attendance.require_player(session)
        most, count = self._limits.states_burst, len(command.items)
        if count > most:
            raise Refusal(Code.TOO_LARGE, "too many items at once", limit=most, actual=count)
        bucket = self._buckets.setdefault(
            session.player, TokenBucket(self._limits.states_per_s, most)
        )
        if wait := bucket.take(count):
            raise rate_limited(wait, "changes of state")
        for write in command.items:
            self._require_right(session, write)
        self._write(
            [
                (write, self._safety.redact_data(self._checked(write), self._pack.id))
                for write in command.items
            ]
        )
        self._tell_changes(session.player)

    def put(self, writes: Sequence[StateWrite], *, quiet: bool = False) -> list[Item]:
        """The server says what has changed: all of it comes to be, or nothing. Returns what did.

        Args:
            quiet: it tells how things are, and not that they are so since now: nobody reacts to it.

        Raises:
            Refusal: `forbidden`, `bad_field` or `too_large`.
        """
        written = self._write([(write, self._checked(write)) for write in writes])
        self._tell_changes(None, quiet=quiet)
        return written

    def apply(self, items: Sequence[Item], *, quiet: bool = False) -> list[Item]:
        """Take in what others have stamped, all or nothing, in whatever order and how often it
        comes. Returns what was news. For `quiet` see `put`.

        Raises:
            Refusal: `forbidden`, `bad_field` (a stamp from the future, too) or `too_large`.
        """
        checked: list[Item] = []
        for item in items:
            if not 0 < item.h <= MOST:
                raise Refusal(Code.BAD_FIELD, f"h of {item.e}.{item.k} must be from 1 to {MOST}")
            if not ID.fullmatch(item.o):
                problem = f"o of {item.e}.{item.k} must be 1 to 64 of A-Z a-z 0-9 _ . -"
                raise Refusal(Code.BAD_FIELD, problem)
            try:
                self._clock.check(item.h)
            except FromTheFuture as error:
                raise Refusal(Code.BAD_FIELD, f"{item.e}.{item.k}: {error}") from error
            value = self._checked(StateWrite(item.e, item.k, item.v))
            checked.append(msgspec.structs.replace(item, v=value))
        for item in checked:
            self._clock.see(item.h)
        taken = [item for item in checked if self._take(item)]
        self._tell_changes(None, quiet=quiet)
        return taken

    def enter(self, player: str) -> None:
        """A player has come in."""
        entry = self._pack.surroundings.entry
        if entry is not None and not self._catalogue.is_fixed(player):
            self._write([(StateWrite(player, POS, None), list(entry))])

    def leave(self, player: str) -> None:
        """A player is gone, and with it its entity."""
        self._buckets.pop(player, None)
        if not self._catalogue.is_fixed(player):
            keys = self.registers.keys(player)
            self._write([(StateWrite(player, key, None), None) for key in keys])

    def settle(self) -> None:
        """Who is here is known again after a restart: what was of others goes."""
        for player in {register.item.e for register in self.registers.since(0)}:
            if player not in self._attendance.states:
                self.leave(player)

    def adopt(self, pack: OpenScene) -> None:
        """Follow a new version of the pack: what is as the old one said is as the new one says."""
        before = {(e, k): v for e, k, v in self._catalogue.initial()}
        self._pack = pack
        self._catalogue = Catalogue(pack.surroundings, pack.npcs)
        now = {(e, k): v for e, k, v in self._catalogue.initial()}
        for register in list(self.registers.since(0)):
            item = register.item
            if not self._catalogue.has(item.e, item.k) or (
                not item.h and (item.e, item.k) in before.keys() - now.keys()
            ):
                self.registers.impose(Item(item.e, item.k, None, 0, ""))
                self._shelf.drop(item.e, item.k)
        for (e, k), v in now.items():
            known = self.registers.get(e, k)
            if known is None or not (known.item.h or self.registers.holds(e, k, v)):
                self.registers.impose(Item(e, k, v, 0, ""))
        self._pulse.ask()

    # What is told

    def watch(self, player: str) -> Watch:
        """A new cursor, for a player's client."""
        return Watch(self, player)

    def message(self, registers: Sequence[Register], rev: int, full: bool) -> Encoded:
        """The `state.delta` of some registers, encoded once for all who are told the same."""
        key = (full, rev, *(register.rev for register in registers))
        if key not in self._messages:
            body = StateDelta(rev, [register.item for register in registers], full)
            self._messages[key] = encode("state.delta", body, st=self.stream.id, ep=self.stream.ep)
        return self._messages[key]

    # In the course of time

    def pass_time(self) -> None:
        """Keep where everybody is by now, and forget old removals. Call about once a second."""
        self._shelf.keep()
        settings = self._settings
        before = stamp_of(now_ms() - settings.removed_s * 1000)
        gone = self.registers.collect(before, settings.removed, self._catalogue.is_fixed)
        for name in gone:
            self._shelf.drop(*name)
        if gone:
            self._shelf.move_horizon(self.registers.horizon)

    def keep(self) -> None:
        """Write down what was not yet."""
        self._shelf.keep()

    def close(self) -> None:
        """Tell nobody anything more."""
        self._pulse.stop()

    # Checks

    def _require_right(self, session: "Session", write: StateWrite) -> None:
        is_here = write.e in self._attendance.states
        writer = self._catalogue.writer(write.e, write.k, is_here=is_here)
        if session.grant.any_event or writer == "player":
            return
        if writer == "owner":
            owner = self.registers.value(write.e, OWNER)
            if session.player == (owner if self._catalogue.is_fixed(write.e) else write.e):
                return
            problem = f"{write.e}.{write.k} is for its owner to change"
        else:
            problem = f"{write.e}.{write.k} is for the game's server to change"
        raise Refusal(Code.FORBIDDEN, problem)

    def _checked(self, write: StateWrite) -> Any:
        """The value of a write as it is kept."""
        e, k, value = write.e, write.k, write.v
        self._catalogue.writer(e, k, is_here=e in self._attendance.states)
        if value is None:
            return None
        limit, actual = self._limits.state_bytes, len(msgspec.json.encode(value))
        if actual > limit:
            raise Refusal(Code.TOO_LARGE, f"{e}.{k} is too large", limit=limit, actual=actual)
        if k != POS:
            return value
        try:
            at = as_position(value)
        except ValueError as error:
            raise Refusal(Code.BAD_FIELD, f"{e}.{k} {error}") from error
        bounds = self._pack.surroundings.bounds
        if bounds is not None and not bounds.hold(at):
            box = f"{list(bounds.low)} to {list(bounds.high)}"
            raise Refusal(Code.BAD_FIELD, f"{e}.{k} is out of the scene's bounds, {box}")
        return list(at)

    # Registers

    def _write(self, writes: Iterable[tuple[StateWrite, Any]]) -> list[Item]:
        """Give stamps to values; what is so already is no change."""
        changed: list[Item] = []
        for write, value in writes:
            if not self.registers.holds(write.e, write.k, value):
                item = Item(write.e, write.k, value, self._clock.tick(), self._origin)
                self._take(item)
                changed.append(item)
        return changed

    def _tell_changes(self, player: str | None, *, quiet: bool = False) -> None:
        changes, self._changes = self._changes, []
        if changes and not quiet:
            self.on_change(changes, player)

    def _take(self, item: Item) -> bool:
        before = self.registers.value(item.e, item.k)
        register = self.registers.merge(item)
        if register is None:
            return False
        self._shelf.write(register)
        self._pulse.ask()
        if f"{item.e}.{item.k}" in self._pack.noticed and _differ(before, item.v):
            self._changes.append(Change(item.e, item.k, before, item.v))
        return True

    def _publish(self) -> None:
        """A beat: clients may be told what has changed up to now."""
        self.published = self.registers.rev
        self._messages.clear()
        if self.has_sight:
            wait_s = self._far_at + self._settings.far_ms / 1000 - time.monotonic()
            if wait_s <= 0:
                self._far_at = time.monotonic()
                self.far_published = self.published
            elif self.far_published < self.published:
                self._pulse.ask(wait_s)
        self.stream.wake()


def _differ(left: Any, right: Any) -> bool:
    """Whether two values are not the same JSON, in which 1 is not true."""
    return msgspec.json.encode(left) != msgspec.json.encode(right)
