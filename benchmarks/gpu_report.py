"""Turns samples of `benchmarks.gpu` and its rival into the tables and plots of results/h200.md.

    python -m benchmarks.gpu_report benchmarks/results/h200.jsonl

On the page beside the samples, only what stands between the marks of a section is written anew;
sections whose marks are not there are left out. A later run of another version takes the place of
an earlier one, measure by measure.
"""

import argparse
import re
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

from benchmarks.bars import bars
from benchmarks.gpu_targets import LEVERS, TARGETS, Lever
from benchmarks.measuring import Sample, read_samples
from benchmarks.report import Figure, Results, Target, number, table

OURS, RIVAL = "Troupe", "vLLM"
_PROFILES = ("gpu", "long", "lonely")
#: Measures that say how fast, and their figure, by label.
_SPEEDS = {
    "cold, tok/s": ("cold", "tok_s"),
    "warm, tok/s": ("warm", "tok_s"),
    "new lines, tok/s": ("lines", "tok_s"),
    "step, 1 speaks, ms": ("decode-1", "step_ms"),
    "step, 64 speak, ms": ("decode-64", "step_ms"),
    "step, 256 speak, ms": ("decode-256", "step_ms"),
}
#: Of streams and quests.
_WAITS = ("tok_s", "ttft_p50", "ttft_p99", "gap_p50", "gap_p99", "gap_max")
_CLASSES = ("tok_s", "quest_ttft_p50", "quest_ttft_p99", "other_ttft_p50", "other_ttft_p99")


def latest(samples: Iterable[Sample]) -> list[Sample]:
    """Of each measure the samples of the version that measured it last."""
    kept: dict[tuple[str, str, str, int], list[Sample]] = {}
    for sample in samples:
        several = kept.setdefault((sample.column, sample.profile, sample.measure, sample.seed), [])
        if several and several[-1].software != sample.software:
            several.clear()
        several.append(sample)
    return [sample for several in kept.values() for sample in several]


def figure_of(results: Results, target: Target, column: str) -> Figure | None:
    """A column's figure of a target, in the target's unit; None if it was not measured."""
    found = results.figure(column, target.profile, target.measure, target.figure)
    if found is None:
        return None
    if not target.over:
        return found.times(target.scale)
    whole = results.figure(column, target.profile, target.over, target.figure)
    return None if whole is None else found.times(target.scale / whole.median)


def targets_table(results: Results) -> str:
    """Each promise: the rival beside it, the bound, ours, and whether it is kept."""
    rows: list[list[object]] = []
    for target in TARGETS:
        ours = figure_of(results, target, target.column)
        theirs = target.column.replace(OURS, RIVAL).removesuffix(", fp8")
        rival = figure_of(results, target, theirs) if target.compared else None
        verdict = "not measured"
        if ours is not None and (rival is not None or not target.of_rival):
            kept = target.reached(ours.median, rival.median if rival else 1.0)
            verdict = "reached" if kept else "**missed**"
        measured = "–" if ours is None else f"**{ours}**"
        rows.append([target.label, rival or "–", target, measured, verdict])
    return table(["measure", "vLLM beside", "target", "Troupe", ""], rows)


def speeds_table(results: Results) -> str:
    """Both engines under every workload."""
    rows: list[list[object]] = []
    for profile, (label, (measure, figure)) in product(_PROFILES, _SPEEDS.items()):
        cells = [results.figure(column, profile, measure, figure) for column in (RIVAL, OURS)]
        if any(cells):
            rows.append([f"`{profile}`: {label}", *(cell or "–" for cell in cells)])
    return table(["", RIVAL, OURS], rows)


