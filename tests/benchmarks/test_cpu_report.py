"""The tables of results/cpu.md say what the samples say, and nothing where there are none."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.bars import bars
from benchmarks.cpu_report import BEGIN, END, TARGETS, render, write_report
from benchmarks.measuring import Sample, read_samples
from benchmarks.report import Results, number

OURS = frozenset({"ours"})


def sample(
    column: str, measure: str = "cold", others: float = 0.0, profile: str = "cpu", **figures: float
) -> Sample:
    return Sample(
        column, profile, 0, measure, figures, others, 0.0, "2026-01-01 00:00", column, "a machine"
    )


def row(text: str, start: str) -> list[str]:
    (line,) = [x for x in text.splitlines() if x.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_target_is_reached_or_missed_by_the_median() -> None:
    cold = "16 at once, cold, tok/s"
    fast = render([sample("fast", tok_s=value) for value in (319.0, 321.0, 330.0)])
    assert row(fast, cold)[4:] == ["**321 (319–330)**", "–", "reached"]
    slow = render([sample("fast", tok_s=value) for value in (310.0, 319.0, 500.0)])
    assert row(slow, cold)[-1] == "**missed**"


def test_what_was_not_measured_is_said_so() -> None:
    text = render([sample("fast", tok_s=400.0)])
    for target in TARGETS[1:]:
        assert row(text, target.label)[-1] == "not measured"


def test_the_best_column_of_each_rival_stands_beside_ours() -> None:
    samples = [
        sample("fast", tok_s=400.0, ttft_p99_s=1.0),
        sample("llama.cpp a", tok_s=50.0, ttft_p99_s=9.0),
        sample("llama.cpp b", tok_s=100.0, ttft_p99_s=12.0),
        sample("vLLM", tok_s=200.0, ttft_p99_s=2.0),
    ]
    text = render(samples)
    assert row(text, "16 at once, cold, tok/s")[1:3] == ["100 (1 run)", "200 (1 run)"]
    assert row(text, "16 at once, cold, tok/s")[5] == "2.00×"
    assert row(text, "TTFT p99, 16 at once, cold, s")[1:3] == ["9 (1 run)", "2 (1 run)"]
    assert row(text, "TTFT p99, 16 at once, cold, s")[5] == "2.00×"


def test_disturbed_samples_count_only_where_there_are_no_calm_ones() -> None:
    calm = [sample("fast", others=0.1, tok_s=float(value)) for value in (1, 2, 3)]
    loud = [sample("fast", others=0.9, tok_s=99.0), sample("fast", others=0.5, tok_s=50.0)]
    assert Results(loud + calm).figure("fast", "cpu", "cold", "tok_s").most == 3  # type: ignore[union-attr]
    none = Results(loud).figure("fast", "cpu", "cold", "tok_s")
    assert none is not None and (none.count, none.median) == (1, 50)
    assert "50 (1 run, disturbed)" in render(loud)


def test_an_ablation_is_compared_with_the_whole() -> None:
    text = render([sample("fast", tok_s=400.0), sample("own-nodes", tok_s=100.0)])
    assert "100 (1 run): 0.25×" in text


@pytest.mark.parametrize(
    ("value", "text"), [(11008.0, "11,008"), (0.03712, "0.0371"), (99.96, "100"), (3.0, "3")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_what_people_wrote_on_the_page_stays(tmp_path: Path) -> None:
    samples, page = tmp_path / "cpu.jsonl", tmp_path / "cpu.md"
    page.write_text(f"# Title\n\nBefore.\n\n{BEGIN}\nstale\n{END}\n\n## Why\n\nAfter.\n")
    written = [sample("fast", tok_s=400.0), sample("fast", profile="odd", tok_s=300.0)]
    samples.write_text("".join(f"{one.line()}\n" for one in written))
    assert read_samples(samples) == written
    assert write_report(samples) == page
    text = page.read_text()
    assert text.startswith("# Title\n\nBefore.\n")
    assert text.endswith("\n\n## Why\n\nAfter.\n")
    assert "stale" not in text and "400" in text
    assert write_report(samples).read_text() == text


def test_bars_are_as_long_as_their_figures_and_names_are_escaped() -> None:
    drawn = ElementTree.fromstring(bars({"a < b": {"ours": 50.0, "theirs & more": 100.0}}, OURS))
    rects = [x for x in drawn.iter() if x.tag.endswith("rect") and x.get("x")]
    widths = [float(x.get("width", "")) for x in rects]
    assert widths[1] == pytest.approx(2 * widths[0])
    assert rects[0].get("fill") != rects[1].get("fill")
