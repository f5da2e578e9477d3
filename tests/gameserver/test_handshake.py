"""HTTP on the game port, and who may upgrade."""

import asyncio
import time
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.raw import RawClient, upgrade_request
from tests.gameserver.stage import serving, until


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /healthz HTTP/1.1", 200),
        ("GET /healthz HTTP/1.0", 200),
        ("GET /healthz?x=1 HTTP/1.1", 200),
        ("POST /healthz HTTP/1.1", 405),
        ("DELETE /healthz HTTP/1.1", 405),
        ("GET / HTTP/1.1", 404),
        ("POST / HTTP/1.1", 404),
        ("GET /metrics HTTP/1.1", 404),
        ("GET /v1/ws/ HTTP/1.1", 404),
        ("GET /v2/ws HTTP/1.1", 404),
        ("GET //healthz HTTP/1.1", 404),
        ("POST /v1/ws HTTP/1.1", 405),
        ("GET /v1/ws HTTP/1.1", 426),
    ],
)
async def test_plain_requests(server: GameServer, request_line: str, status: int) -> None:
    client = await RawClient.connect(server)
    answer = await client.request(f"{request_line}\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize("path", ["/healthz", "/", "/v1/ws"])
@pytest.mark.parametrize(("method", "status"), [("POST", 405), ("PUT", 405), ("GET", 400)])
@pytest.mark.parametrize("header", ["Content-Length: {}", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("size", [2, 20_000])
async def test_who_sends_a_body_is_answered_too(
    server: GameServer, path: str, method: str, status: int, header: str, size: int
) -> None:
    client = await RawClient.connect(server)
    answer = await client.request(
        f"{method} {path} HTTP/1.1\r\nHost: x\r\n{header.format(size)}\r\n\r\n{'x' * size}"
    )
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert ("Allow: GET, HEAD" in head) is (status == 405)
    assert f"Content-Length: {len(body)}" in head


async def test_health_has_a_body_for_get_and_none_for_head(server: GameServer) -> None:
    got = await (await RawClient.connect(server)).request(
        "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    head = await (await RawClient.connect(server)).request(
        "HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert got.endswith("\r\n\r\nok\n")
    assert head.startswith("HTTP/1.1 200")
    assert head.endswith("\r\n\r\n")
    assert "Content-Length: 3" in head
    elsewhere = await (await RawClient.connect(server)).request(
        "HEAD /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert elsewhere.startswith("HTTP/1.1 404")
    assert elsewhere.endswith("\r\n\r\n")


@pytest.mark.parametrize("subprotocol", ["", "npc.v2.json", "chat", "NPC.V1.JSON"])
async def test_an_upgrade_without_our_subprotocol_is_refused(
    server: GameServer, subprotocol: str
) -> None:
    client = await RawClient.connect(server)
    client.writer.write(upgrade_request(subprotocol=subprotocol))
    assert (await client.head()).startswith("HTTP/1.1 400")


async def test_ours_is_picked_from_a_list_and_no_compression_with_it(server: GameServer) -> None:
    client = await RawClient.connect(server)
    offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
    client.writer.write(upgrade_request(offer, subprotocol="npc.v9.json, npc.v1.json"))
    head = await client.head()
    assert head.startswith("HTTP/1.1 101")
    assert "Sec-WebSocket-Protocol: npc.v1.json" in head
    assert "Extensions" not in head
    assert "Server:" not in head


@pytest.mark.parametrize("query", ["scene=inn", "", "scene=%00&x"])
async def test_a_hint_in_the_address_is_only_a_hint(server: GameServer, query: str) -> None:
    client = await RawClient.connect(server)
    client.writer.write(upgrade_request(path=f"/v1/ws?{query}"))
    assert (await client.head()).startswith("HTTP/1.1 101")


@pytest.mark.parametrize("query", ["token=abc", "scene=inn&jwt=x", "TICKET=", "api_key=1"])
async def test_credentials_in_the_address_are_refused(server: GameServer, query: str) -> None:
    client = await RawClient.connect(server)
    client.writer.write(upgrade_request(path=f"/v1/ws?{query}"))
    assert (await client.head()).startswith("HTTP/1.1 400")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 101),
        ("https://game.example", 101),
        ("http://game.example", 403),
        ("https://game.example:444", 403),
        ("https://game.example.evil.test", 403),
        ("https://GAME.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
async def test_origins_match_exactly(tmp_path: Path, origin: str | None, status: int) -> None:
    header = "" if origin is None else f"Origin: {origin}\r\n"
    async with serving(tmp_path, ["x"], origins=["https://game.example"]) as server:
        client = await RawClient.connect(server)
        client.writer.write(upgrade_request(header))
        assert (await client.head()).startswith(f"HTTP/1.1 {status}")


async def test_big_requests_are_refused_without_being_read(server: GameServer) -> None:
    long = await (await RawClient.connect(server)).request(
        f"GET /{'a' * 9000} HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert long.startswith("HTTP/1.1 414")
    headers = "".join(f"X-{n}: y\r\n" for n in range(200))
    many = await (await RawClient.connect(server)).request(
        f"GET /healthz HTTP/1.1\r\n{headers}\r\n"
    )
    assert many.startswith("HTTP/1.1 431")


async def test_handshakes_that_never_finish_end_in_time(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"], guards={"open_timeout_s": 0.2}) as server:
        clients = [await RawClient.connect(server) for _ in range(20)]
        for client in clients[:10]:
            client.writer.write(b"GET /v1/ws HTTP/1.1\r\nX-Slow: ")
        await until(lambda: server.gauges()["handshakes"] == 20)
        began = time.monotonic()
        for client in clients:
            assert await client.reader.read() == b""
        assert time.monotonic() - began < 1.2
        assert server.gauges()["handshakes"] == 0


async def test_slow_handshakes_make_room_for_a_good_client(tmp_path: Path) -> None:
    guards = {"handshakes": 8, "handshake_age_s": 0.05}
    async with serving(tmp_path, ["x"], guards=guards) as server:
        slow = [await RawClient.connect(server) for _ in range(12)]
        await until(lambda: server.gauges()["handshakes"] == 8)
        refused = [await client.head() for client in slow[8:]]
        assert all(head.startswith("HTTP/1.1 503") and "Retry-After" in head for head in refused)
        await asyncio.sleep(0.06)
        player = await Player.dial(server)
        assert (await player.identify())["d"]["player"] == "ann"
        assert (await slow[0].head()).startswith("HTTP/1.1 503")
        assert server.gauges()["handshakes"] == 7


async def test_a_draining_server_says_so_and_takes_nobody_in(server: GameServer) -> None:
    waiting = await RawClient.connect(server)
    await server.drain()
    waiting.writer.write(upgrade_request())
    assert (await waiting.head()).startswith("HTTP/1.1 503")
    with pytest.raises((OSError, InvalidStatus)):
        await Player.dial(server)
