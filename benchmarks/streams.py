"""Lines that arrive over time: the traces, how they are played, and what is reported of them.

Knows no device: the same traces run on one that is there and on one that is simulated. Imports
nothing of the engine until it plays, so that another engine's Python can measure itself by it.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from engine.percentile import percentile
from gameserver.bench.workload import Line

if TYPE_CHECKING:
    from engine.loop import Engine
    from engine.prefixes import Prefix

#: Quests come to a full house from here on, so many a second.
QUESTS_FROM_S, QUESTS_PER_S = 0.3, 50


class Clock(Protocol):
    """Time as the engine and its players see it."""

    def __call__(self) -> float:
        """Seconds since some moment."""

    def rest(self, until: float) -> None:
        """Nothing is to be done before `until`; come back then, or a little later or earlier."""


@dataclass
class Reply:
    """When a line came and when its tokens did, in seconds."""

    quest: bool
    arrived: float
    tokens: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        """Milliseconds to the first token."""
        return 1000 * (self.tokens[0] - self.arrived)

    @property
    def gaps(self) -> list[float]:
        """Milliseconds between tokens."""
        return [1000 * (b - a) for a, b in itertools.pairwise(self.tokens)]


def arrivals(lines: Sequence[Line], rate: float, quests: bool, seed: int) -> list[float]:
    """Seconds at which the lines come: as a Poisson process of `rate` a second, or at once if that
    is 0. With `quests`, ordinary ones come at once and quests later.
    """
    chance, at = random.Random(seed), 0.0
    times = []
    for _ in lines:
        times.append(at)
        at += chance.expovariate(rate) if rate else 0.0
    if quests:
        late = iter(QUESTS_FROM_S + number / QUESTS_PER_S for number in range(len(lines)))
        times = [next(late) if line.quest else 0.0 for line in lines]
    return times


def play(
    engine: "Engine",
    persona: Callable[[Line], "Prefix"],
    lines: Sequence[Line],
    times: Sequence[float],
    out: int,
    clock: Clock,
    *,
    classes: bool = True,
) -> list[Reply]:
    """Run one trace: greedy replies of `out` tokens, end of sequence ignored.

    The engine steps in this thread and takes in what has arrived before each step; times are those
    at which `step` handed tokens out. Without `classes` quests are lines as any other.
    """
    from engine.params import SamplingParams

    queue = sorted(range(len(lines)), key=lambda number: times[number])
    handles = {number: persona(lines[number]) for number in queue}
    params = SamplingParams(max_tokens=out, temperature=0, ignore_eos=True)
    replies: dict[int, Reply] = {}
    started = clock()
    while queue or engine.has_work:
        now = clock() - started
        while queue and times[queue[0]] <= now:
            number = queue.pop(0)
            line = lines[number]
            priority = 0 if classes and line.quest else 1
            request = engine.submit(line.turn, params, prefix=handles[number], priority=priority)
            replies[request.id] = Reply(line.quest, times[number])
        if not engine.has_work:
            clock.rest(started + times[queue[0]])
            continue
        outputs = engine.step()
        now = clock() - started
        for output in outputs:
            assert output.error is None, output.error
            replies[output.request_id].tokens += [now] * len(output.token_ids)
    return list(replies.values())


def figures(replies: Sequence[Reply]) -> dict[str, float]:
    """What is reported of one run; times in milliseconds."""
    gaps = [gap for reply in replies for gap in reply.gaps]
    firsts = {
        "": [reply.first for reply in replies],
        "quest_": [reply.first for reply in replies if reply.quest],
        "other_": [reply.first for reply in replies if not reply.quest],
    }
    end = max(reply.tokens[-1] for reply in replies)
    found = {"tok_s": sum(len(reply.tokens) for reply in replies) / end}
    for name, values in firsts.items():
        if not values:  # there are workloads in which everybody gives quests
            continue
        found[f"{name}ttft_p50"] = percentile(values, 50)
        found[f"{name}ttft_p99"] = percentile(values, 99)
    found["gap_p50"], found["gap_p99"] = percentile(gaps, 50), percentile(gaps, 99)
    found["gap_max"] = max(gaps)
    return found
