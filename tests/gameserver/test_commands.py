"""Reading messages: the outcome is a command, or a refusal that names the fault."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gameserver.commands import Say, SceneJoin, read
from gameserver.inbound import Message, parse
from gameserver.protocol import Close, Code, Refusal
from gameserver.settings import Limits

LIMITS = Limits()


def refused(frame: str | bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        read(parse(frame, LIMITS))
    return caught.value


def say(**more: object) -> str:
    return json.dumps({"t": "say", "id": 7, "st": "inn", "d": {"text": "hi", **more}})


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", Code.BAD_JSON),
        ("{", Code.BAD_JSON),
        ("\ufeff{}", Code.BAD_JSON),
        ('{"t":"say\x01"}', Code.BAD_JSON),
        ("NaN", Code.BAD_JSON),
        ("-Infinity", Code.BAD_JSON),
        ('{"t":"bye","d":{"x":1e400}}', Code.BAD_JSON),
        ('{"t":"bye","t":"say"}', Code.BAD_JSON),
        ('{"t":"bye","d":{"x":' + "1" * 40 + "}}", Code.BAD_FIELD),
        ('{"t":"bye","d":{"x":' + "9" * 5000 + "}}", Code.BAD_FIELD),
        ('{"t":"bye","d":{"x":9007199254740992}}', Code.BAD_FIELD),
        ("[" * 32_000, Code.TOO_DEEP),
        ('{"a":' * 6000, Code.TOO_DEEP),
        (say(ignored=json.loads("[" * 20 + "]" * 20)), Code.TOO_DEEP),
        (say(ignored="\ud800"), Code.BAD_FIELD),
        (say(text="a\udfff"), Code.BAD_FIELD),
        ('{"t":"bye","d":{"\\ud800":1}}', Code.BAD_FIELD),
        (say(ignored="x" * 9000), Code.TOO_LARGE),
        (say(ignored="é" * 5000), Code.TOO_LARGE),
        (say(ignored=[0] * 257), Code.BAD_FIELD),
        (json.dumps({"t": "bye", "d": {str(n): n for n in range(4000)}}), Code.BAD_FIELD),
        ("[]", Code.BAD_FIELD),
        ("null", Code.BAD_FIELD),
        ('"say"', Code.BAD_FIELD),
        ("{}", Code.BAD_FIELD),
        ('{"t":5}', Code.BAD_FIELD),
        ('{"t":"say","id":-1,"d":{"text":"x"}}', Code.BAD_FIELD),
        ('{"t":"say","id":4294967296,"d":{"text":"x"}}', Code.BAD_FIELD),
        ('{"t":"say","id":true,"d":{"text":"x"}}', Code.BAD_FIELD),
        ('{"t":"say","id":1,"d":[]}', Code.BAD_FIELD),
        ('{"t":"say","id":1,"st":"no spaces","d":{"text":"x"}}', Code.BAD_FIELD),
        ('{"t":"say","id":1,"st":"inn\\n","d":{"text":"x"}}', Code.BAD_FIELD),
        ('{"t":"say","d":{"text":"x"}}', Code.BAD_FIELD),
        ('{"t":"say","id":1}', Code.BAD_FIELD),
        (say(text=5), Code.BAD_FIELD),
        (say(to="bob"), Code.BAD_FIELD),
        (say(to=["a b"]), Code.BAD_FIELD),
        ('{"t":"npc.interrupt","id":1,"d":{"mode":"shout"}}', Code.BAD_FIELD),
        ('{"t":"npc.interrupt","id":1,"d":{"heard_i":-1}}', Code.BAD_FIELD),
        ('{"t":"history.get","d":{"limit":0}}', Code.BAD_FIELD),
        ('{"t":"dance","id":1}', Code.UNKNOWN_TYPE),
    ],
)
def test_each_fault_has_its_code_and_is_not_fatal(frame: str, code: Code) -> None:
    refusal = refused(frame)
    assert refusal.code == code
    assert refusal.close is None


def test_a_binary_frame_on_a_text_connection_is_fatal() -> None:
    refusal = refused(b"{}")
    assert refusal.code == Code.BAD_FRAME
    assert refusal.close == Close.WRONG_FRAME


@pytest.mark.parametrize("frame", [say(text=5), say(ignored="\ud800"), '{"t":"dance","id":7}'])
def test_a_refusal_names_the_message_where_its_id_could_be_read(frame: str) -> None:
    with pytest.raises(Refusal) as caught:
        read(parse(frame, LIMITS))
    assert caught.value.re == 7


def test_unknown_fields_are_ignored_and_absent_ones_may_be_null() -> None:
    message = parse(say(npc=None, to=None, mood="glad"), LIMITS)
    assert read(message) == Say("hi")


def test_a_whole_number_may_come_as_a_float_because_some_engines_know_no_integers() -> None:
    frame = '{"t":"scene.join","id":3.0,"d":{"scene":"inn","since_s":12.0}}'
    message = parse(frame, LIMITS)
    assert message.id == 3
    assert read(message) == SceneJoin("inn", since_s=12)


def test_the_body_does_not_depend_on_the_order_of_fields() -> None:
    one = Message("say", 1, "inn", {"a": 1, "b": {"c": 2, "d": 3}})
    other = Message("say", 1, "inn", {"b": {"d": 3, "c": 2}, "a": 1})
    assert one.body() == other.body()
    assert one.body() != Message("say", 1, "inn", {"a": 1, "b": {"c": 2, "d": 4}}).body()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)
types = st.sampled_from(["identify", "say", "npc.interrupt", "flow.set", "scene.join", "x"])
fields = st.sampled_from(["text", "npc", "to", "turn", "heard_i", "delta_ms", "scene", "player"])
messages = st.fixed_dictionaries(
    {"t": types, "d": st.dictionaries(fields, json_values)},
    optional={"id": json_values, "st": json_values},
)


@given(st.text() | st.binary() | json_values.map(json.dumps) | messages.map(json.dumps))
def test_any_input_is_read_or_refused(frame: str | bytes) -> None:
    try:
        read(parse(frame, LIMITS))
    except Refusal as refusal:
        refusal.encode()
