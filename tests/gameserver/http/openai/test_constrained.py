"""Calls and formats: what was asked for is what comes, from a model that speaks noise."""

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from gameserver.http.openai.tools import CallParser
from tests.gameserver.http.openai.served import noise, serving

HELLO: list[Any] = [{"role": "user", "content": "Hello?"}]
GIVE: dict[str, Any] = {
    "type": "object",
    "$defs": {"item": {"enum": ["key", "coin", "map"]}},
    "properties": {"item": {"$ref": "#/$defs/item"}, "count": {"type": "integer", "maximum": 9}},
    "required": ["item", "count"],
    "additionalProperties": False,
}
LEAVE: dict[str, Any] = {
    "type": "object",
    "properties": {"where": {"enum": ["mill", "bridge"]}},
    "required": ["where"],
    "additionalProperties": False,
}
SCHEMAS = {"give": GIVE, "leave": LEAVE}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": "Do so.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
CALL = '<tool_call>\n{"name": "leave", "arguments": {"where": "mill"}}\n</tool_call>'


def named(name: str, **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, **more}}


def check_calls(calls: Any) -> None:
    assert calls
    for call in calls:
        assert call.id
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert len({call.id for call in calls}) == len(calls)


async def test_a_required_call_is_one_on_any_model() -> None:
    async with serving(noise()) as served, served.client() as client:
        for seed in range(6):
            reply = await client.chat.completions.create(
                model="script",
                messages=HELLO,
                tools=TOOLS,
                tool_choice="required",
                parallel_tool_calls=bool(seed % 2),
                seed=seed,
            )
            choice = reply.choices[0]
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content is None
            check_calls(choice.message.tool_calls)
            assert seed % 2 or len(choice.message.tool_calls or ()) == 1


@pytest.mark.parametrize("length", [1, 5, 11])
async def test_a_call_that_is_cut_in_its_mark_is_no_text(length: int) -> None:
    """The tokens here are bytes: the mark is eleven of them."""
    async with serving(noise()) as served, served.client() as client:
        reply = await client.chat.completions.create(
            model="script", messages=HELLO, tools=TOOLS, tool_choice="required", max_tokens=length
        )
        assert reply.choices[0].finish_reason == "length"
        assert not reply.choices[0].message.content


async def test_a_named_call_is_of_that_function() -> None:
    async with serving(noise()) as served, served.client() as client:
        for name in SCHEMAS:
            reply = await client.chat.completions.create(
                model="script",
                messages=HELLO,
                tools=TOOLS,
                tool_choice=named(name),
            )
            calls = reply.choices[0].message.tool_calls
            check_calls(calls)
            assert [getattr(call, "function").name for call in calls or ()] == [name]  # noqa: B009
            assert reply.choices[0].finish_reason == "stop", "as OpenAI has it for named functions"


async def test_calls_are_streamed_by_name_and_pieces_of_arguments() -> None:
    async with serving(noise()) as served, served.client() as client:
        for seed in range(4):
            fields: Any = {"model": "script", "messages": HELLO, "tools": TOOLS, "seed": seed}
            fields["tool_choice"] = "required"
            whole = await client.chat.completions.create(**fields)
            async with client.chat.completions.stream(**fields) as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_completion()
            assert "tool_calls.function.arguments.delta" in kinds
            made = [
                [
                    (c.function.name, c.function.arguments)
                    for c in reply.choices[0].message.tool_calls
                ]
                for reply in (whole, final)
            ]
            assert made[0] == made[1]
            check_calls(final.choices[0].message.tool_calls)


