"""The node's gauges in the text format that Prometheus reads."""

import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from engine.measures import Buckets, Series

#: Rendering is work of the event loop; scrapers that come more often share one text.
KEEP_S = 1.0

#: Figures that only ever grow; all others may fall too.
COUNTERS = frozenset(
    {
        "prefill_tokens_computed",
        "prefill_tokens_ideal",
        "prompt_tokens",
        "cached_tokens",
        "generated_tokens",
        "steps",
        "parks",
        "preemptions",
        "swaps",
        "requests_finished",
        "requests_cancelled",
        "requests_failed",
        "requests_refused",
        "batch_used",
        "batch_possible",
        "remote_requests",
        "remote_retries",
        "connections_opened",
        "handshakes_refused",
        "budget_tokens",
        "halts",
        "barks",
        "lines_refused",
        "sessions_begun",
        "sessions_ended",
        "sessions_resumed",
        "resumes_refused",
        "snapshots_at_resume",
        "turns_started",
        "frames_in",
        "frames_out",
        "bytes_in",
        "bytes_out",
        "deltas_out",
        "chunks_out",
        "duplicates",
        "floods",
        "gaps",
        "stalled",
        "redirects",
        "relays",
        "relays_ended",
        "relays_given_up",
        "relay_turns",
        "tickets_issued",
        "tickets_taken",
        "tickets_refused",
        "identifies_waited",
        "identifies_refused",
        "mqtt_in",
        "mqtt_out",
        "mqtt_lost",
        "mqtt_taken_over",
        "mqtt_brief",
        "mqtt_passed_on",
        "news_slept_through",
        "state_unnoticed",
        *(
            f"memory_{name}"
            for name in (
                "lines",
                "lost",
                "facts",
                "faded",
                "recalls",
                "recalls_late",
                "forgotten",
                "distilled_by_model",
                "distilled_by_rules",
                "useless_answers",
            )
        ),
    }
)
#: Counters kept by cause become one counter with a label: `errors_bad_json` is
#: `errors_total{code="bad_json"}`. Causes are the protocol's own lists, so labels stay few.
BY_CAUSE = re.compile(
    r"(errors|closes|mqtt_dropped|http|turns_ended|refused|filtered|redacted|steering|over_budget|remote_errors|degraded)_(\w+)"
)


class Metrics(Collector):
    """Renders what `gauges` and `measures` return, and what other collectors have.

    Args:
        gauges: all figures of the node by name.
        measures: all histograms of the engine.
        others: rendered on the same page.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        gauges: Callable[[], Mapping[str, float]],
        measures: Callable[[], Iterable[Series]] = tuple,
        others: Iterable[Collector] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gauges = gauges
        self._measures = measures
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        for collector in (self, *others):
            self._registry.register(collector)
        self._text = b""
        self._fresh_until = float("-inf")

    def render(self) -> bytes:
        """The text of `/metrics`, at most `KEEP_S` old."""
        now = self._clock()
        if now >= self._fresh_until:
            self._text = generate_latest(self._registry)
            self._fresh_until = now + KEEP_S
        return self._text

    def collect(self) -> Iterable[Metric]:
        """One metric a figure; figures that differ by cause or class only share one."""
        labelled: dict[str, CounterMetricFamily] = {}
        # Counters begin at 0, not with their first event, which no rate would see.
        figures = dict.fromkeys(COUNTERS, 0.0) | dict(self._gauges())
        for name, value in figures.items():
            if match := BY_CAUSE.fullmatch(name):
                family, code = match.groups()
                metric = labelled.setdefault(
                    family, CounterMetricFamily(f"troupe_{family}", _help(family), labels=["code"])
                )
                metric.add_metric([code], value)
            elif name in COUNTERS:
                yield CounterMetricFamily(f"troupe_{name}", _help(name), value=value)
            else:
                yield GaugeMetricFamily(f"troupe_{name}", _help(name), value=value)
        yield from labelled.values()
        yield from self._histograms()

    def _histograms(self) -> Iterable[Metric]:
        families: dict[str, HistogramMetricFamily] = {}
        for series in self._measures():
            grouped = series.group is not None
            family = families.setdefault(
                series.name,
                HistogramMetricFamily(
                    f"troupe_{series.name}", series.help, labels=["class"] if grouped else []
                ),
            )
            labels = [series.group] if series.group is not None else []
            family.add_metric(labels, _cumulative(series.buckets), series.buckets.total)
        yield from families.values()


def _cumulative(buckets: Buckets) -> list[tuple[str, float]]:
    """Buckets as Prometheus counts them: each with all the smaller ones."""
    bounds = (*(str(float(bound)) for bound in buckets.bounds), "+Inf")
    return list(zip(bounds, itertools.accumulate(buckets.counts), strict=True))


def _help(name: str) -> str:
    return name.replace("_", " ")
