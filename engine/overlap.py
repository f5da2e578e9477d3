"""The engine with one step under way while the host works on the next.

`step` plans and launches step n + 1 before it looks at the tokens of step n. What is not known yet
is a `PENDING` token in the request; the runner feeds the real one from where the device drew it.
The device computes steps in order, so the books may count a launched step as computed: nothing
that reads its KV can overtake it. A reply that turns out to have ended at step n is part of step
n + 1 all the same; that token is dropped, and its KV lies in blocks that only later steps reuse.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from engine.decoding.sampling import Sampled
from engine.loop import Engine
from engine.plan import StepPlan
from engine.request import PENDING, Request


class Launched(Protocol):
    """A step under way."""

    def result(self) -> list[Sampled]:
        """Wait for it; one token for each sequence that draws one, in order."""


class Launcher(Protocol):
    """A runner that need not be waited for."""

    def run(self, plan: StepPlan) -> list[Sampled]:
        """See `engine.runner.Runner.run`."""

    def launch(self, plan: StepPlan) -> Launched:
        """Start a step behind those launched before. `PENDING` tokens are of the step before it."""

    def needs_host(self, request: Request) -> bool:
        """Whether a token of this request can only be drawn when all before it are known; asked of
        those that are not `plain`.
        """


@dataclass(frozen=True, slots=True)
class _Flight:
    """A launched step and what was known when it started."""

    plan: StepPlan
    launched: Launched
    speakers: int
    started: float


class OverlapEngine(Engine):
    """See the module; arguments as for `Engine`, with a runner that can launch."""

    def __init__(self, runner: Launcher, *arguments: Any, **named: Any) -> None:
        super().__init__(runner, *arguments, **named)
        self._launcher = runner
        self._flight: _Flight | None = None
        self._landed_at = 0.0

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self._flight is not None or super().has_work

    def _step(self) -> None:
        """Take in what has arrived, launch a step, and give out what the one before released."""
        with self._span("take in"):
            self._take_in()
        with self._span("plan"):
            plan = self._scheduler.plan(self._clock(), self._undecided)
        flight = None if plan is None else self._launch(plan)
        landed = self._land()
        if flight is not None:
            # Counted as computed, now that every token it feeds is known.
            with self._span("book"):
                self._scheduler.computed(flight.plan)
            self._flight = flight
        elif not landed and not self._scheduler.idle:
            self._scheduler.unstick(self._clock(), self._refuse)

    def _undecided(self, request: Request) -> bool:
        """Whether a reply must wait for its token under way, because the host draws the next from
        all before it. The others need not wait for it: it joins every other step.
        """
        return request.tokens[-1] == PENDING and self._launcher.needs_host(request)

    def _launch(self, plan: StepPlan) -> _Flight | None:
        """Start a step."""
        speakers = plan.speakers
        if self._profile is not None:
            self._profile.planned(plan)
        started = self._clock()
        try:
            with self._span("launch"):
                launched = self._launcher.launch(plan)
            return _Flight(plan, launched, speakers, started)
        except Exception as error:
            self._fail(plan, error)
            return None

    def _land(self) -> bool:
        """Wait for the step under way and give out its tokens; False if there is none."""
        flight, self._flight = self._flight, None
        if flight is None:
            return False
        try:
            with self._span("wait"):
                drawn = flight.launched.result()
        except Exception as error:
            self._fail(flight.plan, error)
            return True
        with self._span("deliver"):
            now = self._clock()
            elapsed_ms = (now - max(flight.started, self._landed_at)) * 1000
            self._landed_at = now
            self._deliver(flight.plan, flight.speakers, drawn, elapsed_ms)
        return True
