"""The sessions of this node: each outlives its connection for a while and may be taken up again."""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from gameserver.admission import Admission, Offences
from gameserver.commands import Resume
from gameserver.outbox import Outbox
from gameserver.protocol import Close, Code, Refusal
from gameserver.session import Session
from gameserver.settings import Settings
from gameserver.tally import Tally
from gameserver.world import World

_WINDOW_S = 60.0
#: Players whose wrong tokens are remembered; with more, the oldest are forgiven.
_SUSPECTS = 10_000

_log = structlog.get_logger("troupe.game")


@dataclass(slots=True, eq=False)
class Seat:
    """A session, and how its owner may come back to it.

    Attributes:
        address: where it was begun from.
        on_replaced: tells the connection that another one has taken the session over.
        digest: of the one token that opens it.
        end: the timer of its end, while nobody is connected.
        began: monotonic seconds.
    """

    session: Session
    address: str
    on_replaced: Callable[[], None]
    digest: bytes = b""
    end: asyncio.TimerHandle | None = None
    began: float = field(default_factory=time.monotonic)


class Sessions:
    """Begins sessions, keeps the seats of those who lost their connection, and ends them."""

    def __init__(self, world: World, settings: Settings, tally: Tally) -> None:
        self._world = world
        self._settings = settings
        self._tally = tally
        self._admission = Admission(settings)
        self._seats: dict[str, Seat] = {}
        self._suspects: OrderedDict[str, Offences] = OrderedDict()

    @property
    def resume_ms(self) -> int:
        """How long a seat is kept; 0: not at all."""
        return int(self._settings.flow.resume_s * 1000)

    def gauges(self) -> dict[str, float]:
        """Sessions, and those of them without a connection."""
        away = sum(seat.session.away for seat in self._seats.values())
        return {"sessions": self._admission.sessions, "sessions_away": away}

    def begin(
        self,
        player: str,
        name: str,
        address: str,
        outbox: Outbox,
        on_replaced: Callable[[], None],
        *,
        make_room: bool,
    ) -> Session:
        """A new session.

        Args:
            make_room: a player who has too many gives up the one that is away the longest.

        Raises:
            Refusal: fatal, there are too many of them.
        """
        if make_room and not self._admission.has_room(player):
            self._end_longest_away(player)
        says = self._admission.enter(player, address)
        session = Session(player, name, outbox, self._world, self._settings, says, self._tally)
        self._seats[session.id] = Seat(session, address, on_replaced)
        self._tally.count("sessions_begun")
        return session

    def objection(self, player: str, resume: Resume) -> str | None:
        """Why a session cannot be resumed; None if it can. Looks only, whatever the answer.

        Raises:
            Refusal: fatal, this player has tried too many wrong tokens.
        """
        if not self.resume_ms:
            return "this server keeps no sessions"
        seat = self._seats.get(resume.session)
        if seat is None:
            return "the session is over"
        matches = hmac.compare_digest(seat.digest, _digest(resume.token))
        if matches and seat.session.player == player:
            return None
        self._tally.count("resumes_refused")
        suspect = self._suspects.setdefault(
            player, Offences(self._settings.flow.wrong_tokens + 1, _WINDOW_S)
        )
        if len(self._suspects) > _SUSPECTS:
            self._suspects.popitem(last=False)
        if suspect.add():
            raise Refusal(
                Code.RATE_LIMITED,
                "too many wrong resume tokens",
                retry_ms=int(_WINDOW_S * 1000),
                close=Close.RATE_LIMITED,
            )
        return "the token is not the session's"

    def resume(self, name: str, outbox: Outbox, on_replaced: Callable[[], None]) -> Session:
        """Let a connection take over session `name`, to which there is no objection."""
        seat = self._seats[name]
        before, seat.on_replaced = seat.on_replaced, on_replaced
        if seat.end is not None:
            seat.end.cancel()
            seat.end = None
        before()
        seat.session.take_up(outbox)
        self._tally.count("sessions_resumed")
        return seat.session

    def new_token(self, session: Session) -> str:
        """The only token that opens a session from now on; its hash alone is kept."""
        token = secrets.token_urlsafe(32)
        self._seats[session.id].digest = _digest(token)
        return token

    def lose(self, session: Session) -> None:
        """A connection is gone without a goodbye: its seat is kept for a while."""
        flow = self._settings.flow
        if not flow.resume_s:
            self.end(session)
            return
        session.lose()
        seat = self._seats[session.id]
        seat.on_replaced = _nobody_there  # a seat holds on to no connection
        seat.end = asyncio.get_running_loop().call_later(flow.resume_s, self.end, session)

    def end(self, session: Session) -> None:
        """A session is over."""
        seat = self._seats.pop(session.id)
        if seat.end is not None:
            seat.end.cancel()
        session.end()
        self._admission.leave(session.player, seat.address)
        self._tally.count("sessions_ended")
        seconds = round(time.monotonic() - seat.began, 3)
        _log.info("session ended", session=session.id, seconds=seconds)

    def close(self) -> None:
        """The server goes, and all sessions with it."""
        for seat in list(self._seats.values()):
            self.end(seat.session)

    def _end_longest_away(self, player: str) -> None:
        away = [
            (seat.end.when(), seat.session.id)
            for seat in self._seats.values()
            if seat.end is not None and seat.session.player == player
        ]
        if away:
            self.end(self._seats[min(away)[1]].session)


def _nobody_there() -> None:
    """There is no connection to tell."""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
