"""The older way to ask, through the official client."""

from typing import Any

import httpx
import openai
import pytest

from tests.gameserver.http.openai.served import TOKENIZER, serving


async def test_texts_and_token_ids_give_the_same_and_keep_their_order() -> None:
    async with serving(["Yes.", "No."]) as served, served.client() as client:
        create = client.completions.create
        one = await create(model="script", prompt="Is it?", max_tokens=10)
        assert one.object == "text_completion"
        assert (one.choices[0].text, one.choices[0].finish_reason) == ("Yes.", "stop")
        assert one.usage is not None
        assert one.usage.prompt_tokens == 6
        ids = TOKENIZER.encode("Is it?")
        assert (await create(model="script", prompt=ids)).choices[0].text == "No."
        for prompts in (["a", "b"], [ids, ids]):
            both = await create(model="script", prompt=prompts, n=2, max_tokens=10)
            assert [c.index for c in both.choices] == [0, 1, 2, 3]
            assert [c.text for c in both.choices] == ["Yes.", "No.", "Yes.", "No."]


async def test_sixteen_tokens_unless_asked_for_more() -> None:
    async with serving(["x" * 99]) as served, served.client() as client:
        reply = await client.completions.create(model="script", prompt="a")
        assert reply.choices[0].text == "x" * 16
        assert reply.choices[0].finish_reason == "length"


async def test_a_stream_gives_the_same_text() -> None:
    async with serving(["Yes, señor."]) as served, served.client() as client:
        stream = await client.completions.create(
            model="script", prompt="Is it?", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].text for c in chunks[:-1]) == "Yes, señor."
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len("Yes, señor.".encode()) + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_begins_with_the_prompt(stream: bool) -> None:
    async with serving(["Yes."]) as served, served.client() as client:
        reply: Any = await client.completions.create(
            model="script", prompt=["One? ", "Two? "], echo=True, stream=stream
        )
        texts = ["", ""]
        if stream:
            async for chunk in reply:
                texts[chunk.choices[0].index] += chunk.choices[0].text
        else:
            texts = [choice.text for choice in reply.choices]
        assert texts == ["One? Yes.", "Two? Yes."]


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": [[]]}),
        ("prompt", {"prompt": ["a", 5]}),
        ("prompt", {"prompt": ["a", [5]]}),
        ("prompt", {"prompt": [5, 999_999]}),
        ("prompt", {"prompt": [-1]}),
        ("suffix", {"prompt": "a", "suffix": "b"}),
        ("best_of", {"prompt": "a", "best_of": 2}),
        ("echo", {"prompt": "a", "echo": True, "logprobs": 1}),
        ("n", {"prompt": ["a"] * 100, "n": 2}),
    ],
)
async def test_what_cannot_be_continued_is_refused(param: str, fields: dict[str, Any]) -> None:
    async with serving(["Yes."]) as served, served.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="script", **fields)
        assert caught.value.param == param
        assert (await served.at_rest())["blocks_held"] == 0


async def test_long_texts_are_encoded_beside_the_loop_and_counted() -> None:
    async with serving(["Yes."]) as served, httpx.AsyncClient() as plain:
        reply = await plain.post(f"{served.url}/v1/completions", json={"prompt": "x" * 500_000})
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert "500000" in reply.json()["error"]["message"]
