"""What one connection has still to be told, as cursors into lists that everybody shares."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from gameserver.admission import Offences
from gameserver.cursors import Feed, Hearing
from gameserver.messages import Ack, Gap
from gameserver.protocol import Close, Encoded, encode
from gameserver.settings import Settings
from gameserver.state.watch import Watch
from gameserver.stores.journal import Gate
from gameserver.streams import Latest, Stream
from gameserver.tally import Tally
from gameserver.turn import Turn

_BATCH_BYTES = 16 * 1024  # written at a time, so that a full buffer is noticed soon


class Wire(Protocol):
    """The socket, as far as writing goes."""

    @property
    def writable(self) -> bool:
        """Whether the client keeps up."""

    def write(self, messages: Sequence[Encoded]) -> None:
        """Send messages, one frame each."""

    def abort(self, code: Close) -> None:
        """Drop the connection."""


class Outbox:
    """Builds a connection's messages when it can take them, and only then.

    A client that does not keep up costs two cursors: it later gets fewer and larger deltas. Order:
    answers, events by number with a turn's last words before its end, text, latest-wins values.

    Answers and events wait until what they tell of is kept in the store; text waits for nothing
    but the start of its turn.

    Attributes:
        delta_s: shortest time between deltas of a turn that the client asked for.
        caps: parts of the protocol that the client knows.
    """

    def __init__(
        self, wire: Wire | None, settings: Settings, tally: Tally, gate: Gate | None = None
    ) -> None:
        """Without a wire it keeps the place of a client that has lost its connection; without a
        gate, everything may be sent at once."""
        self.delta_s = 0.0
        self.caps = frozenset[str]()
        self._wire = wire
        self._tally = tally
        self._gate = gate or Gate()
        self._loop = asyncio.get_running_loop()
        self._limit = settings.guards.outbound_messages
        self._gaps = Offences(settings.guards.snapshots_per_minute, 60.0)
        # Lists, though they are queues: mostly empty, and an empty deque takes 760 bytes.
        self._owed: list[tuple[int, Sequence[Encoded]]] = []
        self._control: list[tuple[int, Encoded]] = []
        self._feeds: dict[Stream, Feed] = {}
        self._hearings: dict[Turn, Hearing] = {}
        self._dirty: dict[Latest, None] = {}
        self._parked: set[str] = set()
        self._scheduled = False
        self._calm = False  # whether all was told but for words of turns

    @property
    def adrift(self) -> bool:
        """Whether there is no connection."""
        return self._wire is None

    @property
    def idle(self) -> bool:
        """Whether every answer is sent."""
        return not self._owed and not self._control

    def tell(self, message: Encoded, *, at_once: bool = False) -> None:
        """Queue an answer; answers are never merged or dropped.

        Args:
            at_once: it tells of nothing that is still to be kept, and overtakes those that do, but
                none of its kind.
        """
        if self._wire is None:
            return
        if at_once:
            units = (unit for unit, _ in self._control)
            place = next((i for i, unit in enumerate(units) if unit), len(self._control))
            self._control.insert(place, (0, message))
        else:
            self._control.append((self._gate.written, message))
        if len(self._control) < self._limit:
            self.wake()
        else:
            self._pump()
            if len(self._control) >= self._limit and self._wire is not None:
                self._tally.count("stalled")
                self._wire.abort(Close.STALLED)

    def follow(
        self,
        stream: Stream,
        snapshot: Callable[[Gap | None], Encoded],
        live: Callable[[], Iterable[Turn]],
        interest: frozenset[str] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Read a stream from its present end on, and a state from its beginning."""
        self._calm = False
        self._feeds[stream] = Feed(stream, stream.last, snapshot, live, interest, watch)
        stream.readers.add(self)

    def unfollow(self, stream: Stream) -> None:
        """Stop reading a stream and its turns."""
        del self._feeds[stream]
        stream.readers.discard(self)
        self._dirty = {latest: None for latest in self._dirty if latest.stream is not stream}
        self._forget_turns(stream)

    def hand_over(self, heir: "Outbox") -> None:
        """Let another outbox follow what this one follows, at the pace its client asked for.

        Answers that are queued stay here.
        """
        heir.delta_s = self.delta_s
        heir._parked = self._parked
        heir._feeds, self._feeds = self._feeds, {}
        heir._hearings, self._hearings = self._hearings, {}
        heir._dirty, self._dirty = self._dirty, {}
        for stream in heir._feeds:
            stream.readers.discard(self)
            stream.readers.add(heir)

    def recover(
        self,
        cursors: Mapping[str, int],
        chunks: Mapping[str, int],
        states: Mapping[str, tuple[int | None, int | None]],
    ) -> None:
        """Send what a client has missed, before all that it is told from now on.

        Args:
            cursors: the last event it has, by stream id. Without one, and beyond the window, it is
                shown how things stand.
            chunks: the first chunk it lacks, by turn id.
            states: the change of state it has got to, and its epoch, by stream id.
        """
        self._owed.extend((unit, (message,)) for unit, message in self._control)
        self._control.clear()
        now = self._gate.written
        for feed in self._feeds.values():
            missed = self._missed(feed, cursors.get(feed.stream.id), chunks)
            if feed.watch is not None:
                feed.watch.resume(*states.get(feed.stream.id, (None, None)))
            self._owed.extend((now, messages) for messages in missed)
        self.wake()

    def show(self, stream: Stream) -> None:
        """A scene has changed in ways that its events do not tell: show it anew."""
        feed = self._feeds[stream]
        if self._wire is None:
            feed.outdated = True
        else:
            self.tell(feed.snapshot(None))

    def listen(self, turn: Turn, i: int, *, resync: bool = False) -> None:
        """Read a running turn from chunk `i` on."""
        feed = next(self._feeds[stream] for stream in turn.streams if stream in self._feeds)
        if feed.wants("npc.delta"):
            self._hearings[turn] = Hearing(turn, i, resync, self._gate.written)

    def heard(self, turn: Turn) -> int | None:
        """The first chunk of a running turn that was not sent; None if it is not followed."""
        hearing = self._hearings.get(turn)
        return None if hearing is None else hearing.i

    def position(self, stream: Stream) -> int:
        """The last event of a followed stream that was sent."""
        return self._feeds[stream].s

    def park(self, reason: str) -> None:
        """Send events only, until every reason for that is gone."""
        self._calm = False
        if reason not in self._parked:
            self._parked.add(reason)
            self._tally.count("parks")

    def unpark(self, reason: str) -> None:
        """A reason is gone. With the last one, each running turn is brought up to date."""
        self._parked.discard(reason)
        if not self._parked:
            for hearing in self._hearings.values():
                hearing.resync = hearing.i < hearing.turn.published
            self.wake()

    def unread(self, acknowledged: dict[str, int]) -> bool:
        """Whether events were sent beyond what the client has acknowledged, by stream id."""
        return any(
            feed.s > acknowledged[feed.stream.id]
            for feed in self._feeds.values()
            if feed.stream.id in acknowledged
        )

    def wake(self) -> None:
        """There may be something to send: look once everything of this moment has happened."""
        self._calm = False
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def look(self, *, words_alone: bool) -> None:
        """A stream may have something new: send what can be sent."""
        if self._scheduled:
            return
        if words_alone and self._calm and not self._gate.late:
            self._speak()
        else:
            self._pump()

    def mark(self, latest: Latest) -> None:
        """A latest-wins value has changed; `look` follows."""
        if self._feeds[latest.stream].wants(latest.t):
            self._dirty[latest] = None

    def withdraw(self) -> None:
        """What is not kept yet never will be: let nobody be told of it."""
        kept = self._gate.durable
        self._owed = [told for told in self._owed if told[0] <= kept]
        self._control = [told for told in self._control if told[0] <= kept]

    def close(self) -> None:
        """Follow nothing any more; answers already queued still go out."""
        for stream in list(self._feeds):
            self.unfollow(stream)

    def _pump(self) -> None:
        self._scheduled = False
        more = True
        while more and self._wire is not None and self._wire.writable:
            batch: list[Encoded] = []
            size = 0
            more = False
            for unit in self._units():
                batch += unit
                size += sum(map(len, unit))
                if size >= _BATCH_BYTES:
                    more = True
                    break
            if batch:
                self._wire.write(batch)
        self._calm = not more and self._has_told_all()

    def _has_told_all(self) -> bool:
        """Whether nothing but words of turns is left to tell."""
        if self._owed or self._control or self._parked or self._dirty:
            return False
        knows_state = "world.state" in self.caps
        for feed in self._feeds.values():
            if feed.s != feed.stream.last or (knows_state and not feed.knows_state):
                return False
        return True

    def _speak(self) -> None:
        """The way of nearly all frames, for which nothing is looked at that is known."""
        if self._wire is not None and self._wire.writable:
            words = [self._words(one) for one in self._hearings.values() if self._lags(one)]
            if words:
                self._wire.write(words)

    def _units(self) -> Iterator[Sequence[Encoded]]:
        """Messages that belong together. Cursors move before each is yielded, so that the
        iteration may be dropped and begun anew at any point."""
        if self._gate.late:  # whose scenes these are now, others may know
            while self._control and self._control[0][0] == 0:
                yield (self._control.pop(0)[1],)
            self._gate.when_opened(self.wake)
            return
        while self._owed and self._is_kept(self._owed[0][0]):
            yield self._owed.pop(0)[1]
        if self._owed:
            return
        while self._control and self._is_kept(self._control[0][0]):
            yield (self._control.pop(0)[1],)
        for feed in list(self._feeds.values()):
            if feed.s != feed.stream.last:
                yield from self._events(feed)
        if self._parked:
            return
        for hearing in list(self._hearings.values()):
            if self._lags(hearing):
                yield (self._words(hearing),)
        if self._control:
            return  # an answer that shows the scene is not overtaken by a newer value
        while self._dirty:
            latest = next(iter(self._dirty))
            del self._dirty[latest]
            yield (latest.message(),)
        for feed in list(self._feeds.values()) if "world.state" in self.caps else ():
            if feed.watch is not None and feed.wants("state.delta"):
                for message in feed.watch.messages(self._is_kept):
                    yield (message,)

    def _events(self, feed: Feed) -> Iterator[Sequence[Encoded]]:
        events = feed.stream.after(feed.s)
        if events is None:
            if self._is_kept(feed.stream.unit):
                yield from self._catch_up(feed)
            return
        for event in events:
            if not self._is_kept(event.unit):
                return
            feed.s = event.s
            unit = [event.message] if feed.wants(event.t) else []
            if event.opens is not None and feed.wants("npc.delta"):
                self._hearings[event.opens] = Hearing(event.opens, 0, resync=False)
            if event.closes is not None:
                hearing = self._hearings.pop(event.closes, None)
                if hearing and hearing.i < hearing.turn.published and not self._parked:
                    unit.insert(0, self._words(hearing))
            if unit:
                yield unit

    def _missed(
        self, feed: Feed, s: int | None, chunks: Mapping[str, int]
    ) -> Iterator[Sequence[Encoded]]:
        """What brings a feed from event `s` to the present, in order, as if sent at once: whatever
        happens meanwhile comes after it."""
        stream = feed.stream
        known = s is not None and s <= stream.last
        events = stream.after(s) if s is not None and known and not feed.outdated else None
        self._forget_turns(stream)
        self._dirty.update((latest, None) for latest in stream.latest if feed.wants(latest.t))
        feed.s = stream.last
        feed.outdated = False
        if events is None:
            self._tally.count("snapshots_at_resume")
            missed = Gap(s + 1, feed.s) if s is not None and s < feed.s else None
            yield (feed.snapshot(missed),)
            return
        for event in events:
            turn = event.closes
            if turn is not None and feed.wants("npc.delta") and not self._parked:
                # The rest of what it has begun to hear.
                first = chunks.get(turn.id, turn.published)
                if first < turn.published:
                    yield (turn.delta(first),)
            if feed.wants(event.t):
                yield (event.message,)
        yield (encode("scene.synced", Ack(), st=stream.id, s=feed.s, ep=stream.ep),)
        for turn in feed.live() if feed.wants("npc.delta") else ():
            first = min(chunks.get(turn.id, 0), turn.published)
            unit = self._gate.written
            hearing = self._hearings[turn] = Hearing(turn, first, resync=True, unit=unit)
            if not self._parked:
                yield (self._words(hearing),)

    def _words(self, hearing: Hearing) -> Encoded:
        turn, i = hearing.turn, hearing.i
        message = turn.sync(i) if hearing.resync else turn.delta(i)
        hearing.i = turn.published
        hearing.resync = False
        if self.delta_s:
            hearing.due = self._loop.time() + self.delta_s
        self._tally.heard(hearing.i - i)
        if len(turn.streams) == 1:
            return message
        # Each of those who hear a whisper has a stream `me`, in an epoch of its own.
        ours = (stream for stream in turn.streams if stream in self._feeds)
        return message.in_epoch(next(ours, turn.streams[0]).ep)

    def _lags(self, hearing: Hearing) -> bool:
        """Whether there are words that the client lacks and may have."""
        return (
            hearing.i < hearing.turn.published
            and (hearing.unit <= self._gate.durable or self._is_kept(hearing.unit))
            and (not self.delta_s or self._is_due(hearing))
        )

    def _is_kept(self, unit: int) -> bool:
        """Whether the store has a unit of the journal; looks again once it has more."""
        if unit <= self._gate.durable:
            return True
        self._gate.when_opened(self.wake)
        return False

    def _is_due(self, hearing: Hearing) -> bool:
        if self._loop.time() >= hearing.due:
            return True
        self._loop.call_at(hearing.due, self.wake)
        return False

    def _catch_up(self, feed: Feed) -> Iterator[Sequence[Encoded]]:
        """The client fell out of the window: show it where things stand now."""
        self._tally.count("gaps")
        if self._gaps.add() and self._wire is not None:
            self._wire.abort(Close.STALLED)
            return
        gap = Gap(feed.s + 1, feed.stream.last)
        self._forget_turns(feed.stream)
        feed.s = feed.stream.last
        yield (feed.snapshot(gap),)

    def _forget_turns(self, stream: Stream) -> None:
        for turn in [turn for turn in self._hearings if stream in turn.streams]:
            del self._hearings[turn]
