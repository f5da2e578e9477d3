"""The game port: a WebSocket server for players."""

import asyncio
import contextlib
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any
from typing import cast as cast_type

import msgspec
import structlog
from websockets.asyncio.server import Server, ServerConnection, serve

from engine.ticket import Ticket
from gameserver.access import LOOPBACK
from gameserver.budgets import Budgets, Purse, account_of
from gameserver.connection import Connection, House
from gameserver.equipment import Equipment
from gameserver.guards import GuardedConnection, Handshakes
from gameserver.handshake import SUBPROTOCOLS, Doorman, choose_framing
from gameserver.households import Households
from gameserver.inspection import InspectedPrompt, Inspector, inspected
from gameserver.ledger import OUTBOX
from gameserver.messages import Notice
from gameserver.mqtt.choose import choose_bridge
from gameserver.mqtt.heir import Heir
from gameserver.nodes.card import card_of
from gameserver.nodes.neighbours import Neighbours
from gameserver.nodes.placement import Placement
from gameserver.nodes.tickets import Tickets
from gameserver.overload.overload import Overload
from gameserver.protocol import FEATURES, Refusal
from gameserver.relay.carriage import Junction
from gameserver.relay.passage import Passages
from gameserver.relay.relay import Relay
from gameserver.rounds import Rounds
from gameserver.safety import Safety
from gameserver.sessions import Sessions
from gameserver.settings import Settings
from gameserver.stores.journal import Book, Journal
from gameserver.stores.lease import Leases
from gameserver.stores.memory import MemoryStore
from gameserver.stores.store import Holding, SharedStore, Store, StoreDown, StoreError
from gameserver.tally import Tally
from gameserver.tenants import EVERYTHING, Remit
from gameserver.turnstile import Turnstile
from gameserver.world import World
from npc.cast import Cast, OpenScene

_INSPECTED_TURNS = 300
_SWEEP_S = 1.0
_ROUND_S = 0.1  # short, so that the pings of thousands are no jolt
_TURN_POLL_S = 0.02
_ENDING_S = 2.0  # an engine that takes longer to confirm the end of a turn is not waited for

_log = structlog.get_logger("troupe.game")


