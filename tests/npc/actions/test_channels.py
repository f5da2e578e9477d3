"""A reply is taken apart the same way however it is cut into pieces, and speech does not wait."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npc.actions.channels import MAX_STAGE, Channels, Piece
from npc.actions.offer import Act, Offer, Open
from scenes.actions import markup

ITEM = json.dumps({"type": "object"})
OFFER = Offer((Open("give_item", ITEM), Open("give"), Open("follow")))
QUICK = settings(max_examples=200, deadline=None, derandomize=True)


def take_apart(text: str, *cuts: int, offer: Offer | None = OFFER) -> list[tuple[str, Any]]:
    """What a reply holds, neighbouring pieces of speech joined."""
    channels = Channels(offer)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    found: list[Piece | Act] = []
    start = 0
    for end in ends:
        found += channels.push(text[start:end])
        start = end
    found += channels.flush()
    joined: list[tuple[str, Any]] = []
    for piece in found:
        if isinstance(piece, Act):
            joined.append((piece.name, piece.args))
        elif joined and joined[-1][0] == piece.channel == "speech":
            joined[-1] = ("speech", joined[-1][1] + piece.text)
        else:
            joined.append((piece.channel, piece.text))
    return joined


@pytest.mark.parametrize(
    ("reply", "parts"),
    [
        ("Hello there.", [("speech", "Hello there.")]),
        ("*smiles* Hello.", [("stage", "smiles"), ("speech", "Hello.")]),
        (
            "Hello. *She looks away.* Go on.",
            [("speech", "Hello."), ("stage", "She looks away."), ("speech", " Go on.")],
        ),
        ("I *really* mean it.", [("speech", "I really mean it.")]),
        ("It is 2 * 3 * 4.", [("speech", "It is 2 * 3 * 4.")]),
        ("A **bold** word.", [("speech", "A **bold** word.")]),
        ("Well. *sighs and", [("speech", "Well."), ("stage", "sighs and")]),
        ("Five *coppers", [("speech", "Five *coppers")]),
        ("<think>He lies.</think>No.", [("thought", "He lies."), ("speech", "No.")]),
        ("1 < 2 <thin", [("speech", "1 < 2 <thin")]),
        (
            'Here. [give_item {"item":"a ] [ rope"}] Mind it.',
            [("speech", "Here."), ("give_item", {"item": "a ] [ rope"}), ("speech", " Mind it.")],
        ),
        ("[follow]", [("follow", {})]),
        ("Yes. [give] [follow]", [("speech", "Yes."), ("give", {}), ("follow", {})]),
        ("*nods [follow]", [("stage", "nods"), ("follow", {})]),
        ('Here. [give_item {"item":', [("speech", "Here.")]),
        ("A [small] thing.", [("speech", "A [small] thing.")]),
    ],
)
def test_what_a_reply_holds(reply: str, parts: list[tuple[str, Any]]) -> None:
    assert take_apart(reply) == parts
    assert take_apart(reply, *range(len(reply))) == parts


def test_brackets_are_speech_if_nothing_is_open() -> None:
    assert take_apart("Take it. [follow]", offer=None) == [("speech", "Take it. [follow]")]


@QUICK
@given(
    st.lists(
        st.sampled_from(["Hi ", "you. ", "*", "[", "]", "[follow]", "<think>", "</think>", "\n"])
        | st.text(max_size=5)
        | st.builds(lambda item: markup("give_item", {"item": item}), st.text(max_size=8)),
        max_size=12,
    ).map("".join),
    st.lists(st.integers(0, 80), max_size=20),
)
def test_where_a_reply_is_cut_makes_no_difference(reply: str, cuts: list[int]) -> None:
    assert take_apart(reply, *cuts) == take_apart(reply)


@QUICK
@given(st.text(alphabet=st.characters(exclude_characters="*<[", exclude_categories=["Cs"])))
def test_plain_words_are_released_as_they_come(reply: str) -> None:
    channels, said = Channels(OFFER), ""
    for end in range(len(reply)):
        said += "".join(p.text for p in channels.push(reply[end]) if isinstance(p, Piece))
        assert said == reply[: end + 1].rstrip()


def test_an_asterisk_that_nothing_closes_holds_up_no_more_than_the_longest_direction() -> None:
    channels = Channels()
    released = channels.push("*" + "x" * (MAX_STAGE + 1))
    assert [p.text for p in released if isinstance(p, Piece)] == ["*", "x" * (MAX_STAGE + 1)]


def test_a_turn_holds_two_actions_at_most_and_none_twice() -> None:
    assert take_apart("[follow][follow]") == [("follow", {}), ("speech", "[follow]")]
    parts = take_apart('[follow][give][give_item {"item":1}]')
    assert parts == [("follow", {}), ("give", {}), ("speech", '[give_item {"item":1}]')]


@pytest.mark.parametrize(
    "args", ['{"a":1e400}', '{"a":' + "9" * 20 + "}", '{"a":"\\ud800"}', '{"a":["\\u0000"]}']
)
def test_what_no_message_can_hold_is_not_carried_out(args: str) -> None:
    channels = Channels(OFFER)
    pieces = channels.push(f"Yes. [give_item {args}] Good.") + channels.flush()
    assert pieces == [Piece("speech", "Yes."), Piece("speech", " Good.")]
    assert channels.dropped == 1


def test_what_no_grammar_kept_valid_is_judged_as_a_whole() -> None:
    seen: list[str] = []

    def check(text: str) -> bool:
        seen.append(text)
        return False

    channels = Channels(OFFER, check)
    text = 'Yes. [give_item {"item":1}]'
    said = "".join(p.text for p in channels.push(text) if isinstance(p, Piece))
    assert said == text
    assert seen == ['[give_item {"item":1}]']


def test_deep_nesting_is_no_action() -> None:
    nested = '[give_item {"a":' + "[" * 4000 + "]" * 4000 + "}]"
    assert take_apart(nested) == [("speech", nested)]
