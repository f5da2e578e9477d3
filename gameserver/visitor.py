"""A player's end of protocol v1, as small as it can be: one connection, one scene."""

import asyncio
import contextlib
import json
import random
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from gameserver.protocol import PATH, SUBPROTOCOL

Message = dict[str, Any]
_NAMED = 12  # scenes of which an error names the ids
_HOPS = 8  # from node to node before nobody is believed any more


class TalkError(Exception):
    """The conversation cannot go on; the message is for the person at the terminal."""


class SceneElsewhere(TalkError):
    """Another node has the scene.

    Attributes:
        url: of that node; empty if nobody knows yet.
        ticket: lets the player in there, once; empty: with the player's own key.
        delay_s: when to go there.
    """

    def __init__(self, moved: Message) -> None:
        self.url: str = moved["url"]
        self.ticket: str = moved["ticket"]
        self.delay_s: float = moved["delay_ms"] / 1000
        where = f"at {self.url}" if self.url else "at another node"
        super().__init__(f"the scene goes on {where}: talk to it there")


@dataclass(slots=True)
class Turn:
    """Speech that runs: the text so far, and how many chunks that is."""

    npc: str
    text: str = ""
    chunks: int = 0


@dataclass(slots=True)
class Room:
    """What a player knows of the scene they are in."""

    title: str
    npcs: dict[str, Message]
    players: dict[str, str]
    turns: dict[str, Turn] = field(default_factory=dict)

    def find_npc(self, name: str) -> str | None:
        """The id of the NPC with this id, name, or beginning of either."""
        wanted = name.lower()
        for test in (str.__eq__, str.startswith):
            for npc in self.npcs.values():
                words = [npc["id"].lower(), npc["name"].lower(), *npc["name"].lower().split()]
                if any(test(word, wanted) for word in words):
                    return str(npc["id"])
        return None


