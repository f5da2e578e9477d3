"""What a server understands is found out by asking it; what it cannot do is known before anybody
speaks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.remote.config import RemoteConfig
from engine.remote.engine import RemoteEngine
from engine.remote.grammars import TRIALS
from engine.weights.load import Vocabulary
from tests.engine.remote.server import MODEL, Call, far_server, saying
from tests.gameserver.stage import byte_chat, byte_tokenizer

Answer = Callable[[Call], Awaitable[None]]
STANDARD = {"model", "messages", "stream", "stream_options", "max_tokens", "stop", "seed"}
STANDARD |= {"temperature", "top_p", "presence_penalty", "frequency_penalty"}
#: What follows each trial.
FOLLOWING = {"json": '{"moss": 7}', "regex": "moss-or-fern", "choice": "fern-moss"}
FOLLOWING["grammar"] = '[moss {"moss":7}]'


def strict(*known: str) -> Answer:
    """A server that refuses fields it does not know."""

    async def answer(call: Call) -> None:
        unknown = call.body.keys() - known - STANDARD
        if unknown:
            await call.answer(400, {"error": {"message": f"unknown: {sorted(unknown)}"}})
        else:
            await saying("Moss.")(call)

    return answer


async def vllm(call: Call) -> None:
    """A server that keeps to grammars."""
    wanted = call.body.get("structured_outputs") or {}
    texts = [FOLLOWING[kind] for kind in wanted] or ["Moss."]
    await saying(*texts)(call)


async def connect(*urls: str, **settings: Any) -> RemoteEngine:
    vocabulary = settings.pop("vocabulary", None)
    order = settings.pop("order", EngineConfig())
    advance = settings.pop("advance", lambda message: None)
    config = RemoteConfig(urls=urls, **settings)
    engine = await asyncio.to_thread(RemoteEngine.connect, config, order, vocabulary, advance)
    await engine.stop()
    return engine


async def test_a_server_that_knows_all_is_asked_for_all() -> None:
    async with far_server(vllm) as far:
        engine = await connect(far.url)
    dialect = engine.dialect
    assert (dialect.model, dialect.max_model_len, dialect.form) == (MODEL, 4096, "chat")
    assert {"priority", "cache_salt", "min_p", "bad_words", "stream_options"} <= dialect.known
    assert "logit_bias" not in dialect.known  # ids mean nothing there
    assert dialect.ways.keys() == TRIALS.keys()
    assert engine.grammar_kinds == TRIALS.keys()
    assert dialect.continues
    assert engine.notices == ()
    assert engine.max_model_len < 4096  # tokens are only estimated


async def test_a_server_that_is_strict_is_asked_for_what_it_knows() -> None:
    async with far_server(strict("top_k")) as far:
        engine = await connect(far.url)
        assert "top_k" in engine.dialect.known
        assert not engine.dialect.known & {"priority", "cache_salt", "min_p", "bad_words"}
        assert not engine.dialect.continues
        said = "\n".join(engine.notices)
        assert "actions are off" in said
        assert "priorities count here only" in said
        assert "prefill" in said
        assert "min_p, repetition_penalty" in said


async def test_a_server_that_takes_everything_and_follows_nothing_holds_no_reply() -> None:
    async with far_server(saying("moss-and-fern", " is a regex")) as far:
        engine = await connect(far.url)
    assert engine.grammar_kinds == frozenset()
    assert "actions are off" in "\n".join(engine.notices)


async def test_each_kind_of_grammar_goes_the_way_that_is_followed() -> None:
    async def sglang(call: Call) -> None:
        if "ebnf" in call.body:
            text = FOLLOWING["grammar"]
        elif "json_schema" in call.body:
            text = FOLLOWING["json"]
        elif call.body.get("regex"):
            text = "moss-fern" if "|fern" in call.body["regex"] else FOLLOWING["regex"]
        else:
            text = "Moss."
        await saying(text)(call)

    async with far_server(sglang) as far:
        engine = await connect(far.url)
    assert {way.name for way in engine.dialect.ways.values()} == {"regex/ebnf/json_schema"}


async def test_a_failure_over_a_field_is_a_refusal_of_it() -> None:
    async def fragile(call: Call) -> None:
        if "min_p" in call.body:
            await call.answer(500, {"error": {"message": "KeyError"}})
        else:
            await saying("Moss.")(call)

    async with far_server(fragile) as far:
        engine = await connect(far.url)
    assert "min_p" not in engine.dialect.known
    assert "top_k" in engine.dialect.known


async def test_the_longest_reply_goes_by_another_name_where_it_must() -> None:
    async def newer(call: Call) -> None:
        if "max_tokens" in call.body:
            await call.answer(400, {"error": {"message": "use max_completion_tokens"}})
        else:
            await saying("Moss.")(call)

    async with far_server(newer) as far:
        engine = await connect(far.url)
    assert engine.dialect.limit == "max_completion_tokens"


async def test_ids_are_sent_where_the_tokenizer_is_known() -> None:
    async def completions(call: Call) -> None:
        assert call.path == "/v1/completions"
        if call.body["stream"]:
            await call.begin()
            await call.send(b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\n\n')
        else:
            await call.answer(200, {"choices": [{"text": "a", "finish_reason": "stop"}]})

    words = Vocabulary("bytes", byte_tokenizer(), byte_chat(byte_tokenizer()))
    async with far_server(completions) as far:
        engine = await connect(far.url, vocabulary=words)
        assert all(type(token) is int for call in far.calls for token in call.body["prompt"])
    assert engine.dialect.continues
    assert "logit_bias" in engine.dialect.known
    assert engine.max_model_len == 4096


async def test_a_server_that_takes_no_ids_is_refused_with_what_to_do() -> None:
    async def chat_only(call: Call) -> None:
        await call.answer(404, {"detail": "Not Found"})

    words = Vocabulary("bytes", byte_tokenizer(), byte_chat(byte_tokenizer()))
    async with far_server(chat_only) as far:
        with pytest.raises(ModelError, match=r"leave remote\.tokenizer out"):
            await connect(far.url, vocabulary=words)


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "key_file"), (403, "key_file"), (404, r"remote\.model")]
)
async def test_a_server_that_refuses_is_not_waited_for(status: int, advice: str) -> None:
    async def refuse(call: Call) -> None:
        await call.answer(status, {"error": {"message": "no"}})

    async with far_server(refuse) as far:
        with pytest.raises(ModelError, match=advice):
            await connect(far.url)


async def test_a_server_that_is_not_ready_is_waited_for() -> None:
    messages: list[str] = []

    async def ready_later(call: Call) -> None:
        if any("Waiting" in message for message in messages):
            await vllm(call)
        else:
            await call.answer(503, {"error": {"message": "loading"}})

    async with far_server(ready_later) as far:
        engine = await connect(far.url, advance=messages.append)
    assert any("loading" in message for message in messages)
    assert engine.grammar_kinds == TRIALS.keys()


async def test_who_waits_can_give_up() -> None:
    class GivenUp(Exception):
        pass

    def advance(message: str) -> None:
        if "Waiting" in message:
            raise GivenUp

    async def loading(call: Call) -> None:
        await call.answer(503, {})

    async with far_server(loading) as far:
        with pytest.raises(GivenUp):
            await connect(far.url, advance=advance)


async def test_several_servers_are_asked_for_what_all_of_them_understand() -> None:
    async with far_server(vllm) as able, far_server(strict("top_k", "priority")) as plain:
        engine = await connect(able.url, plain.url)
    assert {"top_k", "priority"} <= engine.dialect.known
    assert "min_p" not in engine.dialect.known
    assert engine.grammar_kinds == frozenset()
    assert not engine.dialect.continues


async def test_a_server_that_does_not_stream_is_refused() -> None:
    async def whole(call: Call) -> None:
        await call.answer(200, {"choices": [{"message": {"content": "Moss."}}]})

    async with far_server(whole) as far:
        with pytest.raises(ModelError, match="no stream"):
            await connect(far.url)


@pytest.mark.parametrize("named", [{"key_file": "/nowhere/key"}, {"key_variable": "NO_SUCH_MOSS"}])
async def test_a_key_that_is_not_there_is_said_before_anything_is_sent(named: Any) -> None:
    async with far_server(vllm) as far:
        with pytest.raises(ModelError, match=next(iter(named))):
            await connect(far.url, **named)
    assert far.calls == []


@pytest.mark.parametrize(
    "listed",
    [
        7,
        "far",
        {"id": "far"},
        [7, None, "far", {"id": 7}, {"id": ""}],
        [{"id": "far\x1b[2J"}],
        [{"id": "far\nmodel"}],
        [{"id": "\ud800"}],
        [{"id": "x" * 10_000}],
        None,
    ],
)
async def test_a_list_of_models_that_names_none_is_an_error_that_says_so(listed: Any) -> None:
    async def models(call: Call) -> None:
        await call.answer(200, {"data": listed})

    async with far_server(vllm) as far:
        far.models = models
        with pytest.raises(ModelError, match="lists no models"):
            await connect(far.url)


@pytest.mark.parametrize("length", [0, -1, "many", True, 1e9, None])
async def test_a_context_of_nonsense_is_not_believed(length: Any) -> None:
    async def models(call: Call) -> None:
        await call.answer(200, {"data": [{"id": MODEL, "max_model_len": length, "meta": [1]}]})

    async with far_server(vllm) as far:
        far.models = models
        assert (await connect(far.url)).dialect.max_model_len is None


@pytest.mark.parametrize(
    "said", ["\ud800", "x\udfff", "\x00", 7, {"a": 1}, [], None, "x" * 500_000]
)
async def test_trials_that_are_answered_with_nonsense_are_failed(said: Any) -> None:
    async def answer(call: Call) -> None:
        if call.body["stream"]:
            await saying("Moss.")(call)
        else:
            await call.answer(200, {"choices": [{"message": {"content": said}}]})

    async with far_server(answer) as far:
        assert (await connect(far.url)).grammar_kinds == frozenset()


async def test_what_a_waiting_server_says_is_fit_for_a_terminal() -> None:
    messages: list[str] = []

    async def ready_later(call: Call) -> None:
        if any("Waiting" in message for message in messages):
            await vllm(call)
        else:
            await call.answer(503, {"error": {"message": "load\x1b[2Jing\n[/]\u202e" + "x" * 999}})

    async with far_server(ready_later) as far:
        await connect(far.url, advance=messages.append)
    waiting = next(message for message in messages if "Waiting" in message)
    assert waiting.isprintable()
    assert len(waiting) < 500


async def test_a_stream_without_end_is_refused_at_the_start() -> None:
    async def answer(call: Call) -> None:
        if not call.body["stream"]:
            await saying("Moss.")(call)
            return
        await call.begin()
        while not call.gone.is_set():
            await call.say(*("moss",) * 100)
            await asyncio.sleep(0)

    async with far_server(answer) as far:
        with pytest.raises(ModelError, match="no stream"):
            await connect(far.url)
