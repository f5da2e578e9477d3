"""The sessions of this node: each outlives its connection for a while and may be taken up again.

With a store that outlives the process, one may be taken up at the next process, too: what is needed
of it is read when its player comes back, or when a scene is opened in which it has a seat.
"""

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from gameserver.admission import Admission, Offences, TokenBucket
from gameserver.commands import Resume
from gameserver.diary import Diary, read_person, read_place, read_token
from gameserver.messages import SceneMoved
from gameserver.nodes.tickets import Tickets
from gameserver.outbox import Outbox
from gameserver.protocol import Close, Code, Refusal, new_id, now_ms
from gameserver.session import Session
from gameserver.settings import Settings
from gameserver.stores.journal import Book, Journal
from gameserver.stores.store import Changed, Elsewhere, Holding, StoreDown
from gameserver.tally import Tally
from gameserver.tenants import EVERYTHING, Remit
from gameserver.world import World

_WINDOW_S = 60.0
#: A node that has a session may enter a scene with it while another one is about to take it: once.
_TRIES = 2
#: Players whose wrong tokens are remembered; with more, the oldest are forgiven.
_SUSPECTS = 10_000

_log = structlog.get_logger("troupe.game")


@dataclass(slots=True, eq=False)
class Seat:
    """A session, and how its owner may come back to it.

    Attributes:
        address: where it was begun from.
        on_parted: tells the connection that the session goes on elsewhere: at another one (None),
            or at another node, whose address is "" if it is not known.
        digest: of the one token that opens it.
        shown: of the one that its client has opened it with.
        end: the timer of its end, while nobody is connected.
        began: monotonic seconds.
    """

    session: Session
    address: str
    on_parted: Callable[[SceneMoved | None], None]
    digest: bytes = b""
    shown: bytes = b""
    end: asyncio.TimerHandle | None = None
    began: float = field(default_factory=time.monotonic)


