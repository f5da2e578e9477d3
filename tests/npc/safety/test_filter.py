"""The output filter: what it finds, that it leaks nothing, and that it holds nothing up."""

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc.safety.filter import Passed, SpeechFilter
from npc.safety.patterns import PatternError, length, parse
from npc.safety.rules import RuleSet, parse_rules


def rules(*entries: dict[str, Any]) -> RuleSet:
    whole = [{"id": f"r{number}", **entry} for number, entry in enumerate(entries)]
    return parse_rules(json.dumps({"rules": whole}).encode())


def said(sets: list[RuleSet], pieces: list[str]) -> tuple[str, Passed, list[str]]:
    """All text, what ended it, and what was shown after each piece."""
    stream, text, shown = SpeechFilter(sets), "", []
    for piece in pieces:
        passed = stream.feed(piece)
        text += passed.text
        shown.append(text)
        if passed.stop is not None:
            return text, passed, shown
    passed = stream.finish()
    return text + passed.text, passed, shown


def whole(text: str, *sets: RuleSet) -> str:
    return said(list(sets), [text])[0]


MASK_DAMN = rules({"action": "mask", "words": ["damn"]})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Oh damn, damn!", "Oh ****, ****!"),
        ("damnation, goddamn, damn_", "damnation, goddamn, damn_"),
        ("DAMN ｄａｍｎ dámn da\u0301mn d\u00adamn", "**** **** **** ***** *****"),
        ("damn", "****"),
        ("dam", "dam"),
    ],
)
def test_a_word_is_found_in_any_case_and_with_any_accents_but_not_within_others(
    text: str, shown: str
) -> None:
    assert whole(text, MASK_DAMN) == shown


def test_look_alikes_are_the_letter_where_the_rule_says_so() -> None:
    text = "d4mn 1diot ldiot dаmn"
    found = rules({"action": "mask", "words": ["damn", "idiot"], "ignore": ["leet", "case"]})
    assert whole(text, found) == "**** ***** ldiot ****"
    assert whole(text, MASK_DAMN) == text


def test_case_and_accents_can_make_a_difference() -> None:
    exact = rules({"action": "mask", "words": ["Polish"], "ignore": []})
    assert whole("Polish polish Pólish", exact) == "****** polish Pólish"


def test_the_longest_of_the_leftmost_is_found_and_the_first_rule_counts_most() -> None:
    found = rules(
        {"action": "replace", "words": ["black cat"], "with": "A"},
        {"action": "replace", "words": ["black cat bone", "cat"], "with": "B"},
        {"action": "replace", "words": ["black cat", "bone"], "with": "C"},
    )
    assert whole("a black cat bone, a black cat box, cat, bone", found) == "a B, a A box, B, C"


def test_an_earlier_rule_set_counts_before_a_later_one() -> None:
    first = rules({"action": "replace", "words": ["cat"], "with": "1"})
    second = rules({"action": "replace", "words": ["cat", "cat food"], "with": "2"})
    assert whole("cat, cat food", first, second) == "1, 2"


def test_letters_that_are_two_elsewhere_are_read_as_these() -> None:
    assert whole("STRASSE straße", rules({"action": "mask", "words": ["straße"]})) == (
        "******* ******"
    )


def test_nothing_follows_a_rule_that_ends_the_speech() -> None:
    for action in ("block", "regenerate"):
        ends = rules({"action": action, "words": ["as an AI"]})
        text, passed, _ = said([ends], ["Well, a", "s an", " ai, I"])
        assert (text, passed.found) == ("Well, ", "as an ai")
        assert passed.stop is not None and passed.stop.action == action
        stream = SpeechFilter([ends])
        assert stream.feed("as an AI, I").stop is not None
        assert stream.feed("more").text == stream.finish().text == "" == stream.held


def test_a_match_may_begin_in_what_was_said_before() -> None:
    found = rules({"action": "replace", "words": ["bad cat"], "with": "X"})
    stream = SpeechFilter([found], said="a bad ")
    assert stream.feed("cat and a bad cat").text + stream.finish().text == "X and a X"
    assert SpeechFilter([found], said="a bad cat").feed(" purrs").text == " purrs"


def test_what_is_no_match_any_more_is_shown_at_once() -> None:
    stream = SpeechFilter([rules({"action": "mask", "words": ["language model"]})])
    assert stream.feed("a lang").text == "a "
    assert stream.held == "lang"
    assert stream.feed("ur").text == "langur"


