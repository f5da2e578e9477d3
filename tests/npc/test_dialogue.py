"""What an NPC remembers is what was heard, and what it is asked is always the newest line."""

from itertools import pairwise

import pytest

from engine.errors import ContextExceeded, QueueFull
from npc.dialogue import Dialogue, TurnRequest
from npc.settings import ReplySettings
from npc.transcript import Line
from tests.npc.stage import RecordingEngine, dialogue, line


def said(talk: Dialogue, turn: str, text: str, reply: str, who: str = "anna") -> None:
    request = TurnRequest(turn, line(text, who))
    talk.begin(request, print)
    talk.commit(request, reply, 1, "completed", 1)


def texts(talk: Dialogue, player: str = "anna") -> list[str]:
    page, _ = talk.history(player=player, before=None, limit=100)
    return [item.text for item in page]


def test_a_committed_turn_is_in_the_very_next_prompt() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine)
    said(talk, "t1", "Hi!", "Hello.")
    said(talk, "t2", "Bye!", "Farewell.")
    assert "<npc>Hello.</npc>" in engine.submitted[1].text
    assert texts(talk) == ["Hi!", "Hello.", "Bye!", "Farewell."]


def test_only_what_was_heard_is_remembered_and_may_still_change() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine)
    request = TurnRequest("t1", line("Hi!"))
    talk.begin(request, print)
    talk.commit(request, "Hello, I", 2, "interrupted", 1)
    talk.amend("t1", "Hello,", 1)
    talk.begin(TurnRequest("t2", line("What?")), print)
    assert "<npc>Hello,</npc>" in engine.submitted[-1].text
    (_, reply, _), _ = talk.history(player="anna", before=None, limit=9)
    assert (reply.text, reply.heard, reply.status) == ("Hello,", 1, "interrupted")


def test_a_turn_of_which_nothing_was_heard_may_be_heard_later() -> None:
    talk = dialogue(RecordingEngine())
    request = TurnRequest("t1", line("Hi!"))
    talk.begin(request, print)
    talk.commit(request, "", 0, "interrupted", 1)
    assert texts(talk) == ["Hi!"]
    talk.amend("t1", "Hello", 1)
    assert texts(talk) == ["Hi!", "Hello"]
    talk.amend("t1", "", 0)
    assert texts(talk) == ["Hi!"]
    talk.amend("no such turn", "x", 1)


def test_an_answer_follows_its_line_though_something_was_heard_meanwhile() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine)
    request = TurnRequest("t1", line("Hi!"))
    talk.begin(request, print)
    talk.hear(line("Thunder.", "sky", kind="observed"))
    talk.commit(request, "Hello.", 1, "completed", 1)
    talk.begin(TurnRequest("t2", line("Oh!")), print)
    assert engine.submitted[-1].text == (
        "<user>Anna: Hi!</user><npc>Hello.</npc><user>Sky: Thunder.\nAnna: Oh!</user><npc>"
    )
    assert texts(talk) == ["Hi!", "Thunder.", "Hello.", "Oh!"]


def test_a_line_that_was_heard_before_it_is_answered_stands_once() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine)
    talk.hear(line("Hi!"))
    said(talk, "t1", "Hi!", "Hello.")
    assert engine.submitted[0].text == "<user>Anna: Hi!</user><npc>"
    assert texts(talk) == ["Hi!", "Hello."]


def test_a_refused_request_leaves_no_trace() -> None:
    engine = RecordingEngine(refuse=QueueFull(1))
    talk = dialogue(engine)
    with pytest.raises(QueueFull):
        talk.begin(TurnRequest("t1", line("Hi!")), print)
    assert texts(talk) == []
    engine.refuse = None
    talk.begin(TurnRequest("t2", line("Again.")), print)
    assert engine.submitted[0].text == "<user>Anna: Again.</user><npc>"


def test_too_long_lines_are_refused_with_limit_and_actual() -> None:
    talk = dialogue(RecordingEngine(), settings=ReplySettings(line_tokens=10))
    talk.check("x" * 10)
    with pytest.raises(ContextExceeded) as caught:
        talk.check("x" * 11)
    assert (caught.value.limit, caught.value.actual) == (10, 11)


def test_a_line_that_passed_the_check_fits_even_a_small_model() -> None:
    for length in (450, 1000):
        engine = RecordingEngine(max_model_len=length)
        talk = dialogue(engine)
        with pytest.raises(ContextExceeded) as caught:
            talk.check("x" * length)
        longest = caught.value.limit
        talk.check("x" * longest)
        talk.commit(TurnRequest("t1", line("")), "Come in.", 1, "completed", 1)
        talk.begin(TurnRequest("t2", line("x" * longest, name="🐢" * 50)), print)
        assert longest > length // 8
        assert total(engine) <= length


def total(engine: RecordingEngine) -> int:
    """Prefix, own part and reply of the newest request."""
    request = engine.submitted[-1]
    return request.prefix.total + len(request.prompt_ids) + request.params.max_tokens


def test_an_unchecked_line_that_does_not_fit_is_refused_before_the_engine_sees_it() -> None:
    engine = RecordingEngine(max_model_len=400)
    with pytest.raises(ContextExceeded) as caught:
        dialogue(engine).begin(TurnRequest("t1", line("x" * 400)), print)
    assert caught.value.actual > caught.value.limit
    assert not engine.submitted


