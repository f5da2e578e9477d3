"""Whoever leaves gives everything back, in whatever phase the request is."""

import asyncio
import json
from typing import Any

import pytest

from tests.gameserver.http.openai.served import Served, serving

ONE_SLOT = {"max_num_seqs": 1, "reserved_slots": 0, "max_waiting": 8}


class Visitor:
    """A client that sends one request and can vanish at any time."""

    def __init__(self, served: Served) -> None:
        self._port = int(served.url.rpartition(":")[2])

    async def ask(self, **fields: Any) -> None:
        """Send a chat request; its answer is not read."""
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    def vanish(self) -> None:
        """Drop the connection without a word."""
        self.writer.transport.abort()


async def until_gauge(served: Served, name: str, value: float) -> None:
    assert served.engine is not None
    async with asyncio.timeout(10):
        while served.engine.gauges()[name] != value:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choices", [1, 3])
async def test_leaving_while_it_speaks(stream: bool, choices: int) -> None:
    async with serving(["x" * 4000], step_ms=2) as served:
        visitor = Visitor(served)
        await visitor.ask(max_tokens=4000, stream=stream, n=choices)
        await until_gauge(served, "running", choices)
        visitor.vanish()
        gauges = await served.at_rest()
        assert gauges["blocks_held"] == 0
        assert gauges["requests_cancelled"] == choices
        assert served.api is not None
        assert served.api.tally.open == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_it_waits_for_its_turn(stream: bool) -> None:
    async with serving(["x" * 4000], step_ms=2, engine=ONE_SLOT) as served:
        first, second = Visitor(served), Visitor(served)
        await first.ask(max_tokens=4000, stream=True)
        await until_gauge(served, "running", 1)
        await second.ask(max_tokens=4000, stream=stream)
        await until_gauge(served, "waiting", 1)
        second.vanish()
        await until_gauge(served, "waiting", 0)
        assert served.engine is not None
        assert served.engine.gauges()["running"] == 1, "nobody else is disturbed"
        first.vanish()
        assert (await served.at_rest())["blocks_held"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_its_prompt_is_read(stream: bool) -> None:
    slow = {"max_num_batched_tokens": 48, "min_prefill_tokens": 16, "step_target_ms": 1.0}
    async with serving(["x" * 100], step_ms=20, engine=slow) as served:
        visitor = Visitor(served)
        await visitor.ask(
            messages=[{"role": "user", "content": "y" * 3000}], stream=stream, max_tokens=100
        )
        await until_gauge(served, "running", 1)
        assert served.engine is not None
        assert served.engine.gauges()["generated_tokens"] == 0
        visitor.vanish()
        gauges = await served.at_rest()
        assert (gauges["blocks_held"], gauges["generated_tokens"]) == (0, 0)


async def test_leaving_in_the_middle_of_the_body() -> None:
    async with serving(["Fine."]) as served:
        visitor = Visitor(served)
        visitor.reader, visitor.writer = await asyncio.open_connection("127.0.0.1", visitor._port)
        visitor.writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
        )
        assert served.api is not None
        async with asyncio.timeout(5):
            while served.api.tally.open == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            visitor.vanish()
            while served.api.tally.open:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_a_client_that_reads_nothing_is_given_up() -> None:
    async with serving(["x" * 8000], step_ms=0.0, stall_s=0.3) as served:
        visitor = Visitor(served)
        await visitor.ask(max_tokens=4000, stream=True, n=8)
        visitor.writer.transport.pause_reading()
        assert served.api is not None
        async with asyncio.timeout(20):
            while not served.api.tally.lost_answers:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        visitor.vanish()
        assert (await served.at_rest())["blocks_held"] == 0


async def test_whoever_waits_hears_that_we_are_still_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gameserver.http.openai.generation.STILL_WAITING_S", 0.05)
    async with serving(["x" * 4000], step_ms=2, engine=ONE_SLOT) as served:
        first, second = Visitor(served), Visitor(served)
        await first.ask(max_tokens=4000, stream=True)
        await until_gauge(served, "running", 1)
        await second.ask(max_tokens=2, stream=True)
        async with asyncio.timeout(5):
            assert b": waiting" in await second.reader.readuntil(b": waiting\n\n")
            first.vanish()
            assert b"[DONE]" in await second.reader.readuntil(b"[DONE]")
        second.vanish()
