"""How many tokens a step may read beside those who speak in it."""

from engine.cost import StepCost
from engine.pace import Pace

#: Reading takes at least this share of what the step costs without it, whatever the target says:
#: where speech alone uses the target up, arrivals must not starve.
_LEAST_SHARE = 0.5
#: Tokens that may come late are saved up for so many tokens of each slot: the burst of a scene that
#: nobody has been to.
_SAVED = 50


class Budget:
    """Sizes steps by what they are expected to cost."""

    def __init__(self, pace: Pace, cost: StepCost) -> None:
        self._pace = pace
        self._cost = cost
        self._most_late = pace.late_share * _SAVED * pace.max_num_seqs
        self._may_be_late = self._most_late  # so many tokens, now

    def reading(self, speakers: int, *, urgent: bool) -> int:
        """Most tokens to be read in a step in which `speakers` speak: what the target leaves.

        While nobody speaks the only bounds are those of long steps. Where tokens may be late, they
        are as soon as somebody has to be read and few enough speak.
        """
        return self._tokens_in(self._limit_ms(speakers, urgent), speakers)

    def planned(self, speakers: int, tokens: int, *, urgent: bool) -> None:
        """Book a step: whether what its speakers say comes late."""
        late = tokens > self._tokens_in(self._target_ms(urgent), speakers)
        saved = self._may_be_late + speakers * (self._pace.late_share - late)
        self._may_be_late = min(saved, self._most_late)

    def speakers_pause(self, others: int) -> bool:
        """Whether a step in which a quest-giver begins is to be without the `others` who speak: it
        must save the quest-giver more than they lose, which is what a step costs in any case.
        """
        alone_ms = self._cost.expected_ms(0)
        return self._cost.expected_ms(others) - alone_ms > alone_ms

    def readers_yield(self, others: int, tokens: int) -> bool:
        """Whether it is to be without the `tokens` that others may read in it: that must save more
        than a step costs in which they are read later.
        """
        beside = 0 if self.speakers_pause(others) else others
        return self._cost.token_ms * tokens > self._cost.expected_ms(beside)

    def _target_ms(self, urgent: bool) -> float:
        return self._pace.urgent_step_target_ms if urgent else self._pace.step_target_ms

    def _limit_ms(self, speakers: int, urgent: bool) -> float:
        if speakers <= self._may_be_late:
            return max(self._pace.long_step_ms, self._target_ms(urgent))
        return self._target_ms(urgent)

    def _tokens_in(self, milliseconds: float, speakers: int) -> int:
        """Tokens read in a step of so many milliseconds; no fewer and no more than there may be."""
        pace, bare_ms = self._pace, self._cost.bare_ms(speakers)
        for_reading_ms = max(milliseconds - bare_ms, _LEAST_SHARE * bare_ms)
        wanted = for_reading_ms / self._cost.token_ms
        most = pace.max_num_batched_tokens - speakers
        tokens = min(max(wanted, pace.min_prefill_tokens), most)
        tiles = round((speakers + tokens) / pace.row_tile)  # the last is paid for in any case
        filled = tiles * pace.row_tile - speakers
        return filled if pace.min_prefill_tokens <= filled <= most else int(tokens)
