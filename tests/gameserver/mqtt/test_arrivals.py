"""What arrives is read strictly."""

from hypothesis import given
from hypothesis import strategies as st

from gameserver.mqtt.arrivals import Arrivals, Delivery, Unusable
from gameserver.mqtt.topics import Topics
from scenes.document import ID
from tests.gameserver.stage import settings_with

TOPICS = Topics("troupe/v1")
EVENT = "troupe/v1/scene/inn/event/bell"
LEVEL = st.one_of(
    st.sampled_from(["scene", "event", "state", "result", "entity", "inn", "+", "#", ""]), st.text()
)


READER = Arrivals(TOPICS, settings_with().limits)


@given(st.lists(LEVEL, max_size=6))
def test_no_topic_leads_to_a_name_that_is_no_id(levels: list[str]) -> None:
    topic = "/".join(["troupe/v1", *levels])
    address = TOPICS.read(topic)
    if address is not None:
        assert ID.fullmatch(address.scene)
        assert ID.fullmatch(address.name)
        rest = f"{address.name}/{address.key}".rstrip("/")
        assert topic == f"troupe/v1/scene/{address.scene}/{address.kind}/{rest}"


@given(st.binary(max_size=64))
def test_any_payload_is_read_or_refused_with_a_cause(payload: bytes) -> None:
    cause = ""
    try:
        READER.read(Delivery(EVENT, payload))
    except Unusable as why:
        cause = why.cause
    assert cause in {"", "bad_json", "bad_field", "too_deep", "too_large"}


def known(topic: str, eid: str) -> str:
    return READER.read(Delivery(topic, b"1", eid=eid)).known_as


@given(st.text(min_size=1), st.text(min_size=1))
def test_ids_are_told_apart_however_long_they_are_and_count_within_their_topic(
    one: str, other: str
) -> None:
    assert (known(EVENT, one) == known(EVENT, other)) == (one == other)
    assert known(EVENT, "x" * 1000 + one) != known(EVENT, "x" * 1000 + one + "y")
    assert known(EVENT, one) != known(EVENT.replace("bell", "drum"), one)
    assert len(known(EVENT, one)) == 32


def test_without_an_id_every_delivery_is_an_event() -> None:
    assert known(EVENT, "") == ""
    assert READER.read(Delivery(EVENT, b'{"eid": 7}')).known_as == ""
    assert READER.read(Delivery(EVENT, b'{"eid": "7"}')).known_as == known(EVENT, "7")
