"""The tables of results/h200.md say what the samples say: reached, missed, or not measured."""

from pathlib import Path

import pytest

from benchmarks.gpu_report import fill, latest, sections, write_report
from benchmarks.gpu_targets import LEVERS, TARGETS
from benchmarks.measuring import Sample


def sample(
    column: str, profile: str, measure: str, seed: int = 0, software: str = "a", **figures: float
) -> Sample:
    when = "2026-01-01 00:00"
    return Sample(column, profile, seed, measure, figures, 0.0, 0.0, when, software, "a machine")


def row(text: str, start: str) -> list[str]:
    (line,) = [x for x in text.splitlines() if x.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def verdict(label: str, *samples: Sample) -> str:
    return row(sections(samples, "x")["targets"], label)[-1]


def steps(column: str, *values: float, profile: str = "gpu") -> list[Sample]:
    return [sample(column, profile, "decode-256", step_ms=value) for value in values]


def test_the_median_decides_and_the_rival_stands_beside() -> None:
    label = "step, 256 speak, ms, `gpu`"
    fast = [*steps("Troupe", 10.0, 10.4, 12.0), *steps("vLLM", 17.0, 16.0, 18.0)]
    cells = row(sections(fast, "x")["targets"], label)
    assert cells == [label, "17 (16–18)", "≤ 10.5", "**10.4 (10–12)**", "reached"]
    assert verdict(label, *steps("Troupe", 10.0, 10.6, 12.0)) == "**missed**"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.label)
def test_every_target_can_be_reached_and_missed(target) -> None:  # type: ignore[no-untyped-def]
    """Made-up samples just on either side of the bound."""
    better = 0.99 if target.kind == "most" else 1.01
    bound = target.bound / target.scale

    def measured(factor: float) -> list[Sample]:
        found = [
            sample(target.column, target.profile, target.measure, **{target.figure: bound * factor})
        ]
        if target.over:
            found.append(sample(target.column, target.profile, target.over, **{target.figure: 1}))
        if target.of_rival:
            found.append(sample("vLLM", target.profile, target.measure, **{target.figure: 1}))
        return found

    assert verdict(target.label, *measured(better)) == "reached"
    assert verdict(target.label, *measured(1 / better)) == "**missed**"


def test_what_was_not_measured_is_said_so() -> None:
    text = sections(steps("vLLM", 17.0), "x")["targets"]
    assert all(row(text, target.label)[-1] == "not measured" for target in TARGETS)
    # A bound that is the rival's is unknown as long as the rival's figure is.
    alone = sample("Troupe", "lonely", "cold", tok_s=1e9)
    assert verdict("256 scenes of one: cold, tok/s", alone) == "not measured"


def test_levers_bring_what_is_missing_without_them() -> None:
    samples = [
        *steps("Troupe", 10.0),
        *steps("Troupe, no tree", 17.25),
        *steps("Troupe, fp8", 8.0),
    ]
    found = sections(samples, "x")
    cells = row(found["levers"], f"`Troupe, no tree`: {LEVERS[0].meaning}")
    assert cells[-2:] == ["6.5–8.5 ms a step", "7.25 ms a step"]
    assert row(found["levers"], "`Troupe, fp8`: weights in 8 bits")[-1] == "2 ms a step"
    graphs = row(found["levers"], f"`Troupe, no graphs`: {LEVERS[1].meaning}")
    assert graphs[-1] == "not measured"


def test_a_later_version_takes_the_place_of_an_earlier_one() -> None:
    old = [sample("Troupe", "gpu", "cold", software="old", tok_s=1.0)] * 2
    rival = sample("vLLM", "gpu", "cold", software="theirs", tok_s=5.0)
    new = [sample("Troupe", "gpu", "cold", software="new", tok_s=2.0)] * 2
    assert latest([*old, rival, *new]) == [*new, rival]


def test_other_seeds_have_a_table_and_are_not_mixed_in() -> None:
    samples = [*steps("Troupe", 10.0), sample("Troupe", "gpu", "decode-256", seed=5, step_ms=90.0)]
    found = sections(samples, "x")
    assert "10 (1 run)" in found["targets"] and "90 (" not in found["targets"]
    assert row(found["seeds"], "`gpu`: step, 256 speak, ms")[1:] == ["10 (1 run)", "90 (1 run)"]


def test_streams_quests_and_the_host_are_shown() -> None:
    samples = [
        sample("vLLM", "gpu", "at-once-cold", ttft_p99=1212.0),
        sample("Troupe", "gpu", "at-once-cold", ttft_p99=400.0),
        sample("Troupe", "gpu", "quests-cold", quest_ttft_p99=70.0),
        sample("Troupe", "gpu", "host-256", host_ms=0.5, step_ms=10.0),
    ]
    found = sections(samples, "x")
    lines = [x for x in found["streams"].splitlines() if "at-once-cold" in x]
    assert "Troupe" in lines[0] and "400 (1 run)" in lines[0]
    assert "vLLM" in lines[1] and "1,212 (1 run)" in lines[1]
    assert "70 (1 run)" in found["quests"]
    assert row(found["host"], "`gpu`, 256 speak")[1:3] == ["10 (1 run)", "0.5 (1 run)"]
    assert "(x-ttft.svg)" in found["plots"] and "steps" not in found["plots"]
    assert found["seeds"] == "" and found["speeds"] == ""


def test_only_marked_sections_are_written(tmp_path: Path) -> None:
    samples, page = tmp_path / "h.jsonl", tmp_path / "h.md"
    written = [*steps("Troupe", 10.0), *steps("vLLM", 17.0), *steps("Troupe, no tree", 17.25)]
    samples.write_text("".join(f"{one.line()}\n" for one in written))
    page.write_text(
        "# H\n\nBefore.\n\n<!-- measured: targets -->\nstale\n<!-- end: targets -->\n\nAfter.\n"
    )
    write_report(samples)
    text = page.read_text()
    assert text.startswith("# H\n\nBefore.\n") and text.endswith("\n\nAfter.\n")
    assert "stale" not in text and "levers" not in text
    assert "17 (1 run)" in text
    assert (tmp_path / "h-steps.svg").exists() and (tmp_path / "h-levers.svg").exists()
    write_report(samples)
    assert page.read_text() == text


@pytest.mark.parametrize(
    ("page", "error"),
    [
        ("<!-- measured: teas -->\n<!-- end: teas -->", "no section 'teas'"),
        ("<!-- measured: targets -->\n<!-- end: speeds -->\n<!-- measured: x -->", "not closed"),
    ],
)
def test_marks_that_cannot_be_are_refused(page: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        fill(page, {"targets": "", "speeds": ""})