@pytest.mark.parametrize(
    ("said", "calls"), [("Gladly. <b>!", 0), (CALL, 1), (f"{CALL}\n{CALL}", 2)]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_free_reply_is_text_or_calls(said: str, calls: int, stream: bool) -> None:
    async with serving([said]) as served, served.client() as client:
        fields: Any = {"model": "script", "messages": HELLO, "tools": TOOLS}
        if stream:
            async with client.chat.completions.stream(**fields) as events:
                choice = (await events.get_final_completion()).choices[0]
        else:
            choice = (await client.chat.completions.create(**fields)).choices[0]
        made = choice.message.tool_calls or []
        assert [call.function.arguments for call in made] == ['{"where": "mill"}'] * calls
        assert choice.message.content == (None if calls else said)
        assert choice.finish_reason == ("tool_calls" if calls else "stop")


async def test_what_a_call_returned_is_read_and_a_call_that_is_cut_says_so() -> None:
    async with serving([CALL]) as served, served.client() as client:
        fields: Any = {"model": "script", "tools": TOOLS}
        reply = await client.chat.completions.create(messages=HELLO, **fields)
        (call,) = reply.choices[0].message.tool_calls or ()
        history: Any = [
            *HELLO,
            reply.choices[0].message,
            {"role": "tool", "tool_call_id": call.id, "content": "Gone."},
        ]
        await client.chat.completions.create(messages=history, **fields)
        cut = await client.chat.completions.create(messages=HELLO, max_tokens=55, **fields)
        assert cut.choices[0].finish_reason == "length"


class Offer(BaseModel):
    item: Literal["key", "coin"]
    price: int


async def test_a_schema_is_kept_to_and_a_reply_that_is_cut_is_not_called_whole() -> None:
    async with serving(noise()) as served, served.client() as client:
        whole = 0
        for seed in range(6):
            try:
                reply = await client.chat.completions.parse(
                    model="script",
                    messages=HELLO,
                    response_format=Offer,
                    max_tokens=60,
                    seed=seed,
                )
            except openai.LengthFinishReasonError:
                continue
            assert isinstance(reply.choices[0].message.parsed, Offer)
            whole += 1
        assert whole


async def test_a_json_object_is_an_object_unless_it_is_cut() -> None:
    async with serving(noise()) as served, served.client() as client:
        for seed in range(6):
            reply = await client.chat.completions.create(
                model="script",
                messages=HELLO,
                response_format={"type": "json_object"},
                max_tokens=200,
                seed=seed,
            )
            choice = reply.choices[0]
            if choice.finish_reason == "stop":
                assert isinstance(json.loads(choice.message.content or ""), dict)


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"choice": ["mill", "bridge"]}, "mill|bridge"),
        ({"regex": "[ab]{3}-[0-9]"}, "[ab]{3}-[0-9]"),
        ({"grammar": 'start: "x" | "y" start'}, "y*x"),
        ({"json": {"enum": [1, 2]}}, "[12]"),
    ],
)
async def test_structured_outputs_of_every_kind(wanted: dict[str, Any], pattern: str) -> None:
    async with serving(noise()) as served, served.client() as client:
        extra = {"structured_outputs": wanted}
        chat = await client.chat.completions.create(
            model="script", messages=HELLO, max_tokens=64, extra_body=extra
        )
        assert re.fullmatch(pattern, chat.choices[0].message.content or "")
        text = await client.completions.create(
            model="script", prompt="a", max_tokens=64, extra_body=extra
        )
        assert re.fullmatch(pattern, text.choices[0].text)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("structured_outputs", {"extra_body": {"structured_outputs": {}}}),
        ("structured_outputs", {"extra_body": {"structured_outputs": {"regex": "(?=a)"}}}),
        ("structured_outputs", {"extra_body": {"structured_outputs": {"grammar": "start: ("}}}),
        (
            "response_format",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
                }
            },
        ),
        ("tool_choice", {"tools": TOOLS, "tool_choice": named("x")}),
        ("tools", {"tools": [*TOOLS, TOOLS[0]]}),
        ("tools", {"tools": [named("x", parameters={"type": "array"})]}),
        ("tools[0].function.name", {"tools": [named("a b")]}),
    ],
)  # fmt: skip
async def test_what_cannot_be_followed_is_refused_by_name(
    param: str, fields: dict[str, Any]
) -> None:
    async with serving(noise()) as served, served.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="script", messages=HELLO, **fields)
        assert caught.value.param == param


_ARGUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.text(max_size=6) | st.integers(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=4,
    ),
    max_size=3,
)


@settings(deadline=None)
@given(st.lists(_ARGUMENTS, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_calls_are_found_however_the_text_is_cut(calls: list[Any], chance: Any) -> None:
    text = "\n".join(
        f'<tool_call>\n{{"name": "f{n}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
        for n, arguments in enumerate(calls)
    )
    parser, found = CallParser(), [("", "")] * len(calls)
    while text:
        size = chance.randint(1, 12)
        shown, pieces = parser.push(text[:size])
        assert shown == ""
        for piece in pieces:
            name, arguments = found[piece.index]
            found[piece.index] = (piece.name or name, arguments + piece.arguments)
        text = text[size:]
    assert parser.flush() == ""
    assert [name for name, _ in found] == [f"f{n}" for n in range(len(calls))]
    assert [json.loads(arguments) for _, arguments in found] == calls


@settings(deadline=None)
@given(st.text(max_size=30).filter(lambda t: not t.startswith("<tool_call>")))
def test_text_passes_through_unchanged_however_it_is_cut(text: str) -> None:
    parser = CallParser()
    shown = "".join(parser.push(letter)[0] for letter in text) + parser.flush()
    assert shown == text
    assert parser.calls == 0


async def test_logprobs_name_the_chosen_token_and_its_likeliest_rivals() -> None:
    async with serving(noise()) as served, served.client() as client:
        chat = await client.chat.completions.create(
            model="script", messages=HELLO, max_tokens=12, logprobs=True, top_logprobs=4, seed=3
        )
        entries = chat.choices[0].logprobs
        assert entries is not None and entries.content is not None
        assert len(entries.content) == chat.usage.completion_tokens  # type: ignore[union-attr]
        for entry in entries.content:
            assert entry.logprob <= 0
            assert len(entry.top_logprobs) == 4
            rivals = [rival.logprob for rival in entry.top_logprobs]
            assert rivals == sorted(rivals, reverse=True)
            assert entry.bytes is None or bytes(entry.bytes).decode() == entry.token
        stream = await client.chat.completions.create(
            model="script",
            messages=HELLO,
            max_tokens=12,
            logprobs=True,
            top_logprobs=4,
            seed=3,
            stream=True,
        )
        streamed = [
            entry
            async for chunk in stream
            for entry in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or ()
        ]
        assert [e.token for e in streamed] == [e.token for e in entries.content]
        text = await client.completions.create(
            model="script", prompt="Hello?", max_tokens=12, logprobs=2, seed=3
        )
        older = text.choices[0].logprobs
        assert older is not None
        assert len(older.tokens or ()) == len(older.text_offset or ()) == 12
        assert all(len(top) <= 2 for top in older.top_logprobs or ())
