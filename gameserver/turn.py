"""One answer of an NPC: an append-only list of chunks that every listener reads by cursor."""

import asyncio
import time
from collections.abc import Sequence

from gameserver.messages import Delta, TurnSync
from gameserver.protocol import Encoded, encode, encoded_size
from gameserver.streams import Stream

#: By how much later than usual the next piece comes, for each second that this one was late.
_CALMING = 2.0
#: Pieces never come more rarely than usual by more than this factor.
_RAREST = 3.0


class Turn:
    """Text as it grows, and its merged messages, encoded once however many listen.

    Chunks become visible to listeners when they are published: the first at once, later ones
    together every `merge_s`. If the event loop has more to do than it can, which shows in timers
    that ring late, pieces become fewer and larger: each costs a system call per listener.

    Attributes:
        id, npc: whose words these are.
        streams: where its events go: the scene's stream, or a whisper's private ones.
        chunks: what each engine step released.
        published: chunks that listeners may have.
        bytes: encoded size of the text.
        first_at: monotonic time of the first publication.
    """

    def __init__(self, turn_id: str, npc: str, streams: tuple[Stream, ...], merge_s: float) -> None:
        self.id = turn_id
        self.npc = npc
        self.streams = streams
        self.chunks: list[str] = []
        self.published = 0
        self.bytes = 0
        self.first_at: float | None = None
        self._merge_s = self._pause_s = merge_s
        self._loop = asyncio.get_running_loop()
        self._published_at = -merge_s
        self._timer: asyncio.TimerHandle | None = None
        self._delta: tuple[int, int, Encoded | None] = (0, 0, None)

    def recall(self, chunks: Sequence[str]) -> None:
        """Begin with what was said before, by another process; all of it was published."""
        self.chunks = list(chunks)
        self.published = len(chunks)
        self.bytes = sum(map(encoded_size, chunks))

    def append(self, text: str) -> None:
        """Add a chunk and see to its publication."""
        self.chunks.append(text)
        self.bytes += encoded_size(text)
        if self._timer is None:
            due, now = self._published_at + self._pause_s, self._loop.time()
            if self.published == 0 or due <= now:
                self.publish()
            else:
                self._timer = self._loop.call_at(due, self._ring, due)

    def _ring(self, due: float) -> None:
        late_s = self._loop.time() - due
        self._pause_s = min(self._merge_s + _CALMING * late_s, _RAREST * self._merge_s)
        self.publish()

    def publish(self) -> None:
        """Show everything to the listeners now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.published == len(self.chunks):
            return
        if self.first_at is None:
            self.first_at = time.monotonic()
        self.published = len(self.chunks)
        self._published_at = self._loop.time()
        for stream in self.streams:
            stream.wake(words_alone=True)

    def text(self, end: int | None = None) -> str:
        """All text, or that of the chunks before `end`."""
        return "".join(self.chunks[:end])

    def delta(self, i: int) -> Encoded:
        """`npc.delta` with what has been published from chunk `i` on."""
        start, end, message = self._delta
        if message is None or (start, end) != (i, self.published):
            # Those who keep up all ask for the same piece.
            text = "".join(self.chunks[i : self.published])
            message = self._encode("npc.delta", Delta(self.id, i, self.published - i, text))
            self._delta = (i, self.published, message)
        return message

    def view(self, i: int, end: int) -> TurnSync:
        """Chunks `i` to before `end`, for those who come to them late."""
        return TurnSync(self.id, self.npc, i, end - i, "".join(self.chunks[i:end]))

    def sync(self, i: int) -> Encoded:
        """`npc.turn.sync` with what has been published from chunk `i` on."""
        return self._encode("npc.turn.sync", self.view(i, self.published))

    def _encode(self, t: str, d: Delta | TurnSync) -> Encoded:
        return encode(t, d, st=self.streams[0].id, ep=self.streams[0].ep)
