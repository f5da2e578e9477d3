"""How much reading a step may do beside the speaking."""

from engine.config import EngineConfig


class StepCost:
    """Learns what a step costs and says how many prefill tokens fit beside the speakers.

    The model is `milliseconds = base + per row × speakers + per token × prefill tokens`. Base and
    per row are a line through recent steps without reading, older ones counting less; a step of one
    speaker costs far more than a sixteenth of one of sixteen. Both follow slowly, so one disturbed
    step changes little.
    """

    _FOLLOW = 0.2
    _REMEMBER = 0.95  # weight of the past against the newest step without reading

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._per_prefill_ms = 0.5
        # Weighted sums over steps without reading, begun with a guess of 20 ms + 2 ms a row that
        # weighs as much as one step: of 1, n, n², t, n·t for n speakers and t milliseconds.
        self._sums = [1.0, 8.0, 128.0, 36.0, 352.0]

    def prefill_budget(self, speakers: int, *, urgent: bool = False) -> int:
        """Most prefill tokens for a step in which `speakers` requests also get a token.

        With nobody speaking the only bound is the step's size; otherwise what the target leaves,
        but never less than `min_prefill_tokens`, so that arrivals do not starve. `urgent` steps
        have a target of their own.
        """
        most = self._config.max_num_batched_tokens - speakers
        if speakers == 0:
            return most
        config = self._config
        target_ms = config.urgent_step_target_ms if urgent else config.step_target_ms
        left_ms = target_ms - self.speaking_ms(speakers)
        return max(min(int(left_ms / self._per_prefill_ms), most), self._config.min_prefill_tokens)

    def speaking_ms(self, speakers: int) -> float:
        """What a step without reading is expected to take; nothing if there are no speakers."""
        if speakers == 0:
            return 0.0
        count, n, nn, t, nt = self._sums
        spread = nn / count - (n / count) ** 2
        slope = max((nt / count - n * t / count**2) / spread, 0.0) if spread > 0.01 else 0.0
        return max(t / count + slope * (speakers - n / count), 0.0)

    def learn(self, speakers: int, prefill_tokens: int, milliseconds: float) -> None:
        """Take in one measured step."""
        if prefill_tokens == 0 and speakers:
            new = (1.0, speakers, speakers**2, milliseconds, speakers * milliseconds)
            pairs = zip(self._sums, new, strict=True)
            self._sums = [self._REMEMBER * old + value for old, value in pairs]
        elif prefill_tokens >= self._config.min_prefill_tokens:
            reading = max(milliseconds - self.speaking_ms(speakers), 0.0) / prefill_tokens
            self._per_prefill_ms += self._FOLLOW * (reading - self._per_prefill_ms)
            self._per_prefill_ms = max(self._per_prefill_ms, 1e-3)
