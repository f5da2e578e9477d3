"""The alert rules that are shipped fire when they should, and the dashboard asks what Prometheus
understands; its own tool says so.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yaml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian has it in the package prometheus)"
)


def always(value: float) -> str:
    """A gauge over half an hour, in the notation of promtool."""
    return f"{value}+0x30"


def growing(by: float) -> str:
    """A counter that grows by so much a minute."""
    return f"0+{by}x30"


def buckets(name: str, bounds: dict[str, int]) -> dict[str, str]:
    """A histogram: how many a minute are within each bound."""
    return {f'{name}_bucket{{class="1",le="{le}"}}': growing(n) for le, n in bounds.items()}


#: For each alert, series with which it fires and series with which it does not.
FIRST, QUEUE = "troupe_first_token_seconds", "troupe_queue_wait_seconds"
USED, POSSIBLE = "troupe_batch_used_total", "troupe_batch_possible_total"
REFUSED, STARTED = "troupe_lines_refused_total", "troupe_turns_started_total"
CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "SlowFirstToken": (
        buckets(FIRST, {"0.5": 90, "1": 100, "+Inf": 100}),
        buckets(FIRST, {"0.25": 90, "0.5": 100, "1": 100, "+Inf": 100}),
    ),
    "LongQueue": (
        buckets(QUEUE, {"0.1": 90, "0.5": 100, "+Inf": 100}),
        buckets(QUEUE, {"0.1": 100, "0.5": 100, "+Inf": 100}),
    ),
    "CacheNearlyFull": ({"troupe_kv_use": always(0.95)}, {"troupe_kv_use": always(0.85)}),
    "FragmentedCache": (
        {"troupe_fragmentation": always(0.2)},
        {"troupe_fragmentation": always(0.1)},
    ),
    "EmptySlots": (
        {USED: growing(60), POSSIBLE: growing(100)},
        {USED: always(80), POSSIBLE: always(100)},  # nobody speaks
    ),
    "ThingsLeftOut": (
        {"troupe_overload_level": always(3)},
        {"troupe_overload_level": "0+1x3 2+0x26"},  # above 2 for a minute only
    ),
    "LinesRefused": (
        {REFUSED: growing(10), STARTED: always(0)},
        {REFUSED: growing(1), STARTED: growing(99)},
    ),
    "LateEventLoop": (
        {"troupe_loop_lag_ms_p99": always(120)},
        {"troupe_loop_lag_ms_p99": always(20)},
    ),
}


def promtool(*words: object) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def case(alert: str, series: dict[str, str], *, fires: bool) -> dict[str, Any]:
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return {
        "name": f"{alert} {'fires' if fires else 'keeps silent'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": "30m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }


def test_every_alert_has_a_case() -> None:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == CASES.keys()


@needs_promtool
def test_prometheus_understands_the_rules_and_the_dashboard(tmp_path: Path) -> None:
    promtool("check", "rules", RULES)
    board = json.loads((DEPLOY / "grafana" / "troupe.json").read_text("utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = [{"record": f"panel_{n}", "expr": text} for n, text in enumerate(asked)]
    (tmp_path / "board.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "b", "rules": rules}]})
    )
    promtool("check", "rules", tmp_path / "board.yaml")


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_it_should_and_else_keeps_silent(alert: str, tmp_path: Path) -> None:
    tests = [case(alert, series, fires=not n) for n, series in enumerate(CASES[alert])]
    (tmp_path / "cases.yaml").write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    promtool("test", "rules", tmp_path / "cases.yaml")
