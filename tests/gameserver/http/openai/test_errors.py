"""Every refusal reaches the official client as its own kind of error, and names the field."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from engine.errors import NoRoom
from engine.forecast import Expectation
from engine.outputs import RequestOutput
from engine.prefixes import Prefix
from gameserver.http.openai.auth import caller
from gameserver.keys import Keys, key_line, new_key
from gameserver.settings import SettingsError
from tests.gameserver.http.openai.served import Served, serving

HELLO: list[Any] = [{"role": "user", "content": "Hello?"}]


async def refused(served: Served, kind: type[openai.APIStatusError], **fields: Any) -> Any:
    """The error of a chat request, which must be of this kind; its JSON is of OpenAI's form."""
    wanted = {"model": "script", "messages": HELLO, **fields}
    async with served.client() as client:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(**wanted)
    body: Any = caught.value.body
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"]
    return caught.value


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("temperature", {"temperature": 2.5}),
        ("temperature", {"temperature": "warm"}),
        ("top_p", {"top_p": 0}),
        ("n", {"n": 0}),
        ("n", {"n": 1000}),
        ("max_tokens", {"max_tokens": 0}),
        ("min_tokens", {"max_tokens": 3, "extra_body": {"min_tokens": 5}}),
        ("presence_penalty", {"presence_penalty": -3}),
        ("logit_bias", {"logit_bias": {"a": 1}}),
        ("logit_bias", {"logit_bias": {"999999": 1}}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 50}),
        ("messages", {"messages": []}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].role", {"messages": [{"role": "wizard", "content": "x"}]}),
        (
            "messages[0].content[0].type",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        ),
        (
            "messages[1].tool_call_id",
            {"messages": [*HELLO, {"role": "tool", "content": "5", "tool_call_id": "no"}]},
        ),
        ("tool_choice", {"tool_choice": "required"}),
        ("reasoning_effort", {"reasoning_effort": "low"}),
        ("store", {"store": True}),
        ("prompt_logprobs", {"extra_body": {"prompt_logprobs": 1}}),
        ("priority", {"extra_body": {"priority": -1}}),
        ("stop[0]", {"stop": [""]}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
    ],
)
async def test_a_field_that_is_wrong_or_not_built_is_named(
    param: str, fields: dict[str, Any]
) -> None:
    async with serving(["Fine."]) as served:
        error = await refused(served, openai.BadRequestError, **fields)
        assert error.param == param
        assert param.split("[")[0] in error.message
        assert (await served.at_rest())["blocks_held"] == 0


async def test_an_overlong_prompt_is_told_the_counts() -> None:
    async with serving(["Fine."], engine={"max_model_len": 64}) as served:
        error = await refused(
            served, openai.BadRequestError, messages=[{"role": "user", "content": "x" * 100}]
        )
        assert error.code == "context_length_exceeded"
        assert error.param == "messages"
        assert "64" in error.message and "105" in error.message  # 100 and the frames
        error = await refused(served, openai.BadRequestError, max_tokens=60)
        assert "60 of the reply" in error.message


async def test_a_reply_of_no_stated_length_gets_what_the_context_leaves() -> None:
    async with serving(["x" * 200], engine={"max_model_len": 64}) as served:
        async with served.client() as client:
            reply = await client.chat.completions.create(model="script", messages=HELLO)
        assert reply.choices[0].finish_reason == "length"
        assert reply.usage is not None
        assert reply.usage.total_tokens == 64


async def test_an_unknown_model_is_404_and_names_the_ones_there_are() -> None:
    async with serving(["Fine."], model_names=["small"]) as served:
        error = await refused(served, openai.NotFoundError, model="gpt-4o")
        assert error.code == "model_not_found"
        assert "script" in error.message
        async with served.client() as client:
            assert [m.id async for m in client.models.list()] == ["script", "small"]
            assert (await client.models.retrieve("small")).id == "small"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("large")
            reply = await client.chat.completions.create(model="small", messages=HELLO)
            assert reply.model == "small"
    async with serving(["Fine."]) as served, served.client() as client:
        reply = await client.chat.completions.create(model="default", messages=HELLO)
        assert reply.model == "default"


