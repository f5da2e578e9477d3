"""What the API has answered, by route and kind; the labels are ours, never a client's words."""

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class ApiTally(Collector):
    """Counts requests and broken answers, for `/metrics`.

    Attributes:
        open: requests being answered.
        lost_answers: how many did not reach their end, by reason: "gone" (the client), "error" (in
            mid-stream).
    """

    def __init__(self) -> None:
        self.open = 0
        self._requests: Counter[tuple[str, str]] = Counter()
        self.lost_answers: Counter[str] = Counter()

    def answered(self, route: str, status: int) -> None:
        """A request was answered; `route` is one of the paths we serve, or "other"."""
        self._requests[route, f"{status // 100}xx"] += 1

    def lost(self, reason: str) -> None:
        """An answer did not reach its end; see `lost_answers`."""
        self.lost_answers[reason] += 1

    def collect(self) -> Iterable[Metric]:
        """The counters in Prometheus' form."""
        requests = CounterMetricFamily(
            "troupe_http_requests", "requests to the API", labels=["route", "status"]
        )
        for (route, status), count in self._requests.items():
            requests.add_metric([route, status], count)
        lost = CounterMetricFamily(
            "troupe_http_answers_lost", "answers that did not reach their end", labels=["reason"]
        )
        for reason, count in self.lost_answers.items():
            lost.add_metric([reason], count)
        yield requests
        yield lost
        yield GaugeMetricFamily("troupe_http_requests_open", "being answered", value=self.open)
