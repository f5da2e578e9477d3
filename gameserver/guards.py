"""One WebSocket with the guards that the library lacks, and writing without a task.

Hazards (measured on websockets 17): keepalive pings wait behind a full write buffer and so never
notice a client that stops reading; pongs are written without flow control, so a client that pings
and never reads grows the buffer without end; handshakes that never finish hold their memory for the
whole opening timeout; a client that breaks the protocol holds its connection for as long as it
sends on; each piece of a message, though it be empty, takes 70 bytes.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from struct import Struct, unpack_from
from typing import Any

from websockets.asyncio.server import Server, ServerConnection
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, Event
from websockets.server import ServerProtocol

from gameserver.admission import TokenBucket
from gameserver.protocol import MSGPACK, Close, Code, Encoded, Refusal
from gameserver.settings import Settings
from gameserver.tally import Tally

#: The first byte of a whole message, and heads of frames by length.
_TEXT, _BINARY = 0x80 | Opcode.TEXT, 0x80 | Opcode.BINARY
_SHORT, _MEDIUM, _LONG = Struct("!BB"), Struct("!BBH"), Struct("!BBQ")
#: Where Linux has `tcpi_bytes_acked` in its `struct tcp_info`.
_ACKNOWLEDGED = 120
#: Pieces of one message. The library has the same limit, and keeps each piece by itself.
_MOST_PIECES = 4096
_CONTROL = frozenset({Opcode.PING, Opcode.PONG, Opcode.CLOSE})
_TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
#: The library reads no bodies and hangs up on who sends one; these are told first.
_NO_BODY = {
    True: (
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n"
        b"Content-Length: 30\r\n\r\nRequests here have no bodies.\n"
    ),
    False: (
        b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nConnection: close\r\n"
        b"Content-Length: 18\r\n\r\nGET or HEAD only.\n"
    ),
}


class Handshakes:
    """Upgrades in flight, at most `limit`.

    A newcomer beyond that takes the place of the oldest one if that is slow, else it is turned
    away: slow clients cannot lock the door, and a storm of quick ones is not served at the expense
    of those who are nearly through.
    """

    def __init__(self, limit: int, patience_s: float) -> None:
        self._limit = limit
        self._patience = patience_s
        self._since: dict[GuardedConnection, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def enter(self, connection: "GuardedConnection") -> bool:
        """Let a new connection begin its upgrade; False if there is no room."""
        now = time.monotonic()
        if len(self._since) >= self._limit:
            oldest = next(iter(self._since))
            if now - self._since[oldest] < self._patience:
                return False
            oldest.turn_away()
        self._since[connection] = now
        return True

    def turn_all_away(self) -> None:
        """The server goes: nobody gets through any more."""
        for connection in list(self._since):
            connection.turn_away()

    def leave(self, connection: "GuardedConnection") -> None:
        """The upgrade is done, or the connection is gone."""
        self._since.pop(connection, None)


class GuardedConnection(ServerConnection):
    """A server-side WebSocket that cannot be used to fill memory or to hold a slot in silence.

    Attributes:
        on_writable: called when text may be written again after `writable` was False.
        on_flood: called once when too many control frames came.
        flooded: whether they did, perhaps before anybody listened.
        failure: the code that the library closed with because of what the client sent.
    """

    def __init__(
        self,
        protocol: ServerProtocol,
        server: Server,
        *,
        settings: Settings,
        handshakes: Handshakes,
        tally: Tally,
        **options: Any,
    ) -> None:
        super().__init__(protocol, server, **options)
        self._fail = protocol.fail
        protocol.fail = self._tell_and_fail  # type: ignore[method-assign]
        self._send_eof = protocol.send_eof
        protocol.send_eof = self._tell_and_end  # type: ignore[method-assign]
        self._opening = b""  # the first bytes of the request
        self._frame_limit = settings.limits.frame_bytes
        self._guards = settings.guards
        self._handshakes = handshakes
        self._tally = tally
        limits = settings.limits
        self._control = TokenBucket(limits.control_frames_per_s, limits.control_frames_burst)
        self._stall: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        self._pieces: bytearray | None = None  # of a message that is not whole yet
        self._piece_count = 0
        self._begun = Opcode.TEXT
        self._unsent = 0  # bytes in the write buffer when we last looked for a stall,
        self._taken = 0  # and those that had arrived by then
        self._made = False  # whether the library knows of this connection
        self._turned_away = False
        self._heard = time.monotonic()
        self._pinged: float | None = None
        self._next_ping = self._heard + self._guards.ping_interval_s
        self.failure: int | None = None
        self.on_writable: Callable[[], None] = _nothing
        self.on_flood: Callable[[], None] = _nothing
        self.flooded = False

    def forget_handshake(self) -> None:
        """Let go of the headers: they are the largest part of an idle connection, and all that is
        needed of them was taken."""
        if self.request is not None:  # by the request itself the library knows that there was one
            self.request.headers.clear()
        self.response = None

    # Writing

    @property
    def writable(self) -> bool:
        """Whether the client keeps up with what has been written."""
        return not self.paused and self.protocol.state is OPEN

    def write(self, messages: Sequence[Encoded]) -> None:
        """Send messages, each in one frame, in one system call. Never waits."""
        if self._packed:
            self._write_out([message.msgpack for message in messages])
        else:
            self._write_out([message.json for message in messages])

    def pass_on(self, frame: bytes) -> None:
        """Send a message that is encoded as this client wants it. Never waits."""
        self._write_out([frame])

    @cached_property
    def _packed(self) -> bool:
        """Whether this client's frames are msgpack, which its upgrade has settled for good."""
        return self.subprotocol == MSGPACK

    def _write_out(self, payloads: Sequence[bytes]) -> None:
        """Not through the library, which takes a third of the time of all that a delta passes
        through to check and to log what here is always the same: whole messages, nothing masked,
        no extensions."""
        if self.protocol.state is not OPEN or self.transport.is_closing():
            return
        first = _BINARY if self._packed else _TEXT
        pieces = []
        for payload in payloads:
            length = len(payload)
            if length < 126:
                pieces.append(_SHORT.pack(first, length))
            elif length < 65536:
                pieces.append(_MEDIUM.pack(first, 126, length))
            else:
                pieces.append(_LONG.pack(first, 127, length))
            pieces.append(payload)
        data = b"".join(pieces)
        self.transport.write(data)
        self._tally.sent(len(payloads), len(data))

    def _send_message(self, message: Encoded) -> None:
        if self._packed:
            self.protocol.send_binary(message.msgpack)
        else:
            self.protocol.send_text(message.json)

    def abort(self, code: Close) -> None:
        """Drop the connection now, without a word; `code` goes into the counters only."""
        if not self.transport.is_closing():
            self._tally.count(f"closes_{code.value}")
        self.transport.abort()  # also one that closes, and waits for its client to read

    def end_within(self, seconds: float) -> None:
        """Drop the connection then, or when an earlier call said, however slowly the client reads
        what is still to be sent."""
        if self._end is None:
            self._end = self.loop.call_later(seconds, self.transport.abort)

    # Liveness

    def check_alive(self, now: float) -> float | None:
        """Ping if it is time to. Returns when to look again; None if the client has been silent for
        too long.

        Args:
            now: monotonic seconds, as is what it returns.
        """
        guards = self._guards
        if self._pinged is not None and now - self._pinged > guards.ping_timeout_s:
            return None
        if now - self._heard > guards.silence_s:
            return None
        # Behind a full buffer a ping would say nothing; there the stall timer runs.
        if now >= self._next_ping and self.writable and not self.transport.is_closing():
            self._next_ping = now + guards.ping_interval_s
            self._pinged = self._pinged or now
            self.protocol.send_ping(b"")
            self.send_data()
        lost = self._heard + guards.silence_s
        if self._pinged is not None:
            lost = min(lost, self._pinged + guards.ping_timeout_s)
        # One whose buffer was full is pinged late, when it has read.
        return min(lost, max(self._next_ping, now + guards.ping_interval_s / 16))

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection to the upgrade and set up its socket."""
        assert isinstance(transport, asyncio.Transport)
        if not self._handshakes.enter(self):
            self.transport = transport
            self.turn_away()
            return
        guards = self._guards
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, guards.send_buffer_bytes)
        if hasattr(socket, "TCP_USER_TIMEOUT") and sock.family != getattr(socket, "AF_UNIX", None):
            timeout_ms = int(guards.tcp_user_timeout_s * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        if hasattr(transport, "max_size"):  # asyncio's own transports; uvloop has no such knob
            transport.max_size = guards.read_bytes
        self._made = True
        super().connection_made(transport)

    def turn_away(self) -> None:
        """Answer 503 instead of going on with the upgrade."""
        self._tally.count("handshakes_refused")
        self._turned_away = True
        self._handshakes.leave(self)
        if not self.protocol.eof_sent:  # else another answer is on its way already
            self.transport.write(_TURNED_AWAY)
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Take in bytes, then look at what the library answered by itself."""
        if self._turned_away:
            return
        self._heard = time.monotonic()
        self._pinged = None
        self._tally.count("bytes_in", len(data))
        if len(self._opening) < 5:
            self._opening += data[:5]
        super().data_received(data)
        if self.transport.get_write_buffer_size() > self._guards.flood_bytes:
            self._tally.count("floods")
            self.abort(Close.RATE_LIMITED)

    def process_event(self, event: Event) -> None:
        """Put pieces together and count control frames, on top of what the library does."""
        if isinstance(event, Frame) and event.opcode not in _CONTROL:
            whole = self._put_together(event)
            if whole is None:
                return
            event = whole
        super().process_event(event)
        if isinstance(event, Frame) and event.opcode in _CONTROL and self._control.take():
            self._tally.count("floods")
            self.transport.pause_reading()
            # Nothing more is read, the client's part of the close neither: no use waiting for it.
            self.close_timeout = self._guards.linger_s
            self.flooded = True
            self.on_flood()

    def _put_together(self, frame: Frame) -> Frame | None:
        """A whole message; None if there is more of it to come."""
        if self._piece_count > _MOST_PIECES:
            return None  # the connection has failed
        if self._pieces is None and frame.fin:
            return frame
        if self._pieces is None:
            self._pieces, self._piece_count, self._begun = bytearray(), 0, frame.opcode
        self._pieces += frame.data
        self._piece_count += 1
        if self._piece_count > _MOST_PIECES:
            self._pieces = None
            self.protocol.fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
            self.send_data()
            return None
        if not frame.fin:
            return None
        whole, self._pieces = bytes(self._pieces), None
        return Frame(self._begun, whole)

    def forget_unread(self) -> None:
        """Let go of messages that came and were not read: nobody will."""
        self._pieces = None
        self.recv_messages.frames.queue.clear()

    def eof_received(self) -> None:
        """The client will send no more."""
        self.end_within(self._guards.close_timeout_s)  # it need not read, either
        if not self._turned_away:
            super().eof_received()

    def pause_writing(self) -> None:
        """The write buffer is full: from now on some of it must leave within every `stall_s`."""
        super().pause_writing()
        self._watch_for_stall()

    def resume_writing(self) -> None:
        """The client has read: go on."""
        super().resume_writing()
        self._forget_stall()
        self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._forget_stall()
        if self._end is not None:
            self._end.cancel()
        self._handshakes.leave(self)
        if self._made:
            super().connection_lost(exc)

    def _tell_and_fail(self, code: CloseCode | int, reason: str = "") -> None:
        """The library closes at once; a message that was too large is named before."""
        self.failure = int(code)
        if code == CloseCode.MESSAGE_TOO_BIG and self.protocol.state is OPEN:
            error = Refusal(Code.TOO_LARGE, reason, limit=self._frame_limit, close=Close.TOO_LARGE)
            self._send_message(error.encode())
        self._fail(code, reason)
        # It is for the client to close now; the library would wait for that.
        self.end_within(self._guards.close_timeout_s)

    def _tell_and_end(self) -> None:
        """The library gives up on a request; one that it understood is answered before."""
        problem = getattr(self.protocol, "handshake_exc", None)
        cause = None if problem is None else problem.__cause__
        if isinstance(cause, NotImplementedError) or str(cause) == "unsupported request body":
            reads = self._opening.startswith((b"GET ", b"HEAD "))
            self._tally.count("http_400" if reads else "http_405")
            self.protocol.writes.append(_NO_BODY[reads])
        self._send_eof()

    def _forget_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _watch_for_stall(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._taken = self._count_taken()
        self._stall = self.loop.call_later(self._guards.stall_s, self._look_for_stall)

    def _count_taken(self) -> int:
        """Bytes that the client's machine has acknowledged, for connections with TLS: below that is
        another buffer, which takes more only now and then. 0 without, and where nobody tells."""
        if not hasattr(socket, "TCP_INFO") or self.transport.get_extra_info("ssl_object") is None:
            return 0
        sock: socket.socket = self.transport.get_extra_info("socket")
        try:
            told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED + 8)
        except OSError:  # it is closed already, and we are about to be told
            return 0
        return unpack_from("=Q", told, _ACKNOWLEDGED)[0] if len(told) >= _ACKNOWLEDGED + 8 else 0

    def _look_for_stall(self) -> None:
        """Who reads slowly is alive: its buffer is bounded, and what it misses comes merged."""
        left = self.transport.get_write_buffer_size()
        if left < self._unsent or self._count_taken() > self._taken:
            self._watch_for_stall()
            return
        self._tally.count("stalled")
        self.abort(Close.STALLED)


def _nothing() -> None:
    """Nobody is listening yet."""
