"""Where a run's time went: spans of every step, a table for people, a trace for Perfetto.

An engine without a profile asks for nothing and keeps nothing: its spans are one shared object.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from engine.outputs import Usage
from engine.percentile import percentile
from engine.plan import StepPlan

#: Spans that are kept one by one for the trace; totals go on beyond.
MOST_SPANS = 200_000
#: Values of which percentiles are taken; the latest.
_MOST_VALUES = 10_000

#: Gives the context in which a named part of the work happens.
Span = Callable[[str], AbstractContextManager[None]]

_NOTHING = contextlib.nullcontext()


def no_span(name: str) -> AbstractContextManager[None]:
    """The span of whoever is not profiled."""
    return _NOTHING


#: Takes seconds that a named part of what is under way took.
Book = Callable[[str, float], None]


def no_book(name: str, seconds: float) -> None:
    """What whoever is not profiled does with them."""


@runtime_checkable
class Reports(Protocol):
    """A runner that can tell the parts of a step."""

    span: Span
    book: Book


@dataclass(slots=True)
class _Total:
    """Seconds of one part, and of each time it happened lately."""

    seconds: float = 0.0
    count: int = 0
    latest: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.count += 1
        if len(self.latest) < _MOST_VALUES:
            self.latest.append(seconds)
        else:
            self.latest[self.count % _MOST_VALUES] = seconds


class Profile:
    """Collects spans and first tokens of one engine. Used by the engine's thread; reports are
    written when that has ended.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._begun = clock()
        self._open: list[str] = []
        self._parts: dict[tuple[str, ...], _Total] = {}
        self._steps = {"speaking": _Total(), "reading": _Total(), "both": _Total()}
        self._first: dict[int, _Total] = {}
        # Tuples of plain values: a million of them are nothing to the garbage collector.
        self._events: list[tuple[str, float, float]] = []
        self._plans: dict[int, tuple[int, int, int]] = {}  # of events, by their place
        self._plan: tuple[int, int, int] | None = None
        self._kind = ""

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A part of the work; spans nest."""
        self._open.append(name)
        path = tuple(self._open)
        started = self._clock()
        try:
            yield
        finally:
            self._open.pop()
            seconds = self._clock() - started
            self._parts.setdefault(path, _Total()).add(seconds)
            if name == "step" and self._kind:
                self._steps[self._kind].add(seconds)
                self._kind = ""
            if len(self._events) < MOST_SPANS:
                if name == "step" and self._plan is not None:
                    self._plans[len(self._events)], self._plan = self._plan, None
                self._events.append((name, started - self._begun, seconds))

    def book(self, name: str, seconds: float) -> None:
        """A part of what is under way, measured elsewhere; it is in the table, not in the trace."""
        self._parts.setdefault((*self._open, name), _Total()).add(seconds)

    def seconds(self, *path: str) -> float:
        """What a part took so far, named by what it lies in and itself: "step", "plan"."""
        total = self._parts.get(path)
        return total.seconds if total else 0.0

    def planned(self, plan: StepPlan) -> None:
        """What the step under way computes."""
        speakers = plan.speakers
        readers = len(plan.shares) + len(plan.replies) - speakers
        self._kind = "both" if speakers and readers else "speaking" if speakers else "reading"
        self._plan = plan.rows, speakers, readers

    def ended(self, priority: int, usage: Usage) -> None:
        """A request of some class is over."""
        if usage.first_token is not None:
            first = self._first.setdefault(priority, _Total())
            first.add(usage.first_token - usage.arrived)

    def report(self) -> str:
        """A table for people."""
        steps = self._parts.get(("step",), _Total())
        passed = self._clock() - self._begun
        lines = [
            f"{steps.count:,} steps in {passed:.1f} s, {steps.seconds:.1f} s of it in steps",
            "",
            f"{'part':<22}{'total s':>10}{'share':>8}{'mean ms':>10}{'p50 ms':>10}{'p99 ms':>10}",
        ]
        for path in sorted(self._parts, key=self._order):
            name = "  " * (len(path) - 1) + path[-1]
            share = self._parts[path].seconds / (steps.seconds or 1.0)
            lines.append(_row(name, self._parts[path], f"{share:>7.1%} "))
        lines += ["", "steps by what they compute"]
        lines += [_row(kind, total) for kind, total in self._steps.items() if total.count]
        lines += ["", "time to first token by class (0 is most urgent)"]
        lines += [_row(f"class {name}", total) for name, total in sorted(self._first.items())]
        if len(self._events) == MOST_SPANS:
            lines += ["", f"the trace has the first {MOST_SPANS:,} spans only"]
        return "\n".join(lines) + "\n"

    def trace(self) -> dict[str, object]:
        """Trace events as Chrome and Perfetto read them; times in microseconds."""
        events = []
        for at, (name, begun, seconds) in enumerate(self._events):
            event: dict[str, object] = {"name": name, "ph": "X", "pid": 1, "tid": 1}
            event |= {"ts": round(begun * 1e6, 1), "dur": round(seconds * 1e6, 1)}
            if at in self._plans:
                keys = ("rows", "speakers", "readers")
                event["args"] = dict(zip(keys, self._plans[at], strict=True))
            events.append(event)
        return {"displayTimeUnit": "ms", "traceEvents": events}

    def write(self, file: Path) -> Path:
        """Write the report to `file` and the trace beside it; returns the trace's path."""
        trace = file.with_name(f"{file.name}.trace.json")
        file.write_text(self.report(), "utf-8")
        trace.write_text(json.dumps(self.trace()), "utf-8")
        return trace

    def _order(self, path: tuple[str, ...]) -> list[float]:
        """Parts below what they are parts of, the longest first."""
        return [-self._parts[path[:n]].seconds for n in range(1, len(path) + 1)]


def _row(name: str, total: _Total, share: str = " " * 8) -> str:
    mean = total.seconds / total.count
    middle, late = percentile(total.latest, 50), percentile(total.latest, 99)
    times = "".join(f"{seconds * 1e3:>10.2f}" for seconds in (mean, middle, late))
    return f"{name:<22}{total.seconds:>10.2f}{share}{times}"