class Sessions:
    """Begins sessions, keeps the seats of those who lost their connection, and ends them."""

    def __init__(self, world: World, settings: Settings, tally: Tally) -> None:
        self._world = world
        #: Where there are other nodes, to send players to.
        self.tickets: Tickets | None = None
        self._settings = settings
        self._tally = tally
        self._admission = Admission(settings)
        self._seats: dict[str, Seat] = {}
        self._suspects: OrderedDict[str, Offences] = OrderedDict()
        self._journal: Journal = world.journal
        self._fetching: dict[str, asyncio.Task[Session | None]] = {}
        self._kept_at = time.monotonic()
        self._sending: set[asyncio.Task[None]] = set()

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
        on_parted: Callable[[SceneMoved | None], None],
        *,
        make_room: bool,
    ) -> Session:
        """A new session.

        Args:
            player: an account, as everywhere here; see `gameserver.tenants`.
            make_room: a player who has too many gives up the one that is away the longest.

        Raises:
            Refusal: fatal, there are too many of them.
        """
        if make_room and not self._admission.has_room(player):
            self._end_longest_away(player)
        says = self._admission.enter(player, address)
        # Nobody else can know its name, so it needs no claim.
        book = Book(f"session.{new_id('s')}", self._journal, Holding(now_ms(), {}, ()))
        self._journal.begin()
        diary = Diary(book)
        diary.begin(player, name, address)
        self._keep(book)
        session = self._session(player, name, says, outbox, diary)
        self._seats[session.id] = Seat(session, address, on_parted)
        self._tally.count("sessions_begun")
        return session

    async def fetch(self, resume: Resume, player: str) -> Elsewhere | None:
        """Read a session that an earlier process had, if it may be resumed: then `objection` knows
        it. Touches nothing if it may not.

        Returns:
            The node that has all of its scenes, if that is another one: it should go on there.
        """
        if not self._journal.store.survives or not self.resume_ms:
            return None
        try:
            session = await self._find(resume, player)
            if isinstance(session, Elsewhere):
                return session
        except StoreDown as down:
            raise Refusal(
                Code.BUSY, "sessions cannot be read just now", retry_ms=1000, close=Close.OVERLOADED
            ) from down
        except Refusal as unread:  # others, who want the scene as well, are told the same object
            if unread.close is not None:
                raise
            raise Refusal(
                unread.code, unread.msg, retry_ms=unread.retry_ms, close=Close.OVERLOADED
            ) from unread
        if session is not None:
            await self._world.open_all(session)
        return None

    async def _find(self, resume: Resume, player: str) -> Session | Elsewhere | None:
        seat = self._seats.get(resume.session)
        if seat is not None and (seat.session.account != player or await self._is_ours(seat)):
            return seat.session
        bucket, store = f"session.{resume.session}", self._journal.store
        for _ in range(_TRIES):
            token, person = await store.peek(bucket, "token"), await store.peek(bucket, "person")
            if token is None or person is None:
                return None
            matches = hmac.compare_digest(read_token(token), _digest(resume.token))
            if not matches or read_person(person).player != player:
                self._suspect(player)
                return None
            elsewhere = await self.whereabouts(resume.session)
            found = elsewhere or await self._take_over(resume.session, token)
            if found is not None:
                return found
        return None

    async def _take_over(self, name: str, token: bytes) -> Session | Elsewhere | None:
        """A session that no node is known to have; None if it is over, or if its token is not this
        one any more: then somebody else was quicker. Its scenes come first: who opens one takes up
        all that are in it, and whoever is late to do so must not take one away from there again.

        Returns:
            The node that has just opened all of its scenes, if that is another one.
        """
        if self._world.draining:
            msg = "this server is going away"
            raise Refusal(Code.DRAINING, msg, retry_ms=1000, close=Close.RESTART)
        bucket, store = f"session.{name}", self._journal.store
        keys = [key for key in await store.keys(bucket) if key.startswith("in/")]
        pages = [await store.peek(bucket, key) for key in keys]
        others = [
            await self._world.open(*read_place(page), here=True)
            for page in pages
            if page is not None
        ]
        if others and all(others):
            return others[0]
        return await self.adopt(name, token)

    async def whereabouts(self, name: str) -> Elsewhere | None:
        """The other node where a session should go on, by the scenes that it is in; None: here will
        do. Raises `StoreDown`."""
        bucket, store = f"session.{name}", self._journal.store
        keys = [key for key in await store.keys(bucket) if key.startswith("in/")]
        streams = [key.removeprefix("in/") for key in keys]
        others = await self._world.holders(streams)
        if others and all(others):
            return others[0]
        if others and not any(others) and (place := await store.peek(bucket, keys[0])):
            return await self._world.place(read_place(place)[0], streams[0])
        return None

    async def hand_over(self, session: Session) -> None:
        """Another node takes a session over that is in no scene here: all of it is written when
        this returns."""
        seat = self._seats.pop(session.id)
        seat.on_parted = _nobody_there
        session.part()
        self._admission.leave(session.account, seat.address)
        self._tally.count("sessions_moved")
        await self._journal.settled()

    async def adopt_all(self, stream: str, names: Iterable[str]) -> Mapping[str, Session]:
        """Those of the sessions with a seat in a scene that are in it by their own account, and not
        over, by id. A seat may be old, and its session long be somewhere else."""
        known, store = list(names), self._journal.store
        places = (store.peek(f"session.{name}", f"in/{stream}") for name in known)
        said = await asyncio.gather(*places)
        ids = [name for name, place in zip(known, said, strict=True) if place is not None]
        found = await asyncio.gather(*map(self.adopt, ids))
        return {name: session for name, session in zip(ids, found, strict=True) if session}

    async def adopt(self, name: str, token: bytes | None = None) -> Session | None:
        """A session that is here, or that an earlier process had; None if it is over, or has
        another token by now."""
        while True:
            seat = self._seats.get(name)
            if seat is not None and await self._is_ours(seat):
                return seat.session
            if (under_way := self._fetching.get(name)) is None:
                break
            await asyncio.wait([under_way])
        task = asyncio.get_running_loop().create_task(self._read(name, token))
        self._fetching[name] = task
        task.add_done_callback(lambda _: self._fetching.pop(name, None))
        return await asyncio.shield(task)

    async def bind(self, session: Session, stream: str, scene: str, instance: str | None) -> None:
        """A session that is in no scene is about to enter one of this node's. No other node takes
        it when this returns; or one has, and it is `parted`. Raises `Refusal` (`busy`)."""
        seat = self._seats.get(session.id)
        if seat is None or not self._journal.store.shared:
            return
        self._journal.begin()
        session.diary.enter(stream, scene, instance)
        session.diary.hold(seat.digest)
        try:
            await self._is_ours(seat)
        except StoreDown as down:
            msg = "nobody knows whose session this is just now"
            raise Refusal(Code.BUSY, msg, retry_ms=1000) from down

    async def _is_ours(self, seat: Seat) -> bool:
        """Whether no other node has taken a session up since we last wrote something of it: what
        we know of it may be old. Raises `StoreDown`."""
        if self._journal.store.shared:
            self._journal.begin()
            self._keep(seat.session.diary.book)
            try:
                await asyncio.wait_for(self._journal.settled(), self._settings.store.wait_s)
            except TimeoutError as error:
                raise StoreDown("it does not take what is written") from error
        return self._seats.get(seat.session.id) is seat

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
        if matches and seat.session.account == player:
            return None
        self._suspect(player)
        return "the token is not the session's"

    def _suspect(self, player: str) -> None:
        """A player has tried a wrong token. Raises `Refusal`, fatal, if it was one too many."""
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

    def resume(
        self, resume: Resume, outbox: Outbox, on_parted: Callable[[SceneMoved | None], None]
    ) -> Session:
        """Let a connection take over a session, to which there is no objection."""
        self._journal.begin()
        seat = self._seats[resume.session]
        before, seat.on_parted = seat.on_parted, on_parted
        seat.shown = seat.digest
        if seat.end is not None:
            seat.end.cancel()
            seat.end = None
        before(None)
        if (sealed := seat.session.diary.kept_seal()) is not None:
            seat.session.receipts.unseal(sealed, resume.token)
        seat.session.take_up(outbox)
        self._tally.count("sessions_resumed")
        return seat.session

    def new_token(self, session: Session) -> str:
        """The only token that opens a session from now on; its hash alone is kept."""
        token = secrets.token_urlsafe(32)
        self._journal.begin()  # if it is somebody else's by now, its scenes are not
        digest = self._seats[session.id].digest = _digest(token)
        session.diary.token(digest, session.receipts.seal(token))
        return token

    def lose(self, session: Session) -> None:
        """A connection is gone without a goodbye: its seat is kept for a while."""
        flow = self._settings.flow
        if not flow.resume_s:
            self.end(session)
            return
        self._journal.begin()
        session.lose()
        self._journal.begin()
        self._keep(session.diary.book)
        self._wait_for_owner(self._seats[session.id])

    def end(self, session: Session) -> None:
        """A session is over."""
        seat = self._seats.pop(session.id)
        if seat.end is not None:
            seat.end.cancel()
        self._journal.begin()
        session.end()
        self._journal.begin()
        session.diary.book.erase()
        self._admission.leave(session.account, seat.address)
        self._tally.count("sessions_ended")
        seconds = round(time.monotonic() - seat.began, 3)
        _log.info("session ended", session=session.id, seconds=seconds)

    def forget(self, player: str, remit: Remit = EVERYTHING) -> None:
        """Let no session repeat what it was told of a player."""
        self._journal.begin()
        for seat in self._seats.values():
            if remit.account(seat.session.account):
                seat.session.receipts.forget(player)

    def lose_to_others(self, lost: Mapping[str, int]) -> None:
        """Other nodes own these buckets (epochs by name): what they hold is theirs now."""
        moved = {session.id: session.scenes for session in self._world.lose(lost)}
        for name, epoch in lost.items():
            seat = self._seats.get(name.removeprefix("session."))
            if seat is not None and seat.session.diary.book.epoch == epoch:
                moved.setdefault(seat.session.id, seat.session.scenes)
        for name, scenes in moved.items():
            seat = self._seats.pop(name)
            if seat.end is not None:
                seat.end.cancel()
            self._journal.begin()
            seat.session.outbox.withdraw()
            seat.session.part()
            self._admission.leave(seat.session.account, seat.address)
            self._tally.count("sessions_moved")
            task = asyncio.get_running_loop().create_task(self._send_on(name, seat, scenes))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_on(self, name: str, seat: Seat, scenes: Iterable[str]) -> None:
        """Tell the client of a session that went to another node where to go."""
        where = Elsewhere("", "")
        with contextlib.suppress(StoreDown):
            # A token that we gave last may never have been kept, and then nobody was told of it.
            token = await self._journal.store.peek(f"session.{name}", "token")
            if token is None or read_token(token) not in (seat.digest, seat.shown):
                seat.on_parted(None)  # it was taken up there
                return
            found = await self._world.holders(scenes)
            where = next((other for other in found if other is not None), where)
        ticket = ""
        if self.tickets is not None and seat.on_parted is not _nobody_there:
            session = seat.session
            ticket = await self.tickets.for_session(session.player, name, session.grant)
        seat.on_parted(SceneMoved(where.url, ticket, 0, where.node))

    def keep(self) -> None:
        """See that the store does not forget who is here. Call about once a second."""
        store, flow = self._journal.store, self._settings.flow
        if not store.survives or time.monotonic() - self._kept_at < flow.resume_s / 4:
            return
        self._kept_at = time.monotonic()
        for seat in self._seats.values():
            if not seat.session.away:
                self._journal.begin()
                self._keep(seat.session.diary.book)

    def close(self) -> None:
        """The server goes, and all sessions with it that the store does not keep."""
        for seat in list(self._seats.values()):
            if not self._journal.store.survives:
                self.end(seat.session)
            elif seat.end is not None:
                seat.end.cancel()

    def _session(
        self, player: str, name: str, says: TokenBucket, outbox: Outbox, diary: Diary
    ) -> Session:
        world, settings = self._world, self._settings
        return Session(player, name, outbox, world, settings, says, self._tally, diary)

    async def _read(self, name: str, token: bytes | None) -> Session | None:
        """Take a session over that is not here. See `adopt`."""
        expected = None if token is None else ("token", token)
        try:
            held = await self._journal.store.claim(
                f"session.{name}", lease=False, expected=expected
            )
        except Changed:
            return None
        assert not isinstance(held, Elsewhere)
        book = Book(f"session.{name}", self._journal, held)
        page = book.take("person").get("")
        if page is None:
            return None
        person, diary = read_person(page), Diary(book)
        says = self._admission.enter(person.player, person.address, adopted=True)
        self._journal.begin()
        self._keep(book)
        digest = diary.kept_token()
        outbox = Outbox(None, self._settings, self._tally, self._journal)
        session = self._session(person.player, person.name, says, outbox, diary)
        seat = Seat(session, person.address, _nobody_there, digest)
        self._seats[name] = seat
        self._wait_for_owner(seat)
        self._tally.count("sessions_adopted")
        return session

    def _wait_for_owner(self, seat: Seat) -> None:
        seat.on_parted = _nobody_there  # a seat holds on to no connection
        loop, flow = asyncio.get_running_loop(), self._settings.flow
        seat.end = loop.call_later(flow.resume_s, self.end, seat.session)

    def _keep(self, book: Book) -> None:
        """Let the store forget a session a while after this."""
        if self._journal.store.survives:
            book.keep(max(self._settings.flow.resume_s * 1.5, 1.0))

    def _end_longest_away(self, player: str) -> None:
        away = [
            (seat.end.when(), seat.session.id)
            for seat in self._seats.values()
            if seat.end is not None and seat.session.account == player
        ]
        if away:
            self.end(self._seats[min(away)[1]].session)


def _nobody_there(moved: SceneMoved | None) -> None:
    """There is no connection to tell."""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
