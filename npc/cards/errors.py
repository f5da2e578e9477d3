"""Why a card cannot be used."""

from typing import Literal

Reason = Literal[
    "unreadable", "too_large", "not_a_card", "damaged", "encoding", "too_deep", "missing", "taken"
]


class CardError(ValueError):
    """A card, lorebook or its target cannot be used.

    Attributes:
        reason: what kind of mistake it is, for programs.
        problem: what is wrong and what would be right, for people.
    """

    def __init__(self, reason: Reason, problem: str) -> None:
        self.reason = reason
        self.problem = problem
        super().__init__(problem)