def test_history_makes_room_for_a_long_line() -> None:
    engine = RecordingEngine(max_model_len=600)
    talk = dialogue(engine)
    for number in range(8):
        said(talk, f"t{number}", f"Line {number}.", "A reply of some length.")
    talk.begin(TurnRequest("t9", line("x" * 250)), print)
    assert engine.submitted[-1].text.endswith("x" * 250 + "</user><npc>")
    assert total(engine) <= 600


def test_history_is_cut_in_hops_so_that_the_cache_survives_most_turns() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, settings=ReplySettings(history_tokens=400, history_kept=0.5))
    for number in range(60):
        said(talk, f"t{number}", f"Line {number:02}.", f"Reply {number:02}.")
    starts = [prompt.text[:20] for prompt in engine.submitted]
    cuts = sum(before != after for before, after in pairwise(starts))
    assert 4 <= cuts <= 8
    for before, after in pairwise(engine.submitted):
        kept = after.text.startswith(before.text.removesuffix("</user><npc>"))
        assert kept or before.text[:20] != after.text[:20]


def test_history_of_nothing_but_heard_lines_is_cut_as_well() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, settings=ReplySettings(history_tokens=100))
    for number in range(50):
        talk.hear(line(f"Noise {number}.", "sky", kind="observed"))
    talk.begin(TurnRequest("t1", line("Hi!")), print)
    assert engine.submitted[0].text.startswith("<user>Sky: Noise")
    assert len(engine.submitted[0].prompt_ids) < 120


def test_pages_run_from_new_to_old_without_gap_or_repeat() -> None:
    talk = dialogue(RecordingEngine())
    for number in range(25):
        said(talk, f"t{number}", f"Line {number}.", f"Reply {number}.")
    pages: list[Line] = []
    before: str | None = None
    while True:
        page, before = talk.history(player="anna", before=before, limit=7)
        assert len(page) <= 7
        pages = page + pages
        if before is None:
            break
    assert [item.text for item in pages] == texts(talk)
    assert len(pages) == 50
    assert talk.history(player="anna", before="unknown", limit=7) == ([], None)


def test_memory_is_bounded() -> None:
    talk = dialogue(RecordingEngine(), settings=ReplySettings(transcript_lines=10))
    for number in range(50):
        said(talk, f"t{number}", f"Line {number}.", f"Reply {number}.")
    assert texts(talk)[0] == "Line 45."
    assert len(texts(talk)) == 10


def test_sampling_comes_from_the_settings_and_names_of_others_stop_a_reply() -> None:
    engine = RecordingEngine()
    settings = ReplySettings(max_tokens=9, temperature=0.5, sentence_after=3, stop=("\n\n",))
    talk = dialogue(engine, settings=settings, others=("Captain Harn",))
    talk.hear(line("Brr.", "bob"))
    talk.hear(line("Secret.", "carl", audience=frozenset({"carl"})))
    talk.begin(TurnRequest("t1", line("Hi!", name="Anna\nX")), print)
    params = engine.submitted[0].params
    assert (params.max_tokens, params.temperature, params.sentence_after) == (9, 0.5, 3)
    assert params.stop == ("\n\n", "\nAnna X:", "\nBob:", "\nCaptain Harn:", "\nMira:")


def test_an_npc_does_not_repeat_its_latest_replies() -> None:
    engine = RecordingEngine()
    settings = ReplySettings(repeat_words=3, repeat_replies=2)
    talk = dialogue(engine, settings=settings)
    for turn, reply in enumerate(("One two three.", "Aye, the sea-wind's song, dear!", "No.")):
        said(talk, f"t{turn}", f"Line {turn}.", reply)
    talk.begin(TurnRequest("t9", line("Hi!")), print)
    worn = [request.params.bad_words for request in engine.submitted]
    later = ("Aye, the sea-wind's", "the sea-wind's song", "sea-wind's song, dear")
    assert worn == [(), ("One two three",), ("One two three", *later), later]


def test_repeating_may_be_allowed() -> None:
    for settings in (ReplySettings(repeat_words=0), ReplySettings(repeat_replies=0)):
        engine = RecordingEngine()
        talk = dialogue(engine, settings=settings)
        said(talk, "t1", "Hi!", "One two three four five.")
        talk.begin(TurnRequest("t2", line("Hm?")), print)
        assert engine.submitted[-1].params.bad_words == ()


def test_examples_are_told_again_only_where_there_is_room() -> None:
    line_ = "Who are you " + "x" * 60
    for length, told in ((8192, True), (330, False)):
        engine = RecordingEngine(max_model_len=length)
        dialogue(engine).begin(TurnRequest("t1", line(line_)), print)
        assert ("Guest:" in engine.submitted[0].text) == told
        assert total(engine) <= length


def test_a_scripted_engine_says_all_of_its_script() -> None:
    engine = RecordingEngine(scripted=True, scripted_length=500)
    dialogue(engine).begin(TurnRequest("t1", line("Hi!")), print)
    params = engine.submitted[0].params
    assert (params.max_tokens, params.stop, params.sentence_after) == (500, (), None)


def test_kind_decides_priority_and_audience_the_cache_salt() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine)
    talk.begin(TurnRequest("t1", line("a")), print)
    two = frozenset({"bob", "anna"})
    talk.begin(TurnRequest("t2", line("b", audience=two), two), print)
    talk.begin(
        TurnRequest("t3", line("c", audience=frozenset({"anna"})), frozenset({"anna"})), print
    )
    assert [request.salt for request in engine.submitted] == ["inn", "inn:anna,bob", "inn:anna"]
    assert {request.shares for request in engine.submitted} == {("player anna", "scene inn")}
    assert {request.priority for request in engine.submitted} == {1}
