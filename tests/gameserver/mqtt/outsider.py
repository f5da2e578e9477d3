"""Somebody else at the broker: a game's other systems."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.gameserver.mqtt.mosquitto import Mosquitto

ROOT = "troupe/v1"


class Outsider:
    """Publishes, and keeps what everybody publishes."""

    def __init__(self, client: aiomqtt.Client) -> None:
        self.client = client
        self.heard: list[aiomqtt.Message] = []

    async def tell(self, topic: str, data: Any = None, *, eid: str = "", **more: Any) -> None:
        """Publish JSON, or bytes as they are."""
        payload = data if isinstance(data, bytes) else json.dumps(data).encode()
        properties = Properties(PacketTypes.PUBLISH)
        if eid:
            properties.UserProperty = [("eid", eid)]
        more.setdefault("qos", 1)
        await self.client.publish(f"{ROOT}/{topic}", payload, properties=properties, **more)

    def about(self, topic: str) -> list[Any]:
        """What was published on a topic."""
        wanted = f"{ROOT}/{topic}"
        return [json.loads(m.payload or b"null") for m in self.heard if str(m.topic) == wanted]

    async def listen(self) -> None:
        """Keep what comes."""
        async for message in self.client.messages:
            self.heard.append(message)


@asynccontextmanager
async def outsider(
    broker: Mosquitto, topic: str = f"{ROOT}/#", *, session: str = ""
) -> AsyncIterator[Outsider]:
    """Connected, and subscribed to everything below our root; in a session that lasts, if it has a
    name."""
    options: dict[str, Any] = {"protocol": aiomqtt.ProtocolVersion.V5}
    if session:
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = 60
        options |= {"identifier": session, "clean_start": False, "properties": lasting}
    async with aiomqtt.Client("127.0.0.1", broker.port, **options) as client:
        one = Outsider(client)
        await client.subscribe(topic, qos=1)
        listening = asyncio.create_task(one.listen())
        try:
            yield one
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