async def test_keys_are_asked_for_and_only_hashes_are_kept(tmp_path: Any) -> None:
    key = new_key()
    file = tmp_path / "keys"
    file.write_text(f"# who may talk\n\n{key_line('studio', key)}\n")
    keys = Keys.load(str(file), None)
    assert key not in repr(vars(keys)) and key not in file.read_text()
    async with serving(["Fine."], keys=keys) as served:
        for wrong in ("Bearer", "Bearer tr-wrong", f"Bearer {key[:-1]}", f"Bearer {key}x", key):
            async with httpx.AsyncClient(base_url=served.url) as plain:
                headers = {"authorization": wrong}
                for reply in (
                    await plain.get("/v1/models", headers=headers),
                    await plain.post("/v1/chat/completions", headers=headers, json={}),
                ):
                    assert reply.status_code == 401
                    assert reply.headers["www-authenticate"] == "Bearer"
        async with served.client(api_key="tr-wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with served.client(api_key=key) as client:
            reply = await client.chat.completions.create(model="script", messages=HELLO)
            assert reply.choices[0].message.content == "Fine."


def test_keys_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDIO_KEYS", "one two")
    keys = Keys.load(None, "STUDIO_KEYS")
    assert caller(keys, "Bearer two").name == "STUDIO_KEYS-1"
    assert caller(keys, "bearer one").name == "STUDIO_KEYS-0"


@pytest.mark.parametrize("content", ["", "# none\n", "studio tr-plain-key", "a" * 64])
def test_a_key_source_that_holds_no_key_is_an_error_not_an_open_door(
    content: str, tmp_path: Any
) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(SettingsError, match="keys"):
        Keys.load(str(file), None)
    with pytest.raises(SettingsError, match="NO_SUCH_VARIABLE"):
        Keys.load(None, "NO_SUCH_VARIABLE")


async def test_a_full_queue_is_429_with_a_time_to_come_again() -> None:
    small = {"max_num_seqs": 1, "reserved_slots": 0, "max_waiting": 1}
    async with serving(["x" * 4000], step_ms=1, engine=small) as served, served.client() as client:
        streams = []
        for _ in range(2):
            stream = await client.chat.completions.create(
                model="script", messages=HELLO, max_tokens=4000, stream=True
            )
            if not streams:
                await anext(aiter(stream))  # it runs, so that the next one waits
            streams.append(stream)
        error = await refused(served, openai.RateLimitError)
        assert int(error.response.headers["retry-after"]) >= 1
        many = await refused(served, openai.RateLimitError, n=2)
        assert many.code == "rate_limit_exceeded"
        for stream in streams:
            await stream.close()
        assert (await served.at_rest())["blocks_held"] == 0


async def test_a_lack_of_memory_that_shows_later_is_429_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def submit(prompt: Any, params: Any, *, on_output: Any, **rest: Any) -> Any:
        error = NoRoom(10, 5)
        on_output(RequestOutput(-1, "", (), "failed", error=str(error), refusal=error))
        return SimpleNamespace(id=-1)

    async with serving(["Fine."]) as served:
        monkeypatch.setattr(served.engine, "submit", submit)
        error = await refused(served, openai.RateLimitError)
        assert error.response.headers["retry-after"] == "2"
        async with served.client() as client:
            stream = await client.chat.completions.create(
                model="script", messages=HELLO, stream=True
            )
            with pytest.raises(openai.APIError, match="KV cache"):
                async for _ in stream:
                    pass


async def test_a_node_that_starts_or_ends_is_503_with_a_time_to_come_again() -> None:
    async with serving(["Fine."]) as served:
        engine, served.engine = served.engine, None
        served.readiness.state = "starting"
        served.readiness.advance("Loading the weights", 1, 3)
        error = await refused(served, openai.InternalServerError)
        assert error.status_code == 503
        assert "Loading the weights" in error.message
        assert error.response.headers["retry-after"] == "2"
        served.engine, served.readiness.state = engine, "draining"
        assert (await refused(served, openai.InternalServerError)).status_code == 503


async def test_what_is_no_json_request_is_refused_by_its_kind() -> None:
    async with (
        serving(["Fine."], body_bytes=2048, json_depth=8, body_s=0.3) as served,
        httpx.AsyncClient(base_url=f"{served.url}/v1") as plain,
    ):
        as_json = {"content-type": "application/json"}

        async def post(content: Any, headers: dict[str, str] = as_json) -> httpx.Response:
            return await plain.post("/chat/completions", content=content, headers=headers)

        async def drip() -> Any:
            yield b"{"
            await asyncio.sleep(0.6)

        deep = {"type": "json_object"}
        for _ in range(20):
            deep = {"a": deep}  # type: ignore[dict-item]
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": deep}}
        too_deep = {"messages": HELLO, "response_format": schema}
        fine = json.dumps({"messages": HELLO})
        for reply, status, code in [
            (await post(b"{"), 400, "invalid_json"),
            (await post(b"\xff\xfe"), 400, "invalid_json"),
            (await post(b"[" * 1500), 400, "invalid_value"),
            (await post(b'{"metadata":' + b'{"a":' * 300), 400, "invalid_value"),
            (await post(json.dumps(too_deep)), 400, "invalid_value"),
            (await post(b"[]"), 400, "invalid_value"),
            (await post(b" " * 2049), 413, "body_too_large"),
            (await post(fine, {}), 415, "bad_type"),
            (await post(fine, {"content-type": "text/plain"}), 415, "bad_type"),
            (await post(fine, {**as_json, "content-encoding": "gzip"}), 415, "bad_type"),
            (await post(drip()), 408, "timeout"),
            (await plain.get("/chat/completions"), 405, "bad_method"),
            (await plain.post("/models", json={}), 405, "bad_method"),
            (await plain.get("/engines"), 404, "unknown_path"),
        ]:
            assert reply.status_code == status, reply.text
            assert reply.json()["error"]["code"] == code
            assert reply.headers["content-type"] == "application/json"
        assert (await post(fine)).status_code == 200


async def test_a_step_that_fails_is_500_or_an_error_in_the_stream_never_an_empty_200() -> None:
    async with serving(["x" * 300], step_ms=2) as served, served.client() as client:
        assert served.engine is not None
        runner = served.engine._engine._runner
        stream = await client.chat.completions.create(
            model="script", messages=HELLO, stream=True, max_tokens=300
        )
        await anext(aiter(stream))
        with pytest.MonkeyPatch.context() as patch:

            def broken(plan: Any) -> Any:
                raise RuntimeError("made to fail")

            patch.setattr(runner, "run", broken)
            with pytest.raises(openai.APIError, match="made to fail"):
                async for _ in stream:
                    pass
            error = await refused(served, openai.InternalServerError)
            assert error.status_code == 500
        reply = await client.chat.completions.create(model="script", messages=HELLO, max_tokens=3)
        assert reply.choices[0].message.content == "xxx"
        assert (await served.at_rest())["blocks_held"] == 0


async def test_a_server_that_ends_says_so_in_open_streams() -> None:
    async with serving(["x" * 4000], step_ms=2) as served, served.client() as client:
        stream = await client.chat.completions.create(
            model="script", messages=HELLO, stream=True, max_tokens=3000
        )
        await anext(aiter(stream))
        assert served.engine is not None
        await served.engine.stop()
        with pytest.raises(openai.APIError, match="shutting down"):
            async for _ in stream:
                pass


async def test_a_request_whose_first_token_would_take_too_long_is_refused_until_later() -> None:
    async with serving(["Hello."], first_token_s=20.0) as served:
        assert served.engine is not None
        asked: list[int] = []
        expected = Expectation(25.0, alone_s=11.0)

        def expect(priority: int, prefix: Prefix | None = None) -> Expectation:
            asked.append(priority)
            return expected

        served.engine.expect = expect  # type: ignore[method-assign]
        error = await refused(served, openai.RateLimitError, extra_body={"priority": 1})
        assert asked == [2], "of the class that it would be served in"
        assert error.body["code"] == "rate_limit_exceeded"
        assert error.response.headers["retry-after"] == "3"
        expected = Expectation(21.0, alone_s=11.0)
        async with served.client() as client:  # slow, but not for the sake of others
            answer = await client.chat.completions.create(model="script", messages=HELLO)
        assert answer.choices[0].message.content == "Hello."


async def test_a_long_queue_is_no_reason_where_the_settings_say_so() -> None:
    async with serving(["Hello."], first_token_s=0) as served:
        assert served.engine is not None
        served.engine.expect = lambda *_, **__: Expectation(9999.0)  # type: ignore[method-assign]
        async with served.client() as client:
            answer = await client.chat.completions.create(model="script", messages=HELLO)
        assert answer.choices[0].message.content == "Hello."
