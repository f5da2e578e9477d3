"""What the measured replies come to, as figures and as a table."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table

from engine.percentile import percentile
from gameserver.bench.load import Reply


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one pass over the workload; times are in milliseconds and None where nothing came.

    Attributes:
        name: of the pass.
        seconds: from the first line sent to the last reply complete.
        ttft_p50_ms, ttft_p90_ms, ttft_p99_ms: from sending a line to the first of its reply.
        quest_ttft_p50_ms, quest_ttft_p99_ms: the same for quest-givers only.
        other_ttft_p50_ms, other_ttft_p99_ms: for everybody else.
        itl_p50_ms, itl_p99_ms: between one arrival and the next of a reply.
        cached_share: of the prompt tokens, as the server says.
        errors: number of failures by kind.
    """

    name: str
    replies: int
    seconds: float
    requests_per_s: float
    tokens_per_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_share: float
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    ttft_p99_ms: float | None
    quest_ttft_p50_ms: float | None
    quest_ttft_p99_ms: float | None
    other_ttft_p50_ms: float | None
    other_ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    errors: dict[str, int]

    def as_json(self) -> dict[str, object]:
        """All of it, for a file."""
        return asdict(self)


def figures(name: str, replies: Sequence[Reply]) -> Figures:
    """What a pass came to. Failed replies count as errors and in nothing else."""
    good = [reply for reply in replies if reply.error is None]
    seconds = max((r.done for r in replies), default=0) - min((r.sent for r in replies), default=0)
    pace = 1 / seconds if seconds > 0 else 0.0
    quests = [1000 * (reply.times[0] - reply.sent) for reply in good if reply.quest]
    others = [1000 * (reply.times[0] - reply.sent) for reply in good if not reply.quest]
    first = quests + others
    gaps = [1000 * (b - a) for reply in good for a, b in itertools.pairwise(reply.times)]
    prompt = sum(reply.prompt for reply in good)
    completion = sum(reply.completion for reply in good)
    return Figures(
        name=name,
        replies=len(good),
        seconds=seconds,
        requests_per_s=len(good) * pace,
        tokens_per_s=completion * pace,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_share=sum(reply.cached for reply in good) / max(prompt, 1),
        ttft_p50_ms=_known(first, 50),
        ttft_p90_ms=_known(first, 90),
        ttft_p99_ms=_known(first, 99),
        quest_ttft_p50_ms=_known(quests, 50),
        quest_ttft_p99_ms=_known(quests, 99),
        other_ttft_p50_ms=_known(others, 50),
        other_ttft_p99_ms=_known(others, 99),
        itl_p50_ms=_known(gaps, 50),
        itl_p99_ms=_known(gaps, 99),
        errors=dict(Counter(reply.error for reply in replies if reply.error is not None)),
    )


def _known(values: Sequence[float], percent: int) -> float | None:
    return percentile(values, percent) if values else None


def table(passes: Sequence[Figures]) -> Table:
    """One column a pass."""
    cells: tuple[tuple[str, Callable[[Figures], str]], ...] = (
        ("replies", lambda f: f"{f.replies}"),
        ("seconds", lambda f: f"{f.seconds:.2f}"),
        ("requests/s", lambda f: f"{f.requests_per_s:.2f}"),
        ("tokens/s", lambda f: f"{f.tokens_per_s:.1f}"),
        ("prompt cached", lambda f: f"{f.cached_share:.0%}"),
        ("first token p50", lambda f: _ms(f.ttft_p50_ms)),
        ("first token p90", lambda f: _ms(f.ttft_p90_ms)),
        ("first token p99", lambda f: _ms(f.ttft_p99_ms)),
        ("  quest-givers p50", lambda f: _ms(f.quest_ttft_p50_ms)),
        ("  quest-givers p99", lambda f: _ms(f.quest_ttft_p99_ms)),
        ("  everybody else p50", lambda f: _ms(f.other_ttft_p50_ms)),
        ("  everybody else p99", lambda f: _ms(f.other_ttft_p99_ms)),
        ("gap p50", lambda f: _ms(f.itl_p50_ms)),
        ("gap p99", lambda f: _ms(f.itl_p99_ms)),
        ("errors", lambda f: ", ".join(f"{n} {kind}" for kind, n in f.errors.items()) or "none"),
    )
    rows = Table(show_edge=False, pad_edge=False)
    rows.add_column("")
    for one in passes:
        rows.add_column(one.name, justify="right")
    for title, cell in cells:
        rows.add_row(title, *(cell(one) for one in passes))
    return rows


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