PATTERNS = [
    r"\d{3}-\d{4}",
    r"[A-F]{2,4}x?",
    r"(?:ab|a)(?:c|bcd){1,2}",
    r"a.c",
    r"[^a-c ]{2}b",
    r"b{2,3}c?a",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text("abcdABF x-0123", max_size=40))
def test_patterns_find_what_regular_expressions_find(pattern: str, text: str) -> None:
    entry = {"action": "replace", "patterns": [pattern], "ignore": [], "with": "#"}
    found = rules({**entry, "whole_words": False})
    expected, place = "", 0
    while place < len(text):
        ends = [e for e in range(len(text), place, -1) if re.fullmatch(pattern, text[place:e])]
        expected += "#" if ends else text[place]
        place = ends[0] if ends else place + 1
    assert whole(text, found) == expected


WORDS = st.lists(st.text("ab c", min_size=1, max_size=5).filter(str.strip), min_size=1, max_size=5)
ACTIONS = st.sampled_from(["mask", "replace", "block", "regenerate"])


@st.composite
def rule_sets(draw: st.DrawFn) -> RuleSet:
    entries = []
    for _ in range(draw(st.integers(1, 3))):
        action = draw(ACTIONS)
        entry: dict[str, Any] = {"action": action, "words": draw(WORDS)}
        entry["whole_words"] = draw(st.booleans())
        entry["ignore"] = draw(st.sampled_from([[], ["case"], ["case", "diacritics"]]))
        if draw(st.booleans()):
            entry["patterns"] = [draw(st.sampled_from(PATTERNS[1:]))]
        entries.append(entry)
    return rules(*entries)


@st.composite
def cuts(draw: st.DrawFn) -> list[str]:
    text = draw(st.text("abcdAB á\u0301", max_size=40))
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)) | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@given(sets=st.lists(rule_sets(), min_size=1, max_size=2), pieces=cuts())
def test_pieces_make_no_difference_nothing_leaks_and_nothing_is_held_up(
    sets: list[RuleSet], pieces: list[str]
) -> None:
    """What is shown at any time is a beginning of the filtered whole, so no part of a word that is
    filtered in the end was shown before; and what is held is no longer than a match can be."""
    expected, end, _ = said(sets, ["".join(pieces)])
    text, passed, shown = said(sets, pieces)
    assert (text, passed.stop, passed.found) == (expected, end.stop, end.found)
    assert all(expected.startswith(part) for part in shown)
    stream, longest = SpeechFilter(sets), max(s.automaton.longest for s in sets)
    for piece in pieces:
        stream.feed(piece)
        marks = sum(char in "\u0301\u0300" for char in stream.held)
        assert len(stream.held) - marks <= longest
        assert len(stream.held) <= max(s.automaton.reach for s in sets)


def test_a_filter_without_rules_holds_nothing() -> None:
    stream = SpeechFilter([rules(), parse_rules(b'{"rules": []}')])
    assert stream.feed("anything").text == "anything"
    assert stream.finish().text == ""


@given(text=st.text(max_size=60))
def test_any_text_passes_in_full_if_no_rule_finds_anything(text: str) -> None:
    found = rules({"action": "mask", "words": ["zzyzx q"], "patterns": ["ZZYZX[0-9]{3}"]})
    assert "".join(said([found], list(text))[0]) == text or "zzyzx" in text.casefold()


@pytest.mark.parametrize(
    ("pattern", "bounds"),
    [("a", (1, 1)), ("a?b", (1, 2)), ("(ab|c){2,3}", (2, 6)), (r"\.", (1, 1))],
)
def test_the_length_of_a_pattern_is_known(pattern: str, bounds: tuple[int, int]) -> None:
    assert length(parse(pattern)) == bounds


BAD = r"a* a+ a{2,} a{3,2} a{201} (a{20}){20} a? (a a) [a [] ?a [b-a] \ \q ^a a$ (?=a) a{ a{2"


@pytest.mark.parametrize("pattern", [*BAD.split(), "", "x{1,9999999}", "(" * 30 + "a" + ")" * 30])
def test_patterns_without_a_longest_match_and_other_mistakes_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        parse(pattern)


@given(pattern=st.text("ab[](){}?|,1-^\\.d", max_size=20))
def test_any_pattern_is_read_or_refused(pattern: str) -> None:
    try:
        shortest, longest = length(parse(pattern))
    except PatternError:
        return
    assert 1 <= shortest <= longest <= 200
