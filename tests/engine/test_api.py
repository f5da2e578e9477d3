"""The engine behind an event loop: one end per request, no listener disturbs another."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.api import AsyncEngine
from engine.config import EngineConfig
from engine.errors import ContextExceeded, EngineStopped, InvalidRequest, ModelError
from engine.outputs import RequestOutput
from engine.params import SamplingParams
from engine.scripted import ScriptedModel
from tests.engine.fakes import LetterTokenizer

REPLIES = [[7, 4, 11, 11, 14], [1, 24, 4], []]
EVERYTHING = SamplingParams(max_tokens=50)


def scripted(replies: list[list[int]]) -> ScriptedModel:
    return ScriptedModel(replies, LetterTokenizer(), None)  # type: ignore[arg-type]


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(scripted(REPLIES), EngineConfig(script_step_ms=0.2))
    await engine.start()
    yield engine
    await engine.stop()


async def at_rest(engine: AsyncEngine) -> dict[str, float]:
    """The gauges once nothing runs or waits, within five seconds."""
    for _ in range(500):
        gauges = engine.gauges()
        if not gauges["running"] and not gauges["waiting"]:
            break
        await asyncio.sleep(0.01)
    return gauges


async def collect(engine: AsyncEngine, prompt: list[int]) -> list[RequestOutput]:
    return [output async for output in engine.stream(prompt, EVERYTHING)]


async def test_a_script_is_followed_token_by_token(engine: AsyncEngine) -> None:
    for reply in [*REPLIES, REPLIES[0]]:
        outputs = await collect(engine, [1, 2, 3])
        assert [t for o in outputs for t in o.token_ids][: len(reply)] == reply
        assert "".join(o.text for o in outputs) == LetterTokenizer().decode(reply)
        assert outputs[-1].finish == "stop"
        usage = outputs[-1].usage
        assert usage is not None
        assert usage.arrived <= (usage.scheduled or 0) <= (usage.first_token or 0) <= usage.finished


async def test_many_at_once_each_end_exactly_once(engine: AsyncEngine) -> None:
    results = await asyncio.gather(*(collect(engine, [n % 900]) for n in range(60)))
    assert all(sum(o.finish is not None for o in outputs) == 1 for outputs in results)
    assert (await at_rest(engine))["blocks_held"] == 0


async def test_leaving_a_stream_cancels_it() -> None:
    engine = AsyncEngine(scripted([[1] * 400]), EngineConfig(script_step_ms=1))
    await engine.start()
    for _ in range(20):
        async for _output in engine.stream([5] * 20, SamplingParams(max_tokens=401)):
            break
    gauges = await at_rest(engine)
    assert (gauges["running"], gauges["waiting"], gauges["blocks_held"]) == (0, 0, 0)
    assert gauges["requests_cancelled"] == 20
    await engine.stop()


async def test_cancelling_what_has_ended_takes_no_place_in_the_queue() -> None:
    config = EngineConfig(max_waiting=1, script_step_ms=0.2)
    engine = AsyncEngine(scripted(REPLIES), config)
    await engine.start()
    outputs = asyncio.Queue[RequestOutput]()
    ticket = engine.submit([1, 2], EVERYTHING, on_output=outputs.put_nowait)
    while (await outputs.get()).finish is None:
        pass
    for _ in range(3):
        engine.cancel(ticket)
    engine.submit([1, 2], EVERYTHING, on_output=outputs.put_nowait)
    await engine.stop()


async def test_a_listener_that_raises_does_not_silence_the_others(engine: AsyncEngine) -> None:
    def broken(output: RequestOutput) -> None:
        raise RuntimeError("listener")

    engine.submit([1], EVERYTHING, on_output=broken)
    outputs = await collect(engine, [2])
    assert outputs[-1].finish == "stop"


async def test_stop_ends_open_requests_and_refuses_new_ones(engine: AsyncEngine) -> None:
    ends: list[RequestOutput] = []
    for n in range(30):
        engine.submit([n], EVERYTHING, on_output=ends.append)
    await engine.stop()
    assert sum(output.finish is not None for output in ends) == 30
    with pytest.raises(EngineStopped):
        engine.submit([1], EVERYTHING, on_output=ends.append)
    with pytest.raises(EngineStopped):
        await engine.warm(engine.create_prefix([1]))


async def test_refusals_come_at_once_and_take_nothing(engine: AsyncEngine) -> None:
    before = engine.gauges()["blocks_free"]
    with pytest.raises(InvalidRequest):
        engine.submit([], EVERYTHING, on_output=print)
    with pytest.raises(ContextExceeded):
        engine.submit([1] * 10_000, EVERYTHING, on_output=print)
    assert engine.gauges()["blocks_free"] == before


async def test_warming_returns_when_the_prefix_is_computed(engine: AsyncEngine) -> None:
    prefix = engine.create_prefix(list(range(100)))
    await engine.warm(prefix)
    await engine.warm(prefix)
    outputs = [o async for o in engine.stream([1], EVERYTHING, prefix=prefix)]
    usage = outputs[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens) == (101, 100)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cannot read"),
        ("[" * 100_000, "cannot read"),
        ("{}", "list of lists"),
        ("[]", "at least one"),
        ("[[1], 2]", "reply 1"),
        ("[[100000]]", "reply 0"),
        ('[["a"]]', "reply 0"),
        ("[[true]]", "reply 0"),
    ],
)
def test_a_bad_script_says_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=problem):
        ScriptedModel.load(path, LetterTokenizer(), None)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="cannot read"):
        ScriptedModel.load(tmp_path / "none.json", LetterTokenizer(), None)  # type: ignore[arg-type]
    path.write_text(json.dumps(REPLIES))
    assert ScriptedModel.load(path, LetterTokenizer(), None).longest == 6  # type: ignore[arg-type]


async def test_a_sibling_takes_over_the_kv_of_the_sample_it_names(engine: AsyncEngine) -> None:
    prompt, ends = [3] * 64, asyncio.Queue[RequestOutput]()
    first = engine.submit(prompt, EVERYTHING, on_output=ends.put_nowait)
    engine.submit(prompt, EVERYTHING, on_output=ends.put_nowait, sibling=first)
    bills = []
    while len(bills) < 2:
        output = await ends.get()
        if output.usage is not None:
            bills.append((output.request_id == first.id, output.usage.cached_tokens))
    assert dict(bills)[True] == 0
    assert dict(bills)[False] >= 48
