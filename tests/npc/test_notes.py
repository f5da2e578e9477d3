"""Notes stand late, within their tokens, the most important ones first served; sources are told
everything that is said, and nothing of a request that was refused.
"""

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import QueueFull
from npc.dialogue import Dialogue, TurnRequest
from npc.notes import Moment, Note, NoteSource, fitting
from npc.settings import ReplySettings
from npc.transcript import Line
from tests.npc.stage import RecordingEngine, dialogue, line


class Recorder(NoteSource):
    """Has the notes it is given, and writes down what it is told."""

    def __init__(self, *notes: Note, tokens: int = 200) -> None:
        self.tokens = tokens
        self.given = notes
        self.moments: list[Moment] = []
        self.log: list[str] = []

    def notes(self, moment: Moment) -> Sequence[Note]:
        self.moments.append(moment)
        return self.given

    def heard(self, line: Line, present: frozenset[str]) -> None:
        self.log.append(f"heard {line.text} {sorted(present)}")

    def said(self, line: Line, answers: Line, present: frozenset[str]) -> None:
        self.log.append(f"said {line.text} to {answers.text} {sorted(present)}")

    def amended(self, line: Line) -> None:
        self.log.append(f"amended {line.text}")


def noted(*sources: NoteSource, engine: RecordingEngine | None = None, **rest: object) -> Dialogue:
    talk = dialogue(engine or RecordingEngine(), settings=ReplySettings(**rest))  # type: ignore[arg-type]
    talk.sources = sources
    return talk


def begun(talk: Dialogue, request: TurnRequest) -> str:
    talk.begin(request, print)
    return cast(RecordingEngine, talk._engine).submitted[-1].text


def test_notes_stand_in_the_order_of_their_sources_right_before_the_newest_line() -> None:
    talk = noted(
        Recorder(Note("It rains."), Note("Bob left.", "remembers")), Recorder(Note("Lie.", "wants"))
    )
    talk.hear(line("Hello!"))
    talk.commit(TurnRequest("t0", line("Hello!")), "Welcome.", 1, "completed", 1)
    assert begun(talk, TurnRequest("t1", line("Well?"))) == (
        "<user>Anna: Hello!</user><npc>Welcome.</npc><user>(Mira knows: It rains.)\n"
        "(Mira remembers: Bob left.)\n(Mira wants: Lie.)\nAnna: Well?</user><npc>"
    )
    talk.sources = ()
    assert "(" not in begun(talk, TurnRequest("t2", line("So?")))


def test_sources_are_told_what_was_heard_said_and_amended() -> None:
    source = Recorder()
    talk = noted(source)
    talk.present = frozenset({"anna", "bob"})
    talk.hear(line("Thunder."))
    request = TurnRequest("t1", line("Hi!"))
    talk.begin(request, print)
    talk.commit(request, "Hello, dear.", 2, "completed", 1)
    talk.amend("t1", "Hello,", 1)
    talk.amend("nobody's", "x", 1)
    who = ["anna", "bob"]
    assert source.log == [
        f"heard Thunder. {who}",
        f"heard Hi! {who}",
        f"said Hello, dear. to Hi! {who}",
        "amended Hello,",
    ]
    (moment,) = source.moments
    assert (moment.turn, moment.audience, moment.present) == ("t1", None, talk.present)
    assert [told.text for told in moment.told] == ["Thunder."]


def test_a_refused_request_was_not_heard() -> None:
    source = Recorder()
    talk = noted(source, engine=RecordingEngine(refuse=QueueFull(1)))
    with pytest.raises(QueueFull):
        talk.begin(TurnRequest("t1", line("Hi!")), print)
    assert source.log == []


def test_a_source_without_tokens_is_not_asked() -> None:
    source = Recorder(Note("x"), tokens=0)
    assert begun(noted(source), TurnRequest("t1", line("Hi!"))) == "<user>Anna: Hi!</user><npc>"
    assert source.moments == []


def test_where_room_is_short_the_last_source_is_served_first_and_the_line_always() -> None:
    first, last = Recorder(Note("a" * 80)), Recorder(Note("b" * 80))
    sizes = [
        (text.count("a" * 80), text.count("b" * 80))
        for length in range(300, 900, 20)
        for text in [begun(_short(first, last, length=length), TurnRequest("t1", line("Hi!")))]
    ]
    assert sizes[0] == (0, 0)
    assert sizes[-1] == (1, 1)
    assert sorted(sizes, key=lambda size: (size[1], size[0])) == sizes
    assert (0, 1) in sizes


def _short(*sources: NoteSource, length: int) -> Dialogue:
    return noted(*sources, engine=RecordingEngine(max_model_len=length))


def test_the_talk_begins_at_the_same_line_whatever_the_notes_are() -> None:
    told = []
    for text in ("", "x", "x" * 150):
        source = Recorder(*([Note(text)] if text else []))
        talk = noted(source, engine=RecordingEngine(max_model_len=900))
        for number in range(30):
            talk.hear(line(f"Line {number}."))
        begun(talk, TurnRequest("t1", line("Hi!")))
        told.append([told.text for told in source.moments[0].told])
    assert told[0] == told[1] == told[2]
    assert len(told[0]) < 30


@given(
    st.lists(st.builds(Note, text=st.text("x", max_size=9), priority=st.integers(-2, 2))),
    st.integers(0, 40),
)
def test_what_is_left_out_would_not_have_fit_beside_what_is_more_important(
    notes: list[Note], tokens: int
) -> None:
    numbered = [
        Note(f"{note.text}{at:03}", priority=note.priority) for at, note in enumerate(notes)
    ]
    kept = fitting(numbered, tokens, lambda note: len(note.text))
    assert kept == [note for note in numbered if note in kept]
    assert sum(len(note.text) for note in kept) <= tokens
    for at, note in enumerate(numbered):
        if note not in kept:
            above = [
                n
                for i, n in enumerate(numbered)
                if n in kept and (n.priority, i) > (note.priority, at)
            ]
            assert sum(len(n.text) for n in above) + len(note.text) > tokens
