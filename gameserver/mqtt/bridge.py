"""Between the running scenes of this node and a broker.

The bridge has an `Ear` in each scene, and tells what the store has. What arrives goes through an
`Intake` to the scenes.

While the broker is away dialogue goes on, and `Outgoing` keeps what is to be told.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from itertools import islice

import msgspec
import structlog

from gameserver.mqtt.broker import Broker, BrokerLost, Connection
from gameserver.mqtt.choose import OFFLINE, ONLINE
from gameserver.mqtt.ear import About, Ear
from gameserver.mqtt.intake import Intake
from gameserver.mqtt.mirror import Mirror
from gameserver.mqtt.outgoing import Outgoing, Parcel
from gameserver.mqtt.topics import Topics
from gameserver.scene_actor import SceneActor
from gameserver.settings import Settings
from gameserver.stores.journal import Journal
from gameserver.streams import Latest
from gameserver.tally import Tally

#: Events that are published together: a round trip each would be slow.
_BATCH = 16
#: How often it is looked whether all is done, at the end.
_LOOK_S = 0.01
#: Somebody else with our client id drives us out, and we them. Each time the wait grows by so many
#: steps; after so many times the other one may have the id for itself.
_DRIVEN_OUT_STEPS = 2
_DRIVEN_OUT_MOST = 5
#: Not every broker tells why: so many connections in a row that do not last are named.
_SUSPICIOUS = 3
#: After so long a connection earlier troubles are forgotten.
_SETTLED_S = 60.0

_log = structlog.get_logger("troupe.mqtt")


class Bridge:
    """Follows scenes, and carries messages both ways until it is stopped.

    Attributes:
        up: whether there is a connection.
        gave_up: whether another client with the same id has the broker for good.
    """

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        settings: Settings,
        journal: Journal,
        tally: Tally,
        sleep: Callable[[float], "asyncio.Future[None]"] | None = None,
        *,
        reopen: Callable[[str], Awaitable[bool]],
    ) -> None:
        """`sleep` waits for some seconds; tests bring their own. For `reopen` see `Intake`."""
        assert settings.mqtt is not None
        self.up = False
        self.gave_up = False
        self._broker = broker
        self._topics = topics
        self._settings = settings.mqtt
        self._node = settings.node
        self._journal = journal
        self._tally = tally
        self._sleep = sleep or asyncio.sleep
        self._outgoing = Outgoing(settings.mqtt.queue, tally)
        self._mirror = Mirror(topics)
        self._mirror_at = 0.0  # monotonic time from which on it may tell again
        self._mirror_timer: asyncio.TimerHandle | None = None
        self._ears: dict[str, Ear] = {}
        self._subscribed: set[str] = set()
        self._unasked = False  # whether subscriptions are not those of the scenes
        self._intake = Intake(
            topics,
            settings,
            journal,
            tally,
            self._ears,
            self._mirror,
            reopen=reopen,
            add=self._add,
            stray=self._stray,
        )
        self._something = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to connect, and go on by itself."""
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._intake.run())]

    async def stop(self) -> None:
        """Publish what there is, acknowledge what was taken, and say that this node is gone, for a
        moment, and end. Idempotent."""
        if self.up:
            self._something.set()
            deadline = time.monotonic() + self._settings.timeout_s
            while (  # noqa: ASYNC110
                (self._outgoing or self._intake.unacknowledged)
                and self.up
                and time.monotonic() < deadline
            ):
                await asyncio.sleep(_LOOK_S)
        if self._mirror_timer is not None:
            self._mirror_timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    # What runs here

    def follow(self, actor: SceneActor) -> None:
        """A scene runs here from now on."""
        self._ears[actor.stream.id] = ear = Ear(
            actor,
            self._topics,
            self._settings,
            self._journal,
            add=self._add,
            mark=self._mark,
            stirred=self._stirred,
        )
        self._mirror.follow(actor.state)
        self._unasked = True
        ear.mark_all()
        self._something.set()

    def unfollow(self, actor: SceneActor) -> None:
        """A scene does not run here any more."""
        scene, book = actor.stream.id, actor.ledger.book
        ear = self._ears.get(scene)
        if ear is None or ear.actor is not actor:
            return
        ear.close()
        del self._ears[scene]
        self._outgoing.unmark(scene)
        self._mirror.unfollow(scene)
        if book.lost:
            self._outgoing.disown(scene)
            self._intake.lose(scene)
        self._unasked = True
        self._something.set()

    def gauges(self) -> dict[str, float]:
        """How it stands."""
        return {
            "mqtt_up": self.up,
            "mqtt_gave_up": self.gave_up,
            "mqtt_waiting_in": self._intake.waiting,
            "mqtt_unacknowledged": self._intake.unacknowledged,
            "mqtt_waiting_out": len(self._outgoing),
        }

    # Out

    def _add(self, parcel: Parcel) -> None:
        self._outgoing.add(parcel)
        self._something.set()

    def _mark(self, latest: Latest) -> None:
        self._outgoing.mark(latest)
        self._something.set()

    def _stirred(self, ear: Ear) -> None:
        if self._mirror.has_news(ear.actor.stream.id):
            self._something.set()

    @property
    def _durable(self) -> int:
        """The newest unit that may be told; -1 for none. It is looked again when there is more."""
        journal = self._journal
        if journal.late or journal.durable < journal.written:
            journal.when_opened(self._something.set)
        return -1 if journal.late else journal.durable

    async def _send(self, connection: Connection) -> None:
        """Publish everything there is. What is not acknowledged stays."""
        await self._ask_for(connection)
        self._journal.begin()
        self._outgoing.expire(time.monotonic() - self._settings.keep_s)
        while events := self._outgoing.events(_BATCH, self._durable):
            await connection.publish(events)
            self._journal.begin()
            self._outgoing.sent(events)
            self._tally.count("mqtt_out", len(events))
        while (latest := self._outgoing.take_changed()) is not None:
            try:
                await connection.publish([self._state(latest)])
            except BrokerLost:
                self._outgoing.mark(latest)
                raise
            self._tally.count("mqtt_out")
        await self._send_state(connection)

    async def _send_state(self, connection: Connection) -> None:
        """Publish what has changed of the world state, at its pace."""
        if not self._mirror.changed:
            return
        now = time.monotonic()
        if now < self._mirror_at:
            if self._mirror_timer is None:
                loop, wait_s = asyncio.get_running_loop(), self._mirror_at - now
                self._mirror_timer = loop.call_later(wait_s, self._look_at_state)
            return
        self._mirror_at = now + self._settings.state_s
        news = self._mirror.news(self._durable)
        while parcels := list(islice(news, _BATCH)):
            await connection.publish(parcels)
            self._tally.count("mqtt_out", len(parcels))

    def _look_at_state(self) -> None:
        self._mirror_timer = None
        self._something.set()

    def _state(self, latest: Latest) -> Parcel:
        message = latest.message().json
        about = msgspec.json.decode(message, type=About)
        return Parcel(self._topics.npc(about.st, about.d.npc, "state"), message, retained=True)

    def _stray(self, scene: str) -> None:
        """The broker sends us what is for a scene that does not run here: an earlier process has
        asked for it."""
        if scene not in self._ears:
            self._subscribed.add(scene)
            self._unasked = True
            self._something.set()

    async def _ask_for(self, connection: Connection) -> None:
        """Let subscriptions follow the scenes that run here."""
        if not self._unasked:
            return
        self._unasked = False
        for scene in self._subscribed - self._ears.keys():
            self._subscribed.discard(scene)
            await connection.unsubscribe(self._topics.into(scene))
        for scene in self._ears.keys() - self._subscribed:
            self._subscribed.add(scene)
            await connection.subscribe(self._topics.into(scene))

    # The connection

    async def _run(self) -> None:
        failures = brief = driven_out = 0
        while True:
            began = time.monotonic()
            try:
                async with self._broker.connect(self._intake.take) as connection:
                    await self._serve(connection)
            except BrokerLost as lost:
                why = lost
            except Exception as error:  # a bridge that ends for good helps nobody
                _log.exception("the bridge has stumbled")
                why = BrokerLost(repr(error))
            finally:
                was_up, self.up = self.up, False
            if time.monotonic() - began >= _SETTLED_S:
                failures = brief = driven_out = 0
            failures += 1
            brief = brief + 1 if was_up else 0
            self._tally.count("mqtt_lost")
            if was_up or failures == 1:  # once, and not with every try
                _log.warning("no connection to the broker; trying on", problem=str(why))
            if brief == _SUSPICIOUS:
                self._tally.count("mqtt_brief")
                _log.error(
                    "connections end soon after they begin: has another client our client_id?"
                )
            if why.taken_over:
                driven_out += 1
                self._tally.count("mqtt_taken_over")
                _log.error("another client has our client_id: each node needs one of its own")
                if driven_out > _DRIVEN_OUT_MOST:
                    self.gave_up = True
                    _log.error("this node stays away from the broker")
                    return
            await self._sleep(self._back_off(max(failures, _DRIVEN_OUT_STEPS * driven_out)))

    async def _serve(self, connection: Connection) -> None:
        """Carry messages until the connection is lost; raises `BrokerLost` then."""
        self._unasked = True
        self._subscribed.clear()  # the broker may have forgotten; and what is retained comes again
        status = self._topics.node(self._node)
        await connection.publish([Parcel(status, ONLINE, retained=True)])
        self.up = True
        _log.info("connected to the broker")
        for ear in self._ears.values():
            ear.mark_all()
        self._mirror.renew()
        over = asyncio.create_task(connection.over())
        try:
            while True:
                self._something.clear()
                await self._send(connection)
                waiting = asyncio.create_task(self._something.wait())
                await asyncio.wait({over, waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if over.done():
                    over.result()
        except asyncio.CancelledError:  # we go, and say so ourselves: the will is for crashes
            with contextlib.suppress(BrokerLost):
                await connection.publish([Parcel(status, OFFLINE, retained=True)])
            raise
        finally:
            over.cancel()

    def _back_off(self, failures: int) -> float:
        """Seconds to the next try: anything up to twice as much each time, so that nodes that lost
        their broker together do not come back together."""
        settings = self._settings
        most = min(settings.reconnect_s * 2.0 ** min(failures - 1, 16), settings.reconnect_most_s)
        return random.uniform(most / 4, most)