def waits_table(results: Results, prefixes: tuple[str, ...], figures: tuple[str, ...]) -> str:
    """First tokens and gaps of every stream that begins with one of `prefixes`, in ms."""
    rows: list[list[object]] = []
    for profile, measure in product(_PROFILES, results.measures()):
        if not measure.startswith(prefixes):
            continue
        for column in results.columns(profile, measure):
            found = [results.figure(column, profile, measure, name) for name in figures]
            rows.append([f"`{profile}`, {measure}", column, *(cell or "–" for cell in found)])
    return table(["", "", *(name.replace("_", " ") for name in figures)], rows)


def levers_table(results: Results) -> str:
    """Each lever switched off (or added): speeds, and what it brings beside what was predicted."""
    rows: list[list[object]] = []
    shown = (
        *(("gpu", m, "tok_s") for m in ("cold", "warm", "lines")),
        ("gpu", "decode-256", "step_ms"),
    )
    whole = [results.figure(OURS, *where) or "–" for where in shown]
    rows.append(["everything", *whole, "", ""])
    for lever in LEVERS:
        cells = [results.figure(lever.column, *where) or "–" for where in shown]
        gain = measured_gain(results, lever)
        predicted = f"{number(lever.least)}–{number(lever.most)} {lever.unit}"
        if lever.least == lever.most:
            predicted = f"{number(lever.least)} {lever.unit}"
        measured = "not measured" if gain is None else f"{number(gain)} {lever.unit}"
        rows.append([f"`{lever.column}`: {lever.meaning}", *cells, predicted, measured])
    head = ["", "cold, tok/s", "warm, tok/s", "new lines, tok/s", "step at 256, ms"]
    return table([*head, "predicted gain", "measured gain"], rows)


def measured_gain(results: Results, lever: Lever) -> float | None:
    """How much less it takes with a lever than without."""
    there = results.figure(lever.column, "gpu", lever.measure, lever.figure)
    usual = results.figure(OURS, "gpu", lever.measure, lever.figure)
    if there is None or usual is None:
        return None
    return (usual.median - there.median) * (1 if lever.added else -1)


def seeds_table(samples: Iterable[Sample]) -> str:
    """Our speeds with every seed."""
    by_seed: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.column == OURS:
            by_seed.setdefault(sample.seed, []).append(sample)
    results = {seed: Results(several) for seed, several in sorted(by_seed.items())}
    rows: list[list[object]] = []
    for profile, (label, (measure, figure)) in product(_PROFILES, _SPEEDS.items()):
        cells = [one.figure(OURS, profile, measure, figure) for one in results.values()]
        if sum(cell is not None for cell in cells) > 1:
            rows.append([f"`{profile}`: {label}", *(cell or "–" for cell in cells)])
    return table(["", *(f"seed {seed}" for seed in results)], rows)


def host_table(results: Results) -> str:
    """What the host does in a step, and how late the event loop is beside it."""
    names = ("step_ms", "host_ms", "take_in_ms", "plan_ms", "launch_ms", "deliver_ms")
    rows: list[list[object]] = []
    for profile, batch in product(_PROFILES, (1, 64, 256)):
        found = [results.figure(OURS, profile, f"host-{batch}", name) for name in names]
        if any(found):
            rows.append([f"`{profile}`, {batch} speak", *(cell or "–" for cell in found)])
    return table(["ms", *(name.removesuffix("_ms").replace("_", " ") for name in names)], rows)


def setup(samples: Iterable[Sample]) -> str:
    """What was measured where, when, with what."""
    several = list(samples)
    machines, versions, seeds = (
        sorted({str(getattr(sample, name)) for sample in several})
        for name in ("machine", "software", "seed")
    )
    whens = sorted(sample.when for sample in several)
    return (
        f"{'; '.join(machines)}. {'; '.join(versions)}. {whens[0]} to {whens[-1]}, "
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}. {len(several)} samples in all; "
        "medians, smallest and largest in brackets."
    )


