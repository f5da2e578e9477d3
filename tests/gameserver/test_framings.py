"""Two framings, one protocol: what holds in JSON holds in msgpack."""

from functools import partial
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from gameserver.game import GameServer
from gameserver.guards import GuardedConnection, Handshakes
from gameserver.messages import Ack
from gameserver.protocol import MSGPACK, SUBPROTOCOL, encode
from gameserver.settings import Settings
from gameserver.tally import Tally
from tests.gameserver.player import Player
from tests.gameserver.raw import BINARY, TEXT, RawClient, frame, upgrade_request
from tests.gameserver.stage import SCENE
from tests.gameserver.wanderer import Wanderer

pack = msgspec.msgpack.encode


async def test_both_framings_tell_the_same(server: GameServer) -> None:
    ann, bob = Wanderer(server, "ann", "npc.v1.msgpack"), Wanderer(server, "bob")
    for player in (ann, bob):
        await player.connect()
        await player.ask("scene.join", {"scene": SCENE})
    ann.command("say", {"npc": "mira", "text": "Ünd the bridge? 🐉"})
    for player in (ann, bob):
        await player.until("npc.turn.end")
    said = [e for e in ann.events.values() if e["t"] == "player.said"]
    assert said[0]["d"]["text"] == "Ünd the bridge? 🐉"
    for place in ann.events.keys() & bob.events.keys():
        assert ann.events[place] == bob.events[place]
    assert ann.ended == bob.ended


@pytest.mark.parametrize(
    ("offer", "chosen"),
    [
        ("npc.v1.msgpack", "npc.v1.msgpack"),
        ("npc.v1.json, npc.v1.msgpack", "npc.v1.json"),
        ("npc.v9.json, npc.v1.msgpack, npc.v1.json", "npc.v1.msgpack"),
    ],
)
async def test_the_client_s_preference_decides(server: GameServer, offer: str, chosen: str) -> None:
    client = await RawClient.connect(server)
    client.writer.write(upgrade_request(subprotocol=offer))
    assert f"Sec-WebSocket-Protocol: {chosen}\r\n" in await client.head()
    client.drop()


async def test_text_frames_are_fatal_where_frames_are_binary(server: GameServer) -> None:
    client = await packing(server)
    client.writer.write(frame(TEXT, b'{"t":"heartbeat","d":{}}'))
    error = msgspec.msgpack.decode((await client.frame())[1])
    assert (error["d"]["code"], error["d"]["fatal"]) == ("bad_frame", True)
    assert await client.close_code() == 1003


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\x91" * 32_000, "too_deep"),
        (pack({"t": "heartbeat", "d": {"x": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}}), "too_deep"),
        (b"\xdd\xff\xff\xff\xff", "bad_json"),
        (b"\xdf\xff\xff\xff\xff", "bad_json"),
        (b"\xc1", "bad_json"),
        (pack({"t": "heartbeat", "d": {"n": float("nan")}}), "bad_json"),
        (pack({"t": "heartbeat", "d": {1: 2}}), "bad_json"),
        (pack({"t": "heartbeat", "d": {"x": b"bytes"}}), "bad_json"),
        (pack({"t": "heartbeat", "d": {"x": msgspec.msgpack.Ext(4, b"x")}}), "bad_json"),
        (pack({"t": "heartbeat", "d": {"n": 2**60}}), "bad_field"),
        (pack([1]), "bad_field"),
        (pack({"t": 7}), "bad_field"),
        (pack({"t": "heartbeat", "d": {"x": list(range(300))}}), "bad_field"),
        (b"\x81\xa1t\xa3\xed\xa0\x80", "bad_json"),
    ],
)
async def test_bad_msgpack_is_refused_by_itself(
    server: GameServer, payload: bytes, code: str
) -> None:
    client = await packing(server)
    client.writer.write(frame(BINARY, payload))
    error = msgspec.msgpack.decode((await client.frame())[1])
    assert (error["t"], error["d"]["code"], error["d"]["fatal"]) == ("error", code, False)
    beat = {"t": "heartbeat", "id": 3.0, "d": {"n": 4.0}}  # engines that know only floats
    client.writer.write(frame(BINARY, pack(beat)))
    ack: dict[str, Any] = msgspec.msgpack.decode((await client.frame())[1])
    assert (ack["t"], ack["re"], ack["d"]["n"]) == ("heartbeat.ack", 3, 4)
    client.drop()


async def test_a_session_may_go_on_in_the_other_framing(server: GameServer) -> None:
    ann = Wanderer(server, "ann", "npc.v1.msgpack")
    await ann.connect()
    joined = await ann.ask("scene.join", {"scene": SCENE})
    ann.drop()
    again = await Player.dial(server)
    assert (await again.identify(resume=ann.resume_wish()))["d"]["resumed"] is True
    # Sent again in JSON, the command is known, and so is its answer.
    assert await again.ask("scene.join", {"scene": SCENE}, st=SCENE, id=1) == joined


async def packing(server: GameServer) -> RawClient:
    """A client that is let in, in msgpack."""
    client = await RawClient.connect(server)
    client.writer.write(upgrade_request(subprotocol="npc.v1.msgpack"))
    await client.head()
    client.writer.write(frame(BINARY, pack({"t": "identify", "d": {"player": "eve"}})))
    for _ in ("hello", "welcome"):
        assert (await client.frame())[0] == BINARY
    return client


@pytest.mark.parametrize("subprotocol", [SUBPROTOCOL, MSGPACK])
async def test_messages_of_any_length_arrive_whole_and_in_order(subprotocol: str) -> None:
    lengths = (0, 1, 125, 126, 127, 65_535, 65_536, 200_000)
    tally = Tally()

    async def speak(socket: ServerConnection) -> None:
        assert isinstance(socket, GuardedConnection)
        for length in lengths:
            socket.pass_on(b"x" * length)
            await socket.ping()  # which the library writes
        socket.write([encode("ack", Ack(), re=number) for number in range(3)])
        await socket.wait_closed()

    guarded = partial(
        GuardedConnection, settings=Settings(), handshakes=Handshakes(1, 1.0), tally=tally
    )
    async with (
        serve(
            speak,
            "127.0.0.1",
            0,
            create_connection=guarded,  # type: ignore[arg-type]
            subprotocols=[Subprotocol(subprotocol)],
            compression=None,
        ) as server,
        connect(
            f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}",
            subprotocols=[Subprotocol(subprotocol)],
        ) as client,
    ):
        whole = [await client.recv() for _ in lengths]
        assert [len(message) for message in whole] == list(lengths)
        assert {type(message) for message in whole} == {bytes if subprotocol == MSGPACK else str}
        acks = [await client.recv() for _ in range(3)]
        decode = msgspec.msgpack.decode if subprotocol == MSGPACK else msgspec.json.decode
        assert [decode(ack)["re"] for ack in acks] == [0, 1, 2]  # type: ignore[arg-type]
    assert tally.gauges()["frames_out"] == len(lengths) + 3
