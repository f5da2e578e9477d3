"""Numbered event streams: written once by their owner, read by every listener at its own pace."""

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from gameserver.messages import Presence
from gameserver.protocol import Encoded, Payload, encode, now_ms
from gameserver.settings import Flow
from gameserver.stores.journal import Book

if TYPE_CHECKING:
    from gameserver.turn import Turn

#: Events that the store may have beyond the window: trimming one by one would double its work.
_SLACK = 64


class Listener(Protocol):
    """Somebody who is told of everything the moment it happens."""

    def wake(self) -> None:
        """There is something new to read."""

    def mark(self, latest: "Latest") -> None:
        """A latest-wins value has changed."""


class Reader(Protocol):
    """Somebody with a cursor in a stream, who looks once everything of a moment has happened."""

    def look(self, *, words_alone: bool) -> None:
        """There may be something new to read; `words_alone`: but for words of turns there is not,
        in this stream."""

    def mark(self, latest: "Latest") -> None:
        """A latest-wins value has changed; `look` follows."""


@dataclass(frozen=True, slots=True)
class Event:
    """One numbered event.

    Attributes:
        s: its number.
        t: message type.
        message: encoded once, for everybody.
        at: monotonic seconds.
        opens, closes: the turn that starts or ends with it.
        unit: of the journal, after which it may be sent.
    """

    s: int
    t: str
    message: Encoded
    at: float
    opens: "Turn | None"
    closes: "Turn | None"
    unit: int


class Stream:
    """The events of one scene, or of one session's private stream.

    Keeps a window of recent events; who falls behind it needs a snapshot. Only the owner appends.
    With a book, numbers go on from where its log ends, and each event is written down.

    Attributes:
        id, ep: `st` and `ep` of its messages.
        last: number of the newest event; 0 before the first.
        listeners, readers: who is told about new events, at once and a little later.
        latest: its latest-wins values.
    """

    def __init__(self, stream_id: str, epoch: int, flow: Flow, book: Book | None = None) -> None:
        self.id = stream_id
        self.ep = epoch
        self.last = 0
        self.listeners: set[Listener] = set()
        self.readers: set[Reader] = set()
        self.latest: weakref.WeakSet[Latest] = weakref.WeakSet()
        self._flow = flow
        self._window: deque[Event] = deque()
        self._bytes = 0
        self._book = book
        self._trimmed = 0  # the last event that the book was told to forget
        self._stirred = False  # whether the readers are about to look
        self._words_alone = True  # at nothing but words

    @property
    def unit(self) -> int:
        """The unit of the journal after which the newest event may be sent."""
        return self._window[-1].unit if self._window else 0

    def restore(self, ended: "Mapping[str, Turn]") -> None:
        """Go on after what is in the book. `ended` are turns by id, whose ends may be among it."""
        assert self._book is not None
        for s, value in self._book.log:
            if s != self.last + 1:  # older ones cannot be told without a gap
                self._window.clear()
            self.last = s
            kept = msgspec.json.decode(value)
            message = Encoded.of(kept, self.ep)
            at = time.monotonic() - max(now_ms() - kept["ts"], 0) / 1000
            closes = ended.get(kept["d"]["turn"]) if kept["t"] == "npc.turn.end" else None
            self._window.append(Event(s, kept["t"], message, at, None, closes, 0))
        self._bytes = sum(len(event.message) for event in self._window)
        self._trim()

    def append(
        self,
        t: str,
        d: msgspec.Struct,
        *,
        opens: "Turn | None" = None,
        closes: "Turn | None" = None,
    ) -> None:
        """Number, encode and keep an event, and tell the listeners."""
        self.last += 1
        message = encode(t, d, st=self.id, s=self.last, ep=self.ep)
        unit = 0
        if self._book is not None:
            self._book.append(self.last, message.json)
            unit = self._book.journal.written
        self._window.append(Event(self.last, t, message, time.monotonic(), opens, closes, unit))
        self._bytes += len(message)
        self._trim()
        self.wake()

    def after(self, s: int) -> list[Event] | None:
        """Events with numbers above `s`, oldest first; None if some of them are gone."""
        missing = self.last - s
        if missing > len(self._window):
            return None
        return [self._window[-index] for index in range(missing, 0, -1)]

    def wake(self, *, words_alone: bool = False) -> None:
        """Tell everybody to look again; `words_alone`: only a turn has got words."""
        for listener in self.listeners:
            listener.wake()
        self.stir(words_alone=words_alone)

    def stir(self, *, words_alone: bool = False) -> None:
        """Let the readers look once everything of this moment has happened: all in one callback of
        the event loop, since to schedule one costs as much as half a look."""
        self._words_alone = self._words_alone and words_alone
        if self.readers and not self._stirred:
            self._stirred = True
            asyncio.get_running_loop().call_soon(self._let_read)

    def _let_read(self) -> None:
        words_alone, self._words_alone = self._words_alone, True
        self._stirred = False
        for reader in tuple(self.readers):
            try:
                reader.look(words_alone=words_alone)
            except Exception as fault:  # the others read all the same
                context = {"message": "a client could not be told", "exception": fault}
                asyncio.get_running_loop().call_exception_handler(context)

    def _trim(self) -> None:
        flow = self._flow
        oldest = time.monotonic() - flow.window_s
        while len(self._window) > 1 and (
            len(self._window) > flow.window_events
            or self._bytes > flow.window_bytes
            or self._window[0].at < oldest
        ):
            self._bytes -= len(self._window.popleft().message)
        gone = self._window[0].s - 1 if self._window else 0
        if self._book is not None and gone >= self._trimmed + _SLACK:
            self._book.trim(gone)
            self._trimmed = gone


def empty_log(book: Book, stream_id: str) -> None:
    """Forget all events of a stream that is at rest, but not how many there were: one that tells
    nothing holds the number to go on from."""
    if book.log:
        s = book.log[-1][0] + 1
        book.append(s, encode("presence", Presence([]), st=stream_id, s=s, ep=book.epoch).json)
        book.trim(s - 1)


class Latest:
    """A value of which a lagging client gets only the newest. It is encoded when somebody asks.

    Attributes:
        t, stream: type and place of its messages.
        rev: how often it has changed.
    """

    def __init__(self, t: str, stream: Stream, build: Callable[[int], Payload]) -> None:
        """`build` makes the payload with a given `rev`."""
        self.t = t
        self.stream = stream
        self._build = build
        self.rev = 0
        self._message: Encoded | None = None
        stream.latest.add(self)

    def changed(self) -> None:
        """The value has changed: mark it for everybody who listens."""
        self.rev += 1
        self._message = None
        for listener in self.stream.listeners:
            listener.mark(self)
        for reader in self.stream.readers:
            reader.mark(self)
        self.stream.stir()

    def message(self) -> Encoded:
        """The newest value."""
        if self._message is None:
            payload = self._build(self.rev)
            self._message = encode(self.t, payload, st=self.stream.id, ep=self.stream.ep)
        return self._message
