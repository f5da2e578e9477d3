"""Endless dialogues: what a request's own part keeps when it outgrows its room.

Kept are the prefix nodes, the first tokens of the own part and the last ones (StreamingLLM, Xiao et
al. 2023, arXiv 2309.17453). When the room is full, the oldest tokens behind the first ones are let
go, a stretch at a time, and everything after them moves up: keys are rotated back by as many
positions, so that a model never meets a position it was not made for.
"""

from dataclasses import dataclass

from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Sliding:
    """Sizes in tokens, all of whole blocks.

    Attributes:
        sinks: kept at the beginning of the own part.
        window: of the latest tokens, kept at least.
        stretch: let go at a time. Each move costs a rotation of the window's keys, and a rounding
            where keys are not float32; with a quarter of the window a key is moved four times.
    """

    sinks: int
    window: int
    stretch: int

    @classmethod
    def of(cls, config: EngineConfig) -> "Sliding | None":
        """As the settings want it; None if requests end where their room does."""
        if config.sliding_window is None:
            return None
        size = config.block_size

        def whole(tokens: int) -> int:
            return -(-tokens // size) * size

        window = whole(config.sliding_window)
        return cls(whole(config.sink_tokens), window, whole(window // 4))

    @property
    def room(self) -> int:
        """Most own tokens in the cache at a time."""
        return self.sinks + self.window + self.stretch

    def of_own(self, tokens: int) -> int:
        """How many of so many own tokens are in the cache at a time."""
        return min(tokens, self.room)