class Visitor:
    """A player's end of protocol v1, for one scene."""

    def __init__(self, socket: ClientConnection, player: str) -> None:
        self._socket = socket
        self._last_id = 0
        self.stream = ""
        self.player = player

    @classmethod
    @contextlib.asynccontextmanager
    async def entered(
        cls, url: str, scene: str | None, player: str, key: str | None = None, *, greet: bool
    ) -> AsyncIterator[tuple["Visitor", Room]]:
        """Connect and enter a scene, the first one there is if None, at whichever node has it.

        Raises:
            TalkError: as `connected` and `join`; or the nodes do not agree who has the scene.
        """
        as_, ticket = _id_for(player), ""
        for _ in range(_HOPS):
            async with cls.connected(url, player, key, as_=as_, ticket=ticket) as visitor:
                try:
                    room = await visitor.join(scene, greet=greet)
                except SceneElsewhere as moved:
                    url, ticket, delay_s = moved.url or url, moved.ticket, moved.delay_s
                else:
                    yield visitor, room
                    return
            await asyncio.sleep(delay_s)
        raise TalkError(f"{_HOPS} nodes in a row say that another one has the scene: try again")

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(
        cls,
        url: str,
        player: str,
        key: str | None = None,
        *,
        as_: str | None = None,
        ticket: str = "",
    ) -> AsyncIterator["Visitor"]:
        """Open a connection, keep it alive, say goodbye at the end. A server that wants one is
        shown the `key`, or the `ticket` that another node gave to the player with the id `as_`.

        Raises:
            TalkError: nobody answers at `url`, or the connection was lost.
        """
        address = url if re.search(r"://[^/]+/.", url) else url.rstrip("/") + PATH
        try:
            async with connect(
                address, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None, proxy=None
            ) as socket:
                visitor = cls(socket, as_ or _id_for(player))
                hello = await visitor._expect("hello")
                beat = asyncio.create_task(visitor._beat(hello["d"]["hb_ms"] / 1000))
                try:
                    await visitor._identify(player, key, ticket)
                    yield visitor
                finally:
                    beat.cancel()
                    # Whatever went wrong, nobody is to wait for our return.
                    with contextlib.suppress(ConnectionClosed):
                        await visitor._send("bye", {})
        except ssl.SSLError as error:
            raise TalkError(
                f"there is no trust in {address} ({error.reason}): SSL_CERT_FILE may name the "
                "certificate of a server of your own"
            ) from error
        except (OSError, TimeoutError) as error:
            raise TalkError(
                f"nobody answers at {address} ({error}): start a server with `troupe serve`, or "
                "name its game port with --url"
            ) from error
        except InvalidURI as error:
            raise TalkError(
                f"{url} is no address of a game port: that begins with ws://, or wss:// if the "
                "server has TLS"
            ) from error
        except InvalidHandshake as error:
            raise TalkError(
                f"{address} is not a Troupe game port ({error}): `troupe serve` prints its address "
                "beside that of the playground"
            ) from error
        except ConnectionClosed as error:
            reason = error.rcvd.code if error.rcvd else "connection lost"
            raise TalkError(f"the server ended the conversation ({reason})") from error

    async def join(self, scene: str | None, *, greet: bool) -> Room:
        """Enter a scene, the first one there is if None.

        Raises:
            SceneElsewhere: at another node.
            TalkError: there is no such scene, or the server refuses.
        """
        if scene is None:
            if not self.scenes:
                raise TalkError("the server has no scenes")
            scene = self.scenes[0]["id"]
        elif scene not in (known := [one["id"] for one in self.scenes]):
            raise TalkError(f"there is no scene {scene!r}; there are {', '.join(known[:_NAMED])}")
        number = await self.command("scene.join", {"scene": scene, "greet": greet})
        joined = await self._expect("scene.joined", number)
        self.stream = joined["st"]
        payload = joined["d"]
        return Room(
            title=payload["meta"].get("title") or scene,
            npcs={npc["id"]: npc for npc in payload["npcs"]},
            players={player["id"]: player["name"] for player in payload["players"]},
        )

    async def command(self, kind: str, payload: Message) -> int:
        """Send a command; returns the id that its answer will echo as `re`."""
        self._last_id += 1
        await self._send(kind, payload, id=self._last_id)
        return self._last_id

    async def messages(self) -> AsyncIterator[Message]:
        """Everything the server says; raises `TalkError` on a fatal error, `SceneElsewhere` when
        the scene is given to another node."""
        async for frame in self._socket:
            message: Message = json.loads(frame)
            if message["t"] == "scene.moved":
                raise SceneElsewhere(message["d"])
            if message["t"] == "error" and message["d"]["fatal"]:
                raise TalkError(message["d"]["msg"])
            yield message

    async def _identify(self, name: str, key: str | None, ticket: str) -> None:
        kind, token = ("ticket", ticket) if ticket else ("key" if key else "none", key)
        identity = {
            "auth": {"kind": kind, "token": token} if token else {"kind": kind},
            "player": self.player,
            "name": name,
            "client": {"engine": "terminal", "sdk": "troupe-talk", "ver": "1"},
            "caps": [],
            "need": [],
        }
        await self._send("identify", identity)
        welcome = await self._expect("welcome")
        self.scenes: list[Message] = welcome["d"]["scenes"]

    async def _send(self, kind: str, payload: Message, **envelope: Any) -> None:
        if self.stream:
            envelope["st"] = self.stream
        await self._socket.send(json.dumps({"t": kind, **envelope, "d": payload}))

    async def _expect(self, kind: str, re_: int | None = None) -> Message:
        """The next message of a kind; an error instead of it is raised."""
        async for message in self.messages():
            if message["t"] == "error" and message.get("re") == re_:
                raise TalkError(message["d"]["msg"])
            if message["t"] == kind:
                return message
        raise TalkError("the server closed the connection")

    async def _beat(self, period_s: float) -> None:
        number = 0
        while True:
            await asyncio.sleep(period_s * (random.random() if number == 0 else 1))
            number += 1
            await self._send("heartbeat", {"n": number, "cursors": []})


def _id_for(name: str) -> str:
    """An id of a player's own: others may have the same name."""
    cleaned = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:50] or "player"
    return f"{cleaned}-{random.getrandbits(32):08x}"
