"""The broker as the bridge sees it, and aiomqtt behind it: the only file that knows the library.

What is peculiar about the library (2.5): by itself it acknowledges a message when it arrives,
before anybody has handled it. The client that it wraps (paho) can leave that to us, but the library
does not let that through: `_paho` reaches for it, and is the only place that does. It does not
reconnect, and connects in a thread.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import NoReturn, Protocol

import aiomqtt
from paho.mqtt.client import Client as Paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from gameserver.mqtt.address import BrokerAddress, Login
from gameserver.mqtt.arrivals import Delivery
from gameserver.mqtt.incoming import most_under_way
from gameserver.mqtt.outgoing import Parcel
from gameserver.settings import Limits, MqttSettings

#: Reason code of MQTT 5: another client has come with the same id.
TAKEN_OVER = 0x8E
_EID, _VIA = "eid", "via"
#: Bytes of a packet beside its payload: topic and properties, 64 KiB each.
_AROUND = 128 * 1024
#: A packet of more than so many times the largest payload that is of use is not even sent to us.
_TOO_LARGE = 8


class BrokerLost(Exception):
    """There is no connection, or no more.

    Attributes:
        taken_over: because another client has the same id.
    """

    def __init__(self, problem: str, *, taken_over: bool = False) -> None:
        super().__init__(problem)
        self.taken_over = taken_over


class Connection(Protocol):
    """A connection to the broker. Every method raises `BrokerLost`."""

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Ask for messages, and for what the broker has retained."""

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        """Ask for no more of them."""

    async def publish(self, parcels: Sequence[Parcel]) -> None:
        """Hand messages over, in this order; returns when the broker has all of them."""

    async def over(self) -> NoReturn:
        """Wait until the connection is lost, and raise."""


class Broker(Protocol):
    """Makes connections, one at a time."""

    def connect(self, take: Callable[[Delivery], None]) -> AbstractAsyncContextManager[Connection]:
        """Connect; raises `BrokerLost`. `take` gets what arrives, up to the end of the context."""


class Mqtt5:
    """A broker that speaks MQTT 5."""

    def __init__(
        self,
        address: BrokerAddress,
        login: Login | None,
        client_id: str,
        will: Parcel,
        settings: MqttSettings,
        limits: Limits,
    ) -> None:
        """`will` is published by the broker if we vanish."""
        self._address = address
        self._login = login
        self._client_id = client_id
        self._will = will
        self._settings = settings
        self._largest = _TOO_LARGE * limits.event_bytes + _AROUND

    @asynccontextmanager
    async def connect(self, take: Callable[[Delivery], None]) -> AsyncIterator[Connection]:
        """See `Broker.connect`."""
        client = self._client()
        try:
            await client.__aenter__()
        except aiomqtt.MqttError as error:
            raise _lost(error) from error
        reading = asyncio.create_task(_read(client, take))
        try:
            yield _Connection(client, reading)
        finally:
            with contextlib.suppress(aiomqtt.MqttError):
                await client.__aexit__(None, None, None)
            await asyncio.wait([reading], timeout=self._settings.timeout_s)
            reading.cancel()

    async def examine(self) -> str:
        """What keeps us from the broker; "" if nothing does. Leaves nothing behind there."""
        try:
            async with self._client(visiting=True):
                return ""
        except aiomqtt.MqttError as error:
            return str(error)

    def _client(self, *, visiting: bool = False) -> aiomqtt.Client:
        settings, will = self._settings, self._will
        asked = _properties(PacketTypes.CONNECT)
        asked.SessionExpiryInterval = 0 if visiting else settings.session_s
        asked.ReceiveMaximum = most_under_way(settings.queue)
        asked.MaximumPacketSize = self._largest
        late = _properties(PacketTypes.WILLMESSAGE)
        late.WillDelayInterval = settings.will_delay_s
        quiet = logging.getLogger("troupe.mqtt.library")
        quiet.setLevel(logging.CRITICAL)  # the bridge tells, once
        login = self._login
        client = aiomqtt.Client(
            self._address.host,
            self._address.port,
            username=None if login is None else login.user,
            password=None if login is None else login.password,
            logger=quiet,
            identifier=self._client_id,
            protocol=aiomqtt.ProtocolVersion.V5,
            will=None
            if visiting
            else aiomqtt.Will(will.topic, will.payload, will.qos, will.retained, late),
            timeout=settings.timeout_s,
            keepalive=settings.keepalive_s,
            clean_start=False,
            properties=asked,
            tls_context=ssl.create_default_context() if self._address.encrypted else None,
        )
        _paho(client).manual_ack_set(True)
        return client


