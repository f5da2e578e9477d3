"""Nobody learns what they did not hear: from no prompt, from no page, from nothing that changes."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from npc.dialogue import Dialogue, TurnRequest
from npc.settings import ReplySettings
from npc.transcript import Audience
from tests.npc.stage import RecordingEngine, dialogue, line

PLAYERS = ("anna", "bob", "carl")
#: Small enough that histories are cut and lines forgotten while the property is tested.
SMALL = ReplySettings(history_tokens=120, transcript_lines=8)


@dataclass(frozen=True)
class Event:
    """A line, and whether the NPC answers it."""

    who: str
    audience: Audience
    answered: bool


@st.composite
def events(draw: st.DrawFn) -> Event:
    who = draw(st.sampled_from(PLAYERS))
    circle = draw(st.none() | st.sets(st.sampled_from(PLAYERS)))
    audience = None if circle is None else frozenset(circle | {who})
    return Event(who, audience, draw(st.booleans()))


def may_know(audience: Audience, listeners: Audience) -> bool:
    """All listeners heard it."""
    return audience is None or (listeners is not None and listeners <= audience)


def play(talk: Dialogue, number: int, event: Event) -> None:
    """Line and reply carry their number, so that their text can be found again."""
    said = line(f"[{number}]", event.who, audience=event.audience)
    if not event.answered:
        talk.hear(said)
        return
    request = TurnRequest(f"t{number}", said, event.audience)
    talk.begin(request, print)
    talk.commit(request, f"({number})", 1, "completed", number)


@settings(max_examples=150, deadline=None)
@given(st.lists(events(), min_size=1, max_size=30))
def test_prompts_and_pages_hold_only_what_their_audience_heard(script: list[Event]) -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, settings=SMALL)
    for number, event in enumerate(script):
        play(talk, number, event)
        if event.answered:
            prompt = engine.submitted[-1]
            for other, heard in enumerate(script[: number + 1]):
                if not may_know(heard.audience, event.audience):
                    assert f"[{other}]" not in prompt.text
                    assert f"({other})" not in prompt.text
    for player in PLAYERS:
        page, _ = talk.history(player=player, before=None, limit=1000)
        for item in page:
            heard = script[int(item.text[1:-1])]
            assert heard.audience is None or player in heard.audience


@settings(max_examples=150, deadline=None)
@given(st.lists(events(), min_size=1, max_size=30))
def test_what_others_whisper_changes_nothing_at_all(script: list[Event]) -> None:
    """Leaving out every line that Anna cannot know gives her the same prompts and the same page."""
    full, hers = RecordingEngine(), RecordingEngine()
    with_all, with_hers = dialogue(full, settings=SMALL), dialogue(hers, settings=SMALL)
    for number, event in enumerate(script):
        play(with_all, number, event)
        if event.audience is None or "anna" in event.audience:
            play(with_hers, number, event)
    anna_hears = [p for p in full.submitted if ":" not in p.salt or "anna" in p.salt]
    assert [(p.prompt_ids, p.params, p.salt) for p in anna_hears] == [
        (p.prompt_ids, p.params, p.salt) for p in hers.submitted
    ]
    pages = [t.history(player="anna", before=None, limit=99) for t in (with_all, with_hers)]
    assert pages[0] == pages[1]


def test_whispers_do_not_push_out_what_others_said() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, settings=SMALL)
    play(talk, 0, Event("anna", None, True))
    for number in range(1, 100):
        play(talk, number, Event("bob", frozenset({"bob"}), True))
    play(talk, 100, Event("anna", None, True))
    assert "[0]" in engine.submitted[-1].text


def test_whispering_circles_are_bounded_and_the_latest_are_kept() -> None:
    talk = dialogue(RecordingEngine(), settings=ReplySettings(circles=2))
    for number, player in enumerate(PLAYERS):
        play(talk, number, Event(player, frozenset({player}), True))
    lines = {p: len(talk.history(player=p, before=None, limit=9)[0]) for p in PLAYERS}
    assert lines == {"anna": 0, "bob": 2, "carl": 2}
