"""What arrives is read strictly, and ids are remembered for a while and no more."""

import pytest
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


def arrivals(now: list[float], **mqtt: object) -> Arrivals:
    settings = settings_with(mqtt={"url": "mqtt://broker", **mqtt})
    assert settings.mqtt is not None
    return Arrivals(TOPICS, settings.mqtt, settings.limits, lambda: now[0])


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
        arrivals([0.0]).read(Delivery(EVENT, payload))
    except Unusable as why:
        cause = why.cause
    assert cause in {"", "bad_json", "bad_field", "too_deep", "too_large"}


def test_an_id_counts_within_its_topic_and_its_time() -> None:
    now = [0.0]
    reader = arrivals(now, dedupe_s=300)
    reader.read(Delivery(EVENT, b"1", eid="e1"))
    reader.read(Delivery(EVENT.replace("bell", "drum"), b"1", eid="e1"))
    now[0] = 299.0
    with pytest.raises(Unusable, match="duplicate"):
        reader.read(Delivery(EVENT, b"1", eid="e1"))
    now[0] = 301.0
    reader.read(Delivery(EVENT, b"1", eid="e1"))


def test_ids_take_bounded_room() -> None:
    reader = arrivals([0.0], dedupe_ids=10)
    for number in range(1000):
        reader.read(Delivery(EVENT, b"1", eid=f"e{number}"))
    assert len(reader._seen) <= 11


def test_without_an_id_every_delivery_is_an_event() -> None:
    reader = arrivals([0.0])
    assert [reader.read(Delivery(EVENT, b"")).data for _ in range(2)] == [None, None]