class _Connection:
    """See `Connection`."""

    def __init__(self, client: aiomqtt.Client, reading: asyncio.Task[None]) -> None:
        self._client = client
        self._reading = reading

    async def subscribe(self, topics: Sequence[str]) -> None:
        options = SubscribeOptions(qos=1, noLocal=True)
        try:
            answers = await self._client.subscribe([(topic, options) for topic in topics])
        except aiomqtt.MqttError as error:
            raise _lost(error) from error
        if refused := [answer for answer in answers if _value(answer) >= 0x80]:
            raise BrokerLost(f"the broker refuses a subscription: {refused[0]}")

    async def unsubscribe(self, topics: Sequence[str]) -> None:
        try:
            await self._client.unsubscribe(list(topics))
        except aiomqtt.MqttError as error:
            raise _lost(error) from error

    async def publish(self, parcels: Sequence[Parcel]) -> None:
        tasks = [asyncio.create_task(self._publish(parcel)) for parcel in parcels]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, aiomqtt.MqttError):
                raise _lost(result) from result
            if isinstance(result, BaseException):
                raise result

    async def over(self) -> NoReturn:
        await asyncio.wait([self._reading])
        try:
            self._reading.result()
        except aiomqtt.MqttError as error:
            raise _lost(error) from error
        raise BrokerLost("the connection has ended")

    async def _publish(self, parcel: Parcel) -> None:
        properties = _properties(PacketTypes.PUBLISH)
        properties.ContentType = "application/json"
        if named := [(name, v) for name, v in ((_EID, parcel.eid), (_VIA, parcel.via)) if v]:
            properties.UserProperty = named
        if parcel.answers:
            properties.ResponseTopic = parcel.answers
        if parcel.about:
            properties.CorrelationData = parcel.about.encode()
        await self._client.publish(
            parcel.topic, parcel.payload, parcel.qos, parcel.retained, properties
        )


async def _read(client: aiomqtt.Client, take: Callable[[Delivery], None]) -> None:
    async for message in client.messages:
        payload = message.payload if isinstance(message.payload, bytes) else b""
        named: Iterable[tuple[str, str]] = getattr(message.properties, "UserProperty", ())
        properties = dict(reversed([*named]))  # of several of one name the first
        delivery = Delivery(
            str(message.topic),
            payload,
            bool(message.retain),
            eid=properties.get(_EID, ""),
            correlation=getattr(message.properties, "CorrelationData", b""),
            via=properties.get(_VIA, ""),
            qos=message.qos,
            acknowledge=partial(_paho(client).ack, message.mid, message.qos),
        )
        take(delivery)


def _paho(client: aiomqtt.Client) -> Paho:
    """What the library wraps. It calls back and writes in the event loop, as the library has set it
    up, so it may be used there."""
    return client._client


def _properties(kind: int) -> Properties:
    return Properties(kind)  # type: ignore[no-untyped-call]


def _value(code: object) -> int:
    return int(getattr(code, "value", code))  # type: ignore[call-overload, no-any-return]


def _lost(error: aiomqtt.MqttError) -> BrokerLost:
    cause = error if isinstance(error, aiomqtt.MqttCodeError) else error.__cause__
    code = getattr(getattr(cause, "rc", None), "value", None)
    return BrokerLost(str(cause or error), taken_over=code == TAKEN_OVER)