def plots(results: Results) -> dict[str, str]:
    """Pictures by name; those there is nothing to show in are left out."""
    found = {
        "steps": _pairs(results, "256 speak, {}: ms a step", "decode-256", "step_ms"),
        "ttft": {
            **_pairs(results, "at once, warm, {}: TTFT p99, ms", "at-once-warm", "ttft_p99"),
            **_pairs(results, "at once, cold, {}: TTFT p99, ms", "at-once-cold", "ttft_p99"),
            **_pairs(results, "100/s, cold, {}: TTFT p99, ms", "poisson-100-cold", "ttft_p99"),
        },
        "levers": _levers_bars(results),
    }
    return {
        name: bars(groups, frozenset([OURS, "measured"]))
        for name, groups in found.items()
        if groups
    }


def _pairs(results: Results, title: str, measure: str, figure: str) -> dict[str, dict[str, float]]:
    groups = {}
    for profile in _PROFILES:
        cells = {name: results.figure(name, profile, measure, figure) for name in (OURS, RIVAL)}
        if any(cells.values()):
            groups[title.format(profile)] = {n: cell.median for n, cell in cells.items() if cell}
    return groups


def _levers_bars(results: Results) -> dict[str, dict[str, float]]:
    groups = {}
    for lever in LEVERS:
        gain = measured_gain(results, lever)
        if gain is not None:
            middle = (lever.least + lever.most) / 2
            title = f"{lever.column.removeprefix('Troupe, ')}: gain, {lever.unit}"
            groups[title] = {"predicted": middle, "measured": max(gain, 0.0)}
    return groups


def sections(samples: Iterable[Sample], stem: str) -> dict[str, str]:
    """What stands between the marks, by name; nothing where nothing was measured.

    Args:
        stem: of the names of pictures.
    """
    known = latest(samples)
    results = Results([sample for sample in known if sample.seed == 0], (OURS, RIVAL))
    found = {
        "setup": setup(known),
        "targets": targets_table(results),
        "levers": levers_table(results),
        "plots": "\n\n".join(f"![{name}]({stem}-{name}.svg)" for name in plots(results)),
    }
    titled = {
        "speeds": ("Both engines, every workload", speeds_table(results)),
        "streams": (
            "Streams: first tokens and gaps, ms",
            waits_table(results, ("at-once", "poisson"), _WAITS),
        ),
        "quests": ("64 slots, first tokens, ms", waits_table(results, ("quests",), _CLASSES)),
        "seeds": ("Other seeds", seeds_table(known)),
        "host": ("The host's time in a step", host_table(results)),
    }
    for name, (title, text) in titled.items():
        found[name] = f"## {title}\n\n{text}" if text.count("\n") > 1 else ""
    return found


def fill(page: str, texts: Mapping[str, str]) -> str:
    """A page with new texts between the marks `<!-- measured: NAME -->` and `<!-- end: NAME -->`.

    Raises:
        ValueError: a section is opened that is not closed, or that nobody knows.
    """

    def section(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in texts:
            raise ValueError(f"no section {name!r}; there are {', '.join(texts)}")
        return f"<!-- measured: {name} -->\n\n{texts[name]}\n\n<!-- end: {name} -->"

    pattern = r"<!-- measured: (?P<name>\w+) -->.*?<!-- end: (?P=name) -->"
    filled = re.sub(pattern, section, page, flags=re.DOTALL)
    if filled.count("<!-- measured: ") != filled.count("<!-- end: "):
        raise ValueError("a section is opened that is not closed")
    return filled


def write_report(samples: Path) -> Path:
    """Write tables and pictures beside the samples; returns the page's path."""
    page, measured = samples.with_suffix(".md"), read_samples(samples)
    page.write_text(fill(page.read_text(), sections(measured, samples.stem)))
    known = [sample for sample in latest(measured) if sample.seed == 0]
    for name, picture in plots(Results(known, (OURS, RIVAL))).items():
        samples.with_name(f"{samples.stem}-{name}.svg").write_text(picture)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("samples", type=Path)
    print(write_report(parser.parse_args().samples))


if __name__ == "__main__":
    main()
