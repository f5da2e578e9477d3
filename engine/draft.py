"""A step while it is planned."""

from engine.plan import BlockCopy, SequenceStep
from engine.request import Request


class Draft:
    """What a step is to read so far, with the sums that its planning asks for again and again.

    Attributes:
        shares: of those who read, in order.
        copies: blocks to be copied first.
        tokens: read in all.
        quest_tokens: of those, what quest-givers (class 0) read of their own lines; if there are
            any, one of them is about to begin.
    """

    def __init__(self) -> None:
        self.shares: list[SequenceStep] = []
        self.copies: list[BlockCopy] = []
        self.tokens = 0
        self.quest_tokens = 0

    def add(self, share: SequenceStep) -> int:
        """Take a share in; returns how many tokens it reads."""
        count = len(share.tokens)
        self.shares.append(share)
        self.tokens += count
        if isinstance(share.owner, Request) and share.owner.priority == 0:
            self.quest_tokens += count
        return count
