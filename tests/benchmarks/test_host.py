"""The benchmark of the engine's own time runs, and measures the steps that it says it does."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from benchmarks.host import CHURN, KINDS, REPLIES, Meter, Stage
from benchmarks.shapes import SHAPES, NoText


@pytest.mark.parametrize("launch", ["nothing", "tables"])
@pytest.mark.parametrize("kind", ["steady", "leaving"])
def test_steps_are_of_the_kind_they_are_called(launch: str, kind: str) -> None:
    stage = Stage(launch, NoText(SHAPES["qwen05b"].vocab_size))
    meter = Meter(stage)
    KINDS[kind](stage, meter)
    (row,) = meter.rows
    assert row["steps"] == {"steady": 96, "leaving": REPLIES // CHURN}[kind]
    assert 0 < row["least"] <= row["median"]
    assert row["plan"] + row["launch"] + row["deliver"] + row["book"] < row["mean"]
    stage.finish()
    stage.close()
    stage.engine.check()
    gauges = stage.engine.gauges
    assert gauges["requests_finished"] == REPLIES
    assert gauges["blocks_held"] == 0
