"""A line brings back the examples that share with it what others do not, and none by accident."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc.persona import Example
from npc.recall import Recall

EXAMPLES = [
    Example("Hello!", "Hello, dear."),
    Example("Who are you?", "I'm Mira, dear."),
    Example("Any rumours?", "There's a green light in the mill, dear."),
    Example("How much is a room?", "A room is five coppers, dear."),
    Example("What is in room seven?", "Dust and old blankets, dear."),
    Example("Where is the bridge?", "The bridge is gone, dear."),
    Example("Have you seen Robin?", "Not since Robin went up the hill, dear."),
    Example("Do you pay?", "For news of Robin, dear."),
    Example("Tell me about the mill.", "The mill has been empty for years, dear."),
]


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Where is Robin?", "Have you seen Robin?"),
        ("Who are you?", "Who are you?"),
        ("HELLO", "Hello!"),
        ("heard a rumour", "Any rumours?"),
        ("Is there a room?", "How much is a room?"),
        ("Room seven, please", "What is in room seven?"),
        ("the mill", "Tell me about the mill."),
        ("blankets", "What is in room seven?"),
    ],
)
def test_the_closest_comes_last(text: str, asked: str) -> None:
    assert Recall(EXAMPLES).best(text, 2)[-1].player == asked


@pytest.mark.parametrize("text", ["", "?!", "dragons", "Sing of kings and dragons, dear", "你好"])
def test_nothing_comes_back_by_accident(text: str) -> None:
    assert Recall(EXAMPLES).best(text, 2) == []


def test_no_more_than_asked_for() -> None:
    recall = Recall(EXAMPLES)
    for most in (0, 1, 2):
        assert len(recall.best("Is there a room in the mill?", most)) == most
    assert Recall([]).best("Who are you?", 2) == []


@given(st.text(), st.integers(0, 8))
def test_any_line_can_be_searched_for(text: str, most: int) -> None:
    assert len(Recall(EXAMPLES).best(text, most)) <= most
