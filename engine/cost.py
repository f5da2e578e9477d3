"""How much reading a step may do beside the speaking."""

from engine.config import EngineConfig


class StepCost:
    """Learns what a step costs and says how many prefill tokens fit beside the speakers.

    The model is `milliseconds = speaking(rows) + reading × prefill tokens`; both parts follow the
    measured steps slowly, so one disturbed step changes little.
    """

    _FOLLOW = 0.2

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._per_row_ms = 2.0
        self._per_prefill_ms = 0.5

    def prefill_budget(self, speakers: int) -> int:
        """Most prefill tokens for a step in which `speakers` requests also get a token.

        With nobody speaking the only bound is the step's size; otherwise what the target leaves,
        but never less than `min_prefill_tokens`, so that arrivals do not starve.
        """
        most = self._config.max_num_batched_tokens - speakers
        if speakers == 0:
            return most
        left_ms = self._config.step_target_ms - speakers * self._per_row_ms
        return max(min(int(left_ms / self._per_prefill_ms), most), self._config.min_prefill_tokens)

    def learn(self, speakers: int, prefill_tokens: int, milliseconds: float) -> None:
        """Take in one measured step."""
        if prefill_tokens == 0 and speakers:
            self._per_row_ms += self._FOLLOW * (milliseconds / speakers - self._per_row_ms)
        elif prefill_tokens >= self._config.min_prefill_tokens:
            reading = max(milliseconds - speakers * self._per_row_ms, 0.0) / prefill_tokens
            self._per_prefill_ms += self._FOLLOW * (reading - self._per_prefill_ms)
            self._per_prefill_ms = max(self._per_prefill_ms, 1e-3)
