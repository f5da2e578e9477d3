"""What Prometheus is told: well-formed, of few series, and never in a client's words."""

import json
import math
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import NotFoundError
from prometheus_client.parser import text_string_to_metric_families

from engine.errors import InvalidRequest
from engine.measures import CLASSES, WAIT_BOUNDS, Histogram, Measures
from engine.outputs import Usage
from engine.params import SamplingParams
from gameserver.http.metrics import COUNTERS, Metrics
from gameserver.loop_lag import LoopLag
from tests.gameserver.http.openai.served import Served, serving
from tests.gameserver.overload.test_overload import Stage

DEPLOY = Path(__file__).parents[3] / "deploy"
NUMBERS = st.floats(0, 1e6)


def page(served: Served) -> dict[str, Any]:
    """All metrics of a server by name, read as a scraper reads them."""
    assert served.engine is not None
    assert served.api is not None
    metrics = Metrics(served.engine.gauges, served.engine.measures, [served.api.tally])
    return {f.name: f for f in text_string_to_metric_families(metrics.render().decode())}


def count(family: Any, **labels: str) -> float:
    return sum(
        sample.value
        for sample in family.samples
        if sample.name.endswith(("_count", "_total")) and labels.items() <= sample.labels.items()
    )


@settings(deadline=None)
@given(st.lists(NUMBERS), st.sampled_from([(0.5,), WAIT_BOUNDS]))
def test_a_histogram_counts_each_value_once_in_its_bucket(
    values: list[float], bounds: tuple[float, ...]
) -> None:
    """Whether they come one by one or together."""
    histogram = Histogram(bounds)
    for value in values[::2]:
        histogram.add(value)
    histogram.add_all(values[1::2])
    found = histogram.read()
    assert math.isclose(found.total, sum(values), abs_tol=1e-9)
    lowest = -math.inf
    for bound, number in zip((*bounds, math.inf), found.counts, strict=True):
        assert number == sum(lowest < value <= bound for value in values)
        lowest = bound


async def test_requests_are_measured_by_class_and_route() -> None:
    async with serving(["x" * 9], most_urgent=0) as served, served.client() as client:
        assert served.engine is not None
        with pytest.raises(InvalidRequest):
            served.engine.submit([], SamplingParams(), on_output=print)
        for priority, tokens in ((-1, 3), (0, 5), (7, 9)):
            await client.completions.create(
                model="script", prompt="abc", max_tokens=tokens, extra_body={"priority": priority}
            )
        await served.at_rest()
        found = page(served)
        first = found["troupe_first_token_seconds"]
        assert first.type == "histogram"
        assert [count(first, **{"class": name}) for name in CLASSES] == [1, 1, 0, 1]
        assert count(found["troupe_queue_wait_seconds"]) == 3
        assert count(found["troupe_token_gap_seconds"]) == 3 + 5 + 9 - 3
        (total,) = [
            s.value
            for s in found["troupe_request_generated_tokens"].samples
            if s.name.endswith("_sum")
        ]
        assert total == 3 + 5 + 9
        assert count(found["troupe_request_tokens_per_second"]) == 3
        assert count(found["troupe_refused"], code="bad_field") == 1
        answered = found["troupe_http_requests"]
        assert count(answered, route="/completions", status="2xx") == 3
        assert 0 < found["troupe_batch_efficiency"].samples[0].value <= 1
        assert found["troupe_kv_use"].samples[0].value == 0


async def test_labels_never_come_from_clients_and_stay_few() -> None:
    async with (
        serving(["Fine."], most_urgent=0) as served,
        httpx.AsyncClient(base_url=f"{served.url}/v1") as plain,
    ):

        async def visit(mark: str, number: int) -> None:
            messages = [{"role": "user", "content": mark}]
            fields = {"messages": messages, "user": mark, "priority": number % 16}
            await plain.post("/chat/completions", json=fields | {"cache_salt": mark})
            await plain.post("/chat/completions", json=fields | {"model": mark})
            await plain.post("/chat/completions", json=fields | {mark: 1})
            await plain.post("/completions", json={"prompt": mark * 1500})
            await plain.get(f"/models/{mark}", headers={"authorization": f"Bearer {mark}"})
            await plain.get(f"/{mark}")
            await plain.request(f"X{mark.upper()}", "/models")

        def series() -> set[tuple[str, tuple[tuple[str, str], ...]]]:
            return {
                (sample.name, tuple(sorted(sample.labels.items())))
                for family in page(served).values()
                for sample in family.samples
            }

        for number in range(5):
            await visit(f"first{number}", number)
        few = series()
        for number in range(8):
            await visit(f"later{number}", number)
        assert series() == few
        assert not any("first" in value for _, labels in few for _, value in labels)
        labels = {name for _, pairs in few for name, _ in pairs}
        assert labels <= {"le", "class", "route", "status", "reason", "code"}


def test_a_request_that_never_had_a_slot_tells_nothing() -> None:
    measures = Measures()
    measures.finished(Usage(5, 0, 0, 1.0, None, None, 2.0), 1)
    assert not any(sum(series.buckets.counts) for series in measures.read())


async def test_dashboard_and_alerts_name_metrics_that_exist() -> None:
    async with serving(["Fine."]) as served, served.client() as client:
        with pytest.raises(NotFoundError):
            await client.models.retrieve("none")
        assert served.engine is not None
        assert served.api is not None
        with pytest.raises(InvalidRequest):
            served.engine.submit([], SamplingParams(), on_output=print)
        await client.completions.create(model="script", prompt="a")
        await served.at_rest()
        known = {
            sample.name for family in page(served).values() for sample in family.samples
        } | set(page(served))
    game = {**Stage().overload.gauges(), **LoopLag().gauges()}
    known |= {f"troupe_{name}" for name in game} | {f"troupe_{name}_total" for name in COUNTERS}
    board = json.loads((DEPLOY / "grafana" / "troupe.json").read_text("utf-8"))
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text("utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    named = {name for text in expressions for name in re.findall(r"troupe_\w+", text)}
    assert len(named) > 15
    # A counter appears with its first event; this one needs a client that leaves.
    assert named - known <= {"troupe_http_answers_lost_total"}
