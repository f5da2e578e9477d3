"""What a step will take, learnt from steps that were measured."""

#: Before anything is learnt: milliseconds of a step, of each speaker, of reading at all, and of
#: each token read. More than most machines need, so that the first steps are not too long.
_GUESS = (20.0, 2.0, 0.0, 0.5)
#: How far a guess may be off, in the same units: what one step says outweighs it soon.
_UNSURE = (60.0, 6.0, 10.0, 1.5)
_REMEMBER = 0.98  # weight of the past against the newest step
_SURPRISE = 4.0  # a step that took longer than so many times what was expected was disturbed
_SWEEPS = 6


class StepCost:
    """Learns `milliseconds = base + per speaker · n + (reading + per token · p, if p > 0)`.

    n requests speak, p tokens are read; a step that reads computes full tiles of `row_tile` rows,
    and p counts what fills the last one. Base and speakers are of their own because a step of one
    speaker costs far more than a sixteenth of one of sixteen; reading is, because steps that only
    speak may be launched more cheaply.

    Least squares of relative errors, older steps counting less, none of the four below zero. What
    recent steps say nothing about stays as it is (they pull towards the present estimate, which is
    otherwise forgotten), and a step that took surprisingly long counts as one that took twice the
    time: a disturbed one changes little, and a machine that has slowed down is followed all the
    same.
    """

    def __init__(self, row_tile: int = 1) -> None:
        self._row_tile = row_tile
        self._cost = list(_GUESS)
        self._anchor = [1.0 / unsure**2 for unsure in _UNSURE]
        # Normal equations: products of what steps had, and of what they had with what they took.
        self._square = [[0.0] * 4 for _ in range(4)]
        self._with_time = [0.0] * 4
        for i, weight in enumerate(self._anchor):
            self._square[i][i] = weight
            self._with_time[i] = weight * self._cost[i]

    def expected_ms(self, speakers: int, tokens: int = 0) -> float:
        """Milliseconds of a step in which `speakers` speak and `tokens` are read."""
        base, speaker, reading, token = self._cost
        filled = self._filled(speakers, tokens)
        return base + speaker * speakers + (reading + token * filled if tokens else 0.0)

    def bare_ms(self, speakers: int) -> float:
        """Milliseconds of a step that reads beside `speakers`, but for the tokens themselves."""
        base, speaker, reading, _ = self._cost
        return base + speaker * speakers + reading

    @property
    def token_ms(self) -> float:
        """Milliseconds that each token read takes; above 0."""
        return max(self._cost[3], 1e-3)

    def learn(self, speakers: int, tokens: int, milliseconds: float) -> None:
        """Take in one measured step."""
        expected = max(self.expected_ms(speakers, tokens), 1e-3)
        took = min(milliseconds, _SURPRISE * expected)
        step = (1.0, speakers, float(tokens > 0), self._filled(speakers, tokens))
        for i in range(4):
            weighted = step[i] / max(took, expected) ** 2
            row, anchor = self._square[i], (1 - _REMEMBER) * self._anchor[i]
            for j in range(4):
                row[j] = _REMEMBER * row[j] + weighted * step[j]
            row[i] += anchor
            past = _REMEMBER * self._with_time[i] + anchor * self._cost[i]
            self._with_time[i] = past + weighted * took
        self._solve()

    def _filled(self, speakers: int, tokens: int) -> int:
        """Rows that a step computes beside those of speakers."""
        return tokens and -(-(speakers + tokens) // self._row_tile) * self._row_tile - speakers

    def _solve(self) -> None:
        """Least squares without negative solutions, by coordinate descent from the last ones."""
        for _ in range(_SWEEPS):
            for i, row in enumerate(self._square):
                others = sum(row[j] * self._cost[j] for j in range(4) if j != i)
                self._cost[i] = max((self._with_time[i] - others) / row[i], 0.0)