class GameServer:
    """Serves the scenes of a cast to players.

    Attributes:
        port: that is listened on; 0 before `start`.
        inspector: looks into the world, for the console.
        safety: its rules about words.
        budgets: what may be generated.
    """

    def __init__(
        self,
        cast: Cast,
        settings: Settings,
        *,
        inspect: bool = False,
        store: Store | None = None,
        equipment: Equipment | None = None,
        households: Households | None = None,
    ) -> None:
        """
        Args:
            inspect: keep the prompts of the latest turns, players' words included.
            store: where worlds and sessions are kept, opened; None: in memory.
            equipment: what is made of the settings, if it is made already.
            households: what clients of one address share, if others than ours share it, too.
        """
        self.port = 0
        self._settings = settings
        self._engine = cast.engine
        self._scenes = cast.scenes
        self._tally = Tally()
        self.safety = Safety(settings.safety, self._tally, scripted=cast.engine.scripted)
        self.budgets = Budgets(
            settings.budgets,
            self._tally,
            tenants=settings.tenants,
            fair_turns=settings.flow.fair_turns,
        )
        self._overload = Overload(
            settings.overload,
            settings.flow,
            settings.replies.priorities,
            cast.engine,
            self._tally,
        )
        self._overload.on_change = self._tell_all
        self._equipment = equipment or Equipment.of(settings)
        self._prompts: OrderedDict[str, InspectedPrompt] = OrderedDict()
        self._handshakes = Handshakes(settings.guards.handshakes, settings.guards.handshake_age_s)
        self._doorman = Doorman(settings, self._tally, nodes=store is not None and store.shared)
        self._journal = Journal(store or MemoryStore(), self._tally)
        self._world = World(
            cast,
            settings,
            self._tally,
            self.safety,
            self.budgets,
            self._overload,
            self._journal,
            cancel=cast.engine.cancel,
            on_prompt=self._keep_prompt if inspect else None,
        )
        prompts = self._prompts if inspect else None
        self.inspector = Inspector(self._world, prompts, cast.engine.tokenizer, self.budgets)
        self._sessions = Sessions(self._world, settings, self._tally)
        self._world.adopt_sessions = self._sessions.adopt_all
        self._journal.on_commit = self._world.keep
        self._journal.on_lost = self._sessions.lose_to_others
        self._turnstile = Turnstile(settings.guards, self._tally)
        guards = settings.guards
        self._round_s = min(_ROUND_S, guards.ping_interval_s / 4, guards.ping_timeout_s / 4)
        self._rounds = Rounds[Connection](time.monotonic(), self._round_s)
        self._neighbours: Neighbours | None = None
        if store is not None and store.shared:
            shared = cast_type(SharedStore, store)
            self._world.leases = Leases(shared, self._journal, settings.store.lease_s, self._tally)
            self._world.leases.on_late = self._world.freeze
            self._world.placement = Placement(shared, settings.node, settings.nodes)
            self._world.leases.on_cards = self._world.placement.update
            self._sessions.tickets = Tickets(shared, settings.nodes.ticket_s, self._tally)
            self._world.leases.card = partial(card_of, self._world, settings)
            junction = Junction(
                Passages(shared), self._world.placement, self._sessions, settings, self._tally
            )
            carries = settings.nodes.relay and self._sessions.resume_ms
            self._neighbours = Neighbours(
                settings,
                self._sessions.tickets,
                junction.passages,
                Relay(junction) if carries else None,
            )
        features = tuple(f for f in FEATURES if f != "resume" or self._sessions.resume_ms)
        broker = self._equipment.broker
        self._bridge = choose_bridge(
            broker, settings, self._journal, self._tally, self._world.reopen
        )
        self._heir = Heir(partial(self._world.open_kept, OUTBOX), settings.store.lease_s)
        if self._bridge is not None:
            self._world.on_open = self._bridge.follow
            self._world.on_gone = self._bridge.unfollow
            if self._world.leases is not None:
                self._world.leases.on_cards = self._see_nodes
        self._house = House(
            settings,
            self._world,
            self._sessions,
            self._journal,
            _announced(settings),
            features,
            self._tally,
            self.safety,
            self._equipment.access,
            self._equipment.proxies,
            households or Households(settings.limits, settings.guards),
            self._overload,
            self._turnstile,
            self._rounds,
            self._neighbours,
        )
        self._connections: set[Connection] = set()
        self._server: Server | None = None
        self._caring: list[asyncio.Task[None]] = []
        self._own_book: Book | None = None
        self._spent = b""

    @property
    def prompts(self) -> Mapping[str, InspectedPrompt]:
        """Prompts of the latest turns by turn id, if they are to be inspected."""
        return self._prompts

    async def start(self) -> None:
        """Listen. Raises `OSError` if the port cannot be had."""
        settings, guards = self._settings, self._settings.guards
        self._journal.start()
        if self._equipment.access.open and settings.host not in LOOPBACK:
            _log.warning("no keys are set: whoever reaches the game port may play as anybody")
        if self._world.leases is not None:
            await self._world.leases.start()
        await self._recall_budgets()
        self._overload.start()
        # One line per bad client would be a weapon; the counters tell.
        logger = logging.getLogger("troupe.websockets")
        logger.setLevel(logging.CRITICAL)
        connection = partial(
            GuardedConnection, settings=settings, handshakes=self._handshakes, tally=self._tally
        )
        self._server = await serve(
            self._serve,
            settings.host,
            settings.port,
            create_connection=connection,  # type: ignore[arg-type]
            ssl=self._equipment.tls,
            process_request=self._doorman.judge,
            subprotocols=SUBPROTOCOLS,
            select_subprotocol=choose_framing,
            compression=None,
            server_header=None,
            open_timeout=guards.open_timeout_s,
            close_timeout=guards.close_timeout_s,
            ping_interval=None,  # see GuardedConnection.check_alive
            max_size=settings.limits.frame_bytes,
            max_queue=guards.inbound_messages,
            write_limit=guards.write_bytes,
            logger=logger,
            backlog=guards.backlog,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        self._caring = [loop.create_task(self._sweep()), loop.create_task(self._make_rounds())]
        if self._bridge is not None:
            self._bridge.start()
            with contextlib.suppress(StoreDown, Refusal):  # then they are opened by who comes
                await self._world.open_kept(OUTBOX)

    def purse_of(self, stream: str, npc: str) -> Purse:
        """Who pays for what an NPC of a running scene thinks; the scene need not run any more."""
        pack = self._world.tenants.pack_of(stream, self._scenes)
        mine = self.budgets.of(self._world.tenants.owner(pack))
        return Purse(mine, account_of(pack, npc))

    def _see_nodes(self, cards: Mapping[str, bytes]) -> None:
        """These nodes live."""
        assert self._world.placement is not None
        self._world.placement.update(cards)
        self._heir.see(cards)

    def hindrance(self) -> str:
        """Why nobody can play here just now; "" if one can."""
        return "the store does not answer; scenes stand still" if self._journal.late else ""

    def adopt(self, scene: OpenScene) -> None:
        """Let the running scenes of a pack follow a new version of it."""
        self._world.adopt(scene)

    def halt(self) -> None:
        """The kill switch: every reply of the engine, also of the API, ends within one step, and
        none begins until `release`. Idempotent.
        """
        if not self._engine.halted:
            self._tally.count("halts")
            _log.warning("all generation is halted")
        self._engine.halt()
        self._world.halt()

    def release(self) -> None:
        """Let NPCs speak again. Idempotent."""
        if self._engine.halted:
            _log.warning("generation goes on")
        self._engine.release()

    def remit(self, game: str | None) -> Remit:
        """What a game, or the house, may see of all that is here now; None: all of it."""
        return self._world.remit(game)

    def forget(self, player: str, npc: str | None = None, remit: Remit = EVERYTHING) -> None:
        """Forget what a player has said, to all NPCs or one of them: in running scenes, and in the
        prompts that are kept for inspection.
        """
        self._world.forget(player, npc, remit)
        self._sessions.forget(player, remit)
        for turn, prompt in list(self._prompts.items()):
            if remit.scene(prompt.scene):
                del self._prompts[turn]

    async def forget_at_rest(
        self, player: str, npc: str | None = None, remit: Remit = EVERYTHING
    ) -> None:
        """The same in scenes that do not run, as far as no other node has them."""
        await self._world.forget_at_rest(player, npc, remit)

    async def drain(self) -> None:
        """Take nobody in any more, end all speech, send everybody away. Idempotent."""
        assert self._server is not None
        self._world.draining = self._doorman.draining = True
        self._overload.stop()
        if self._world.leases is not None:
            await self._world.leases.announce()
        self._server.close(close_connections=False)
        self._handshakes.turn_all_away()
        await self._until_silent(self._settings.flow.drain_s)
        self._world.close()
        await self._until_silent(_ENDING_S)
        self._world.abandon()
        flow = self._settings.flow
        spread_s = max(flow.reconnect_s, len(self._connections) / flow.reconnects_per_s)
        await asyncio.gather(
            *(
                connection.send_away(random.randint(0, int(spread_s * 1000)))
                for connection in self._connections
            )
        )
        self._sessions.close()
        self._keep_budgets()
        self._heir.stop()
        if self._bridge is not None:
            await self._bridge.stop()  # while the journal still takes what has gone out
        await self._journal.stop()
        if self._world.leases is not None:
            await self._world.leases.stop()

    async def close(self) -> None:
        """Drain, and stop. Idempotent."""
        if self._server is None:
            return
        await self.drain()
        await self._server.wait_closed()
        for task in self._caring:
            task.cancel()

    def gauges(self) -> dict[str, float]:
        """All counters by name, and what is connected and running just now."""
        return {
            **self._tally.gauges(),
            **self._world.gauges(),
            **self._sessions.gauges(),
            **self._journal.gauges(),
            **self.budgets.gauges(),
            **self._overload.gauges(),
            **({} if self._bridge is None else self._bridge.gauges()),
            **({} if self._neighbours is None else self._neighbours.gauges()),
            "halted": self._engine.halted,
            "connections": len(self._connections),
            "handshakes": len(self._handshakes),
            "identifies_waiting": len(self._turnstile),
        }

    def _tell_all(self, notice: Notice) -> None:
        for connection in self._connections:
            connection.tell(notice)

    async def _serve(self, socket: ServerConnection) -> None:
        assert isinstance(socket, GuardedConnection)
        self._handshakes.leave(socket)
        connection = Connection(socket, self._house)
        self._connections.add(connection)
        self._rounds.look(connection, time.monotonic())
        self._tally.count("connections_opened")
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._rounds.forget(connection)

    async def _make_rounds(self) -> None:
        """Look after each connection when it is time to."""
        while True:
            await asyncio.sleep(self._round_s)
            now = time.monotonic()
            for connection in self._rounds.due(now):
                try:
                    again = connection.check(now)
                except Exception:  # the others are looked at all the same
                    _log.exception("a client could not be looked after")
                    again = now + _SWEEP_S
                if again is not None:
                    self._rounds.look(connection, again)

    async def _sweep(self) -> None:
        """Look after the house about once a second."""
        guards = self._settings.guards
        period = min(_SWEEP_S, guards.ping_interval_s / 4, guards.ping_timeout_s / 4)
        while True:
            await asyncio.sleep(period)
            for duty in (self._world.forget_idle, self._sessions.keep, self._keep_budgets):
                try:
                    duty()
                except Exception:  # the other duties are done all the same, and this one again
                    _log.exception("the house could not be looked after")

    async def _recall_budgets(self) -> None:
        """Go on with the accounts of an earlier process of this name."""
        bucket = f"node.{self._settings.node}"
        try:
            held = await self._journal.store.claim(bucket, lease=False)
        except StoreDown as error:
            raise StoreError(str(error)) from error
        assert isinstance(held, Holding)
        self._own_book = Book(bucket, self._journal, held)
        if self._journal.store.survives:
            self._journal.proof = self._own_book
        kept = self._own_book.take("budgets").get("")
        if kept is not None:
            self.budgets.restore(kept)

    def _keep_budgets(self) -> None:
        """Write the accounts down if they have changed: a crash may take the last second."""
        spent = self.budgets.snapshot()
        if self._journal.store.survives and self._own_book is not None and spent != self._spent:
            self._spent = spent
            self._journal.begin()
            self._own_book.put("budgets", spent)

    async def _until_silent(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        # Polled, because it happens twice in the life of a server.
        while self._world.is_speaking and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_TURN_POLL_S)

    def _keep_prompt(self, scene: str, turn: str, ticket: Ticket) -> None:
        self._prompts[turn] = inspected(scene, ticket, self._engine.tokenizer)
        if len(self._prompts) > _INSPECTED_TURNS:
            self._prompts.popitem(last=False)


def _announced(settings: Settings) -> dict[str, Any]:
    """The limits as clients are told them."""
    limits: dict[str, Any] = msgspec.to_builtins(settings.limits)
    return {
        **limits,
        "say_tokens": settings.replies.line_tokens,
        "open_timeout_ms": int(settings.guards.open_timeout_s * 1000),
        "identify_timeout_ms": int(settings.guards.identify_timeout_s * 1000),
    }
