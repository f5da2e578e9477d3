"""The node's gauges in the text format that Prometheus reads."""

import re
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
        "requests_finished",
        "requests_cancelled",
        "requests_failed",
        "requests_refused",
        "connections_opened",
        "handshakes_refused",
        "sessions_begun",
        "sessions_ended",
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
    }
)
#: Counters kept by cause become one counter with a label: `errors_bad_json` is
#: `errors_total{code="bad_json"}`. Causes are the protocol's own lists, so labels stay few.
BY_CAUSE = re.compile(r"(errors|closes|http|turns_ended)_(\w+)")


class Metrics(Collector):
    """Renders what `gauges` returns.

    Args:
        gauges: all figures of the node by name.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        gauges: Callable[[], Mapping[str, float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gauges = gauges
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
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
        """One metric a figure; figures that differ by cause only share one."""
        labelled: dict[str, CounterMetricFamily] = {}
        for name, value in self._gauges().items():
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


def _help(name: str) -> str:
    return name.replace("_", " ")
