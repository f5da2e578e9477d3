"""What the load test says of its runs is what it measured, and a missed bound is told as missed."""

from array import array
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.curves import curves
from benchmarks.load import report
from benchmarks.load.crowd import merged
from benchmarks.load.guest import thinned
from benchmarks.load.part import Promise, Result


def test_a_part_that_is_run_again_takes_the_place_of_its_earlier_result(tmp_path: Path) -> None:
    kept = Promise("memory", 20.0, 25.0, "MB")
    missed = Promise("clients", 900.0, 1000.0, most=False)
    rows = [{"": "idle", "RSS, MB": 7.0}, {"": "closed", "RSS, MB": 5.0}]
    lines = tmp_path / "load.jsonl"
    report.keep(lines, Result("storm", {"clients": 2}, [missed]))
    report.keep(lines, Result("idle", {"sessions": 1}, [missed]))
    report.keep(lines, Result("idle", {"sessions": 2}, [kept], rows, ["So it was."], others=1.0))
    results = report.read(lines)
    assert (results["idle"].size, len(results)) == ({"sessions": 2}, 2)
    report.write(results, tmp_path / "load.md")
    page = (tmp_path / "load.md").read_text()
    assert "| idle | memory | 20 MB | ≤ 25 MB | yes |" in page
    assert "| storm | clients | 900 | ≥ 1,000 | **no** |" in page
    assert "So it was." in page
    assert "the machine was shared" in page
    assert (tmp_path / "load-idle.svg").exists()


def test_what_processes_of_guests_saw_is_put_together() -> None:
    one = {"deltas": 3, "late": [1.0], "seconds": 2.0, "errors": {"busy": 1}}
    two = {"deltas": 4, "late": [5.0], "seconds": 3.0, "errors": {"busy": 2, "moved": 1}}
    assert merged([one, two]) == {
        "deltas": 7,
        "late": [1.0, 5.0],
        "seconds": 3.0,
        "errors": {"busy": 3, "moved": 1},
    }


def test_thinning_keeps_the_shape_and_the_worst() -> None:
    few = thinned(array("d", range(10_000)), 101)
    assert (len(few), few[0], few[50], few[-1]) == (101, 0.0, 5000.0, 9999.0)


def test_a_curve_is_a_picture_with_a_point_for_each_figure() -> None:
    picture = ElementTree.fromstring(curves("T", "x", [1, 2, 4], {"a": [0, 3, 9], "b": [1, 1, 0]}))
    assert len([e for e in picture.iter() if e.tag.endswith("circle")]) == 6
