"""The way of what arrives to its scene.

A scene is the single writer of what becomes of it. It gets it if it runs here, or has run and
nobody has it: then it is opened. That of a scene which another node has is passed on. All of it is
acknowledged when the store has what became of it, see `Reception`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog

from gameserver.mqtt.arrivals import Arrival, Arrivals, Delivery, Unusable
from gameserver.mqtt.ear import Ear
from gameserver.mqtt.incoming import Incoming, Reception
from gameserver.mqtt.mirror import Mirror
from gameserver.mqtt.outgoing import Parcel
from gameserver.mqtt.topics import Topics
from gameserver.protocol import Refusal
from gameserver.settings import Settings
from gameserver.stores.journal import Journal
from gameserver.stores.store import StoreDown
from gameserver.tally import Tally

#: Events handed to scenes before others on the loop have their turn.
_AT_ONCE = 32
#: How often it is looked whether a store that takes nothing is back.
_LOOK_S = 0.1

_log = structlog.get_logger("troupe.mqtt")


class Intake:
    """See above."""

    def __init__(
        self,
        topics: Topics,
        settings: Settings,
        journal: Journal,
        tally: Tally,
        ears: Mapping[str, Ear],
        mirror: Mirror,
        *,
        reopen: Callable[[str], Awaitable[bool]],
        add: Callable[[Parcel], None],
        stray: Callable[[str], None],
    ) -> None:
        """
        Args:
            ears: the scenes that run here, as they come and go.
            mirror: takes in the world state.
            reopen: opens a scene that does not run here, if there is one of this id in the store
                and no other node has it; returns whether one has. Raises `StoreDown` or `Refusal`.
            add: takes what is to be passed on.
            stray: is told of a scene that does not run here, for which something came.
        """
        assert settings.mqtt is not None
        self._wait_s = settings.store.wait_s
        self._node = settings.node
        self._journal = journal
        self._tally = tally
        self._ears = ears
        self._mirror = mirror
        self._reopen = reopen
        self._add = add
        self._stray = stray
        self._arrivals = Arrivals(topics, settings.limits)
        self._reception = Reception(settings.mqtt.queue, journal, tally)
        self._arrived = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Messages that no scene has got yet."""
        return len(self._reception)

    @property
    def unacknowledged(self) -> int:
        """Those that a scene has, and the store not yet."""
        return self._reception.unacknowledged

    def lose(self, scene: str) -> None:
        """Another node has a scene: what was not kept of it is for that one."""
        for one in self._reception.undo(scene):
            self._pass_on(one)

    def take(self, delivery: Delivery) -> None:
        """Something has arrived."""
        self._tally.count("mqtt_in")
        arrival = None
        try:
            arrival = self._arrivals.read(delivery)
        except Unusable as why:
            self._tally.count(f"mqtt_dropped_in_{why.cause}")
        self._reception.add(delivery, arrival)
        self._arrived.set()

    async def run(self) -> None:
        """Give scenes what has arrived, when the store can take what becomes of it."""
        while True:
            await self._arrived.wait()
            for _ in range(min(_AT_ONCE, len(self._reception))):
                while self._journal.late or self._journal.waiting_s > self._wait_s:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)
                one = self._reception.take()
                try:
                    await self._deliver(one)
                except Exception:  # whatever one message does, the others are delivered
                    self._tally.count("mqtt_dropped_in_internal")
                    _log.exception("a world event was not taken", topic=one.delivery.topic)
                    self._reception.done(one, self._journal.written)
            if not self._reception:
                self._arrived.clear()
            await asyncio.sleep(0)

    async def _deliver(self, one: Incoming) -> None:
        """Give one to its scene, wherever that is."""
        arrival, elsewhere = one.arrival, False
        if one.delivery.qos and arrival is not None and not arrival.retained:
            elsewhere = await self._look_for(arrival.address.scene)
        if elsewhere and arrival is not None and _may_pass(arrival):
            self._stray(arrival.address.scene)
            self._pass_on(one)
            return
        if arrival is not None:
            ear = self._ears.get(arrival.address.scene)
            if ear is None:
                self._stray(arrival.address.scene)
                self._tally.count("mqtt_dropped_in_no_scene")
            else:
                self._tell(ear, arrival)
        self._reception.done(one, self._journal.written)

    async def _look_for(self, scene: str) -> bool:
        """Whether another node has a scene; one that has run and that nobody has is opened here."""
        while scene not in self._ears:
            try:
                return await self._reopen(scene)
            except (StoreDown, Refusal):
                await asyncio.sleep(_LOOK_S)
        return False

    def _pass_on(self, one: Incoming) -> None:
        """Let another node have what came here for a scene of its; once, or it might go round."""
        told, arrival = one.delivery, one.arrival
        assert arrival is not None
        if told.via:
            self._tally.count("mqtt_dropped_in_no_scene")
            self._reception.done(one, 0)
            return
        self._tally.count("mqtt_passed_on")
        address = arrival.address
        parcel = Parcel(
            told.topic,
            told.payload,
            eid=told.eid,
            about=address.name if address.kind == "result" else "",
            via=self._node,
            since=time.monotonic(),
            done=partial(self._reception.done, one, 0),
        )
        self._add(parcel)

    def _tell(self, ear: Ear, arrival: Arrival) -> None:
        address, actor = arrival.address, ear.actor
        self._journal.begin()
        if arrival.known_as and ear.came(arrival.known_as):
            self._tally.count("mqtt_dropped_in_duplicate")
            return
        try:
            match address.kind:
                case "event":
                    actor.happenings.happen(address.name, arrival.data)
                case "state":
                    actor.happenings.become(address.name, arrival.data)
                case "result":
                    actor.happenings.settle(address.name, arrival.data.ok, arrival.data.data)
                case "entity":
                    self._mirror.take(arrival)
        except (Refusal, Unusable) as why:
            cause = why.code if isinstance(why, Refusal) else why.cause
            self._tally.count(f"mqtt_dropped_in_{cause}")


def _may_pass(arrival: Arrival) -> bool:
    """Whether the other node may get something from us: it may have it from the broker, too, and
    must know that. Of how things are it has what is newer."""
    return arrival.address.kind in ("event", "result") and bool(arrival.known_as)
