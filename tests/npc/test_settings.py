"""Reply settings are checked once, and a wrong one is refused by name."""

import msgspec
import pytest

from npc.dialogue import TurnRequest
from npc.settings import ReplySettings
from tests.npc.stage import RecordingEngine, dialogue, line


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("sentence_after", -1),
        ("temperature", -0.1),
        ("top_p", 0),
        ("min_p", 1.5),
        ("repetition_penalty", 0),
        ("frequency_penalty", 3),
        ("stop", [""]),
        ("line_tokens", 0),
        ("history_kept", 0),
        ("priorities", {"ambient": -1}),
        ("priorities", {"hero": 0}),
        ("temprature", 1),
    ],
)
def test_what_makes_no_sense_is_refused(field: str, value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({field: value}, ReplySettings)


def test_a_file_may_give_a_kind_another_class() -> None:
    settings = msgspec.convert({"priorities": {"host": 0}}, ReplySettings)
    engine = RecordingEngine()
    dialogue(engine, settings=settings).begin(TurnRequest("t1", line("Hi!")), print)
    assert engine.submitted[0].priority == 0
