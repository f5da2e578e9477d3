"""A remote engine does what its callers know of engines, and keeps servers to it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import (
    ContextExceeded,
    EngineStopped,
    Halted,
    InvalidRequest,
    QueueFull,
    RemoteFailed,
)
from engine.grammar import Grammar
from engine.params import SamplingParams
from tests.engine.remote.server import Call, far_server, saying
from tests.engine.remote.stage import CHAT, HOLDING, Heard, remote
from tests.gameserver.stage import until

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 5},
}


def waiting_for(go: asyncio.Event) -> Callable[[Call], Awaitable[None]]:
    async def answer(call: Call) -> None:
        await call.begin()
        await call.say("Once")
        await go.wait()
        await call.say(" more.")
        await call.end()

    return answer


async def test_a_reply_comes_in_pieces_with_the_bill_of_the_server() -> None:
    async with (
        far_server(saying("The br", "idge", " is gone.", usage=USAGE)) as far,
        remote(far.url) as engine,
    ):
        heard = Heard(engine)
        last = await heard.last()
    assert [output.text for output in heard.outputs] == ["The br", "idge", " is gone.", ""]
    assert last.finish == "stop"
    assert last.usage is not None
    bill = last.usage
    assert (bill.prompt_tokens, bill.cached_tokens, bill.completion_tokens) == (9, 5, 4)
    assert bill.scheduled is not None
    assert bill.first_token is not None
    assert bill.arrived <= bill.scheduled <= bill.first_token <= bill.finished


async def test_without_the_servers_count_ours_is_the_bill() -> None:
    async with far_server(saying("abcdefgh")) as far, remote(far.url) as engine:
        heard = Heard(engine)
        bill = (await heard.last()).usage
    assert bill is not None
    assert (bill.prompt_tokens, bill.completion_tokens) == (len(heard.ticket.prompt_ids), 2)


async def test_messages_and_sampling_arrive_as_meant() -> None:
    known = frozenset({"temperature", "top_k", "stop", "priority", "cache_salt", "seed"})
    dialect = replace(CHAT, known=known)
    params = SamplingParams(max_tokens=7, temperature=0.3, stop=tuple("abcdef"), seed=0, min_p=0.1)
    async with far_server(saying("x")) as far, remote(far.url, dialect=dialect) as engine:
        prefix = engine.create_prefix(
            [*engine.chat.system.open, *engine.tokenizer.encode("Be Mira."), *_end(engine)]  # type: ignore[union-attr]
        )
        await Heard(engine, "Hi", params, prefix=prefix, priority=2, salt="inn:ann").last()
    body = far.calls[0].body
    assert body["messages"] == [
        {"role": "system", "content": "Be Mira."},
        {"role": "user", "content": "Hi"},
    ]
    assert (body["max_tokens"], body["stream"], body["model"]) == (7, True, "far")
    assert (body["temperature"], body["top_k"], body["priority"]) == (0.3, -1, 2)
    assert (body["stop"], body["seed"]) == (list("abcd"), 0)
    assert "min_p" not in body  # it does not take that
    assert body["cache_salt"]
    assert "ann" not in body["cache_salt"]


async def test_a_reply_ends_before_a_stop_string_wherever_that_is_cut() -> None:
    async def goes_on(call: Call) -> None:
        await call.begin()
        await call.say("One.\n", "Gu", "est", ": Two")
        await call.gone.wait()

    async with far_server(goes_on) as far, remote(far.url) as engine:
        heard = Heard(engine, params=SamplingParams(max_tokens=64, stop=("\nGuest:",)))
        assert (await heard.last()).finish == "stop"
        await asyncio.wait_for(far.calls[0].gone.wait(), 30)
    assert heard.text == "One."


async def test_a_reply_ends_with_its_sentence() -> None:
    async with (
        far_server(saying("One two three.", " Four five six.", " Seven")) as far,
        remote(far.url) as engine,
    ):
        heard = Heard(engine, params=SamplingParams(max_tokens=64, sentence_after=5))
        await heard.last()
    assert heard.text == "One two three. Four five six."


async def test_cancel_hangs_up_and_is_the_last_that_is_heard() -> None:
    go = asyncio.Event()
    async with far_server(waiting_for(go)) as far, remote(far.url) as engine:
        heard = Heard(engine)
        await heard.until("Once")
        engine.cancel(heard.ticket)
        engine.cancel(heard.ticket)
        last = await heard.last()
        await asyncio.wait_for(far.calls[0].gone.wait(), 30)
        assert last.finish == "cancelled"
        assert last.usage is not None
        await until(lambda: engine.gauges()["running"] == 0)
        assert engine.gauges()["requests_cancelled"] == 1
    assert heard.text == "Once"


async def test_who_waits_can_be_cancelled_and_is_never_asked_for() -> None:
    go = asyncio.Event()
    async with far_server(waiting_for(go)) as far, remote(far.url, in_flight=1) as engine:
        first, second, third = (Heard(engine, text) for text in ("1", "2", "3"))
        await first.until("Once")
        engine.cancel(second.ticket)
        assert (await second.last()).finish == "cancelled"
        go.set()
        await first.last()
        await third.last()
    assert [call.body["messages"][0]["content"] for call in far.calls] == ["1", "3"]


async def test_whoever_goes_before_it_is_asked_for_leaves_its_place_to_others() -> None:
    async with far_server(saying("Well.")) as far, remote(far.url, in_flight=1) as engine:
        for _ in range(20):
            gone = Heard(engine)
            engine.cancel(gone.ticket)
            assert (await gone.last()).finish == "cancelled"
        assert (await Heard(engine).last()).finish == "stop"
        await until(lambda: engine.gauges()["running"] == 0)


async def test_a_fault_of_ours_ends_one_request() -> None:
    broken = replace(CHAT, ways={"regex": None})  # type: ignore[dict-item]
    async with far_server(saying("Well.")) as far, remote(far.url, dialect=broken) as engine:
        params = SamplingParams(grammar=Grammar.regex("a+"))
        assert (await Heard(engine, params=params).last()).error == "the reply broke off"
        assert (await Heard(engine).last()).finish == "stop"
    assert len(far.calls) == 1


async def test_halt_hangs_up_on_all_and_lets_nobody_in_until_release() -> None:
    go = asyncio.Event()
    async with far_server(waiting_for(go)) as far, remote(far.url, in_flight=2) as engine:
        heard = [Heard(engine) for _ in range(3)]
        await heard[0].until("Once")
        engine.halt()
        assert [(await each.last()).finish for each in heard] == ["cancelled"] * 3
        for call in far.calls:
            await asyncio.wait_for(call.gone.wait(), 30)
        with pytest.raises(Halted):
            Heard(engine)
        engine.release()
        go.set()
        assert (await Heard(engine).last()).finish == "stop"


async def test_stop_ends_what_is_open() -> None:
    async with far_server(waiting_for(asyncio.Event())) as far:
        async with remote(far.url) as engine:
            heard = Heard(engine)
            await heard.until("Once")
        assert (await heard.last()).finish == "cancelled"
        assert not engine.alive
        with pytest.raises(EngineStopped):
            Heard(engine)
        await engine.stop()


async def test_an_urgent_request_goes_before_others_that_came_earlier() -> None:
    go = asyncio.Event()
    async with far_server(waiting_for(go)) as far, remote(far.url, in_flight=1) as engine:
        asked = {"first": 1, "ambient": 2, "ordinary": 1, "urgent": 0}
        heard = [Heard(engine, text, priority=priority) for text, priority in asked.items()]
        await heard[0].until("Once")
        assert engine.gauges()["waiting"] == 3
        go.set()
        for each in heard:
            await each.last()
    order = [call.body["messages"][0]["content"] for call in far.calls]
    assert order == ["first", "urgent", "ordinary", "ambient"]


async def test_an_old_request_goes_before_fresh_urgent_ones() -> None:
    go = asyncio.Event()
    order = EngineConfig(ageing_s=1e-9)
    async with (
        far_server(waiting_for(go)) as far,
        remote(far.url, in_flight=1, order=order) as engine,
    ):
        first, old = Heard(engine, "first"), Heard(engine, "old", priority=2)
        await first.until("Once")
        urgent = Heard(engine, "urgent", priority=0)
        go.set()
        for each in (first, old, urgent):
            await each.last()
    assert [call.body["messages"][0]["content"] for call in far.calls] == ["first", "old", "urgent"]


async def test_a_reserved_place_is_for_urgent_requests() -> None:
    go = asyncio.Event()
    async with (
        far_server(waiting_for(go)) as far,
        remote(far.url, in_flight=2, reserved=1) as engine,
    ):
        ordinary = [Heard(engine, f"ordinary {n}") for n in (1, 2)]
        await ordinary[0].until("Once")
        urgent = Heard(engine, "urgent", priority=0)
        await urgent.until("Once")
        assert len(far.calls) == 2
        go.set()
        for each in (*ordinary, urgent):
            await each.last()
    assert far.calls[1].body["messages"][0]["content"] == "urgent"


async def test_more_than_may_wait_are_refused() -> None:
    order = EngineConfig(max_waiting=2)
    async with (
        far_server(waiting_for(asyncio.Event())) as far,
        remote(far.url, in_flight=1, order=order) as engine,
    ):
        for _ in range(3):
            Heard(engine)
        with pytest.raises(QueueFull):
            Heard(engine)
        assert engine.gauges()["refused_busy"] == 1


async def test_it_expects_what_servers_usually_take_and_who_waits_before() -> None:
    go = asyncio.Event()
    async with far_server(saying("Well.")) as far, remote(far.url, in_flight=1) as engine:
        assert engine.expect(0).seconds == 0, "nothing is known yet, and nobody refused"
        await Heard(engine).last()
        await until(lambda: engine.gauges()["running"] == 0)
        idle = engine.expect(1)
        assert 0 < idle.alone_s == idle.seconds
        far.reply = waiting_for(go)
        heard = [Heard(engine) for _ in range(3)]
        await heard[0].until("Once")
        urgent, ordinary = engine.expect(0), engine.expect(1)
        assert urgent.alone_s < urgent.seconds < ordinary.seconds
        go.set()
        for each in heard:
            await each.last()


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"max_tokens": 4096}, ContextExceeded),
        ({"logprobs": 1}, InvalidRequest),
        ({"grammar": Grammar.regex("a+")}, InvalidRequest),
    ],
)
async def test_what_cannot_be_done_is_refused_at_once(
    params: dict[str, Any], error: type[Exception]
) -> None:
    async with far_server(saying("x")) as far, remote(far.url) as engine:
        with pytest.raises(error):
            Heard(engine, params=SamplingParams(**params))
        with pytest.raises(InvalidRequest):
            Heard(engine, priority=-1)
        with pytest.raises(InvalidRequest):
            engine.submit([-1], SamplingParams(), on_output=print)
        assert (await Heard(engine).last()).finish == "stop"
    assert len(far.calls) == 1


async def test_a_begun_reply_is_refused_where_nobody_would_go_on_with_it() -> None:
    async with far_server(saying("x")) as far, remote(far.url) as engine:
        begun = [*engine.chat.assistant.open, *engine.tokenizer.encode("Well,")]
        with pytest.raises(InvalidRequest, match="begun"):
            engine.submit(begun, SamplingParams(), on_output=print)
    going_on = replace(CHAT, continuation={"continue_final_message": True})
    async with far_server(saying(" no.")) as far, remote(far.url, dialect=going_on) as engine:
        outputs = engine.stream([*engine.chat.user.open, 1, *begun], SamplingParams())
        assert "".join([output.text async for output in outputs]) == " no."
    assert far.calls[0].body["continue_final_message"] is True
    assert far.calls[0].body["messages"][-1] == {"role": "assistant", "content": "Well,"}


@pytest.mark.parametrize(("said", "complete"), [("aaa", True), ("aab", False)])
async def test_what_a_server_promises_of_a_grammar_is_checked(said: str, complete: bool) -> None:
    async with far_server(saying(*said)) as far, remote(far.url, dialect=HOLDING) as engine:
        heard = Heard(engine, params=SamplingParams(grammar=Grammar.regex("a+"), stop=("c",)))
        last = await heard.last()
    assert far.calls[0].body["structured_outputs"] == {"regex": "a+"}
    assert "stop" not in far.calls[0].body
    assert (heard.text, last.complete) == (said, complete)


async def test_a_warmed_beginning_is_read_only_where_all_may_share_it() -> None:
    async with far_server(saying("x")) as far:
        for salted, calls in ((True, 0), (False, 1)):
            async with remote(far.url, salted=salted) as engine:
                await engine.warm(engine.create_prefix(engine.tokenizer.encode("An inn.")))
                assert len(far.calls) == calls
    assert far.calls[0].body["max_tokens"] == 1


async def test_the_api_key_is_sent_and_nothing_is_compressed(tmp_path: Any) -> None:
    (tmp_path / "key").write_text("sk-moss\n")
    async with (
        far_server(saying("x")) as far,
        remote(far.url, key_file=str(tmp_path / "key")) as engine,
    ):
        await Heard(engine).last()
    assert far.calls[0].headers["authorization"] == "bearer sk-moss"
    assert far.calls[0].headers["accept-encoding"] == "identity"


async def test_vectors_come_from_the_model_that_is_named() -> None:
    async def vectors(call: Call) -> None:
        rows = [{"index": n, "embedding": [3.0, 4.0 * n]} for n in range(len(call.body["input"]))]
        await call.answer(200, {"data": rows[::-1]})

    async with far_server(vectors) as far:
        async with remote(far.url) as engine:
            with pytest.raises(InvalidRequest, match="embedding_model"):
                await engine.embed(["a"])
        async with remote(far.url, embedding_model="small") as engine:
            found = await engine.embed(["a", engine.tokenizer.encode("b")])
    assert far.calls[0].body["input"] == ["a", "b"]
    assert [each.vector.tolist() for each in found] == [[1.0, 0.0], pytest.approx([0.6, 0.8])]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        {"data": []},
        {"data": [{"index": 0}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
        {"data": [{"index": 0, "embedding": [1.0, float("inf")]}]},
        {"data": [{"index": 0, "embedding": [[1.0]]}]},
    ],
)
async def test_what_are_no_vectors_fails(answer: Any) -> None:
    async def nonsense(call: Call) -> None:
        await call.answer(200, answer)

    async with far_server(nonsense) as far, remote(far.url, embedding_model="small") as engine:
        with pytest.raises(RemoteFailed):
            await engine.embed(["a"])


async def test_nobody_waits_for_vectors_of_an_engine_that_has_stopped() -> None:
    async def never(call: Call) -> None:
        await call.gone.wait()

    async with far_server(never) as far:
        async with remote(far.url, embedding_model="small") as engine:
            asked = asyncio.create_task(engine.embed(["a"]))
            await until(lambda: far.calls)
        with pytest.raises(EngineStopped):
            await asyncio.wait_for(asked, 30)


def _end(engine: Any) -> tuple[int, ...]:
    close: tuple[int, ...] = engine.chat.system.close
    return close
