"""Turns samples of `benchmarks.cpu` and `benchmarks.accuracy` into the tables of results/cpu.md.

    python -m benchmarks.cpu_report benchmarks/results/cpu.jsonl

Only what stands between the two marks is written anew; what people wrote around it stays.
"""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.bars import bars
from benchmarks.measuring import Sample, read_samples
from benchmarks.report import CALM_CORES, Figure, Results, Target, number, table

BEGIN, END = (
    "<!-- measured: written by benchmarks.cpu_report -->",
    "<!-- end of what is measured -->",
)
OURS = ("exact", "bf16", "fast", "int4")
SWITCHED_OFF = {
    "reads-apart": "shared context is read again for each sequence (no tree attention)",
    "own-nodes": "each player computes scene and persona (no shared nodes)",
    "bf16": "products of bfloat16 instead of 8-bit integers",
    "parking-only": "no slots are reserved for quest-givers; they park replies",
    "no-parking": "no slots are reserved, and nobody is parked",
}


TARGETS = (
    Target("16 at once, cold, tok/s", "fast", "cpu", "cold", "tok_s", "least", 320),
    Target("16 again, warm, tok/s", "fast", "cpu", "warm", "tok_s", "least", 560),
    Target("new lines to warm NPCs, tok/s", "fast", "cpu", "lines", "tok_s", "least", 480),
    Target("TTFT p99, 16 at once, cold, s", "fast", "cpu", "cold", "ttft_p99_s", "most", 1.6),
    Target("TTFT p99, 16 at once, new lines, s", "fast", "cpu", "lines", "ttft_p99_s", "most", 0.5),
    Target("one alone, cold: TTFT, s", "fast", "cpu", "alone", "ttft_p50_s", "most", 0.5),
    Target("one alone, cold: decode, tok/s", "fast", "cpu", "alone", "decode_tok_s", "least", 80),
    Target("the same with `int4`, tok/s", "int4", "cpu", "alone", "decode_tok_s", "least", 117),
    Target("prompt tokens computed, cold", "fast", "cpu", "cold", "prefill_computed", "most", 2850),
    Target("quest-giver's TTFT p99 ÷ idle", "fast", "cpu", "quests", "ratio", "most", 3, False),
    Target("`bf16`: new lines to warm NPCs, tok/s", "bf16", "cpu", "lines", "tok_s", "least", 294),
)


def is_rival(column: str) -> bool:
    """Whether a column is another engine's."""
    return column.startswith(("llama.cpp", "vLLM"))


def targets_table(results: Results) -> str:
    """Each promise: what it is, what was measured, beside each rival's best column."""
    rows = []
    for target in TARGETS:
        ours = results.figure(target.column, target.profile, target.measure, target.figure)
        rivals = [
            _best(results, target, engine) if target.compared else None
            for engine in ("llama.cpp", "vLLM")
        ]
        known = [rival.median for rival in rivals if rival]
        ratio = "–"
        if ours and known:
            ratio = f"{target.times_better(ours.median, target.best(known)):.2f}×"
        verdict = "not measured"
        if ours:
            verdict = "reached" if target.reached(ours.median) else "**missed**"
        measured = f"**{ours}**" if ours else "–"
        beside = [rival or "–" for rival in rivals]
        rows.append([target.label, *beside, target, measured, ratio, verdict])
    head = ["measure", "llama.cpp best", "vLLM best", "target", "Troupe", "against best rival", ""]
    return table(head, rows)


def _best(results: Results, target: Target, engine: str) -> Figure | None:
    found = [
        results.figure(column, "cpu", target.measure, target.figure)
        for column in results.columns("cpu", target.measure)
        if column.startswith(engine)
    ]
    medians = {figure.median: figure for figure in found if figure}
    return medians[target.best(medians)] if medians else None


_SHOWN: tuple[tuple[str, str, str], ...] = (
    ("alone: TTFT, s", "alone", "ttft_p50_s"),
    ("alone: decode, tok/s", "alone", "decode_tok_s"),
    ("cold, tok/s", "cold", "tok_s"),
    ("cold: TTFT p99, s", "cold", "ttft_p99_s"),
    ("cold: prompt tokens computed", "cold", "prefill_computed"),
    ("warm, tok/s", "warm", "tok_s"),
    ("new lines, tok/s", "lines", "tok_s"),
    ("new lines: TTFT p99, s", "lines", "ttft_p99_s"),
)


def columns_table(results: Results, profile: str) -> str:
    """Every engine under one workload."""
    columns = [c for c in results.columns(profile, "cold") if is_rival(c) or c in OURS]
    rows = [
        [column, *(results.figure(column, profile, m, f) or "–" for _, m, f in _SHOWN)]
        for column in columns
    ]
    return table(["", *(label for label, _, _ in _SHOWN)], rows)


def switches_table(results: Results, profile: str) -> str:
    """`fast`, and `fast` with one thing switched off."""
    rows = []
    for column, meaning in {"fast": "everything", **SWITCHED_OFF}.items():
        cells = [_against(results, column, profile, m) for m in ("cold", "warm", "lines")]
        if any(cell != "–" for cell in cells):
            rows.append([f"`{column}`: {meaning}", *cells])
    return table(["tok/s", "cold", "warm", "new lines"], rows)


def _against(results: Results, column: str, profile: str, measure: str) -> str:
    found = results.figure(column, profile, measure, "tok_s")
    whole = results.figure("fast", profile, measure, "tok_s")
    if not found:
        return "–"
    if column == "fast" or not whole:
        return str(found)
    return f"{found}: {found.median / whole.median:.2f}×"


def quests_table(results: Results, profile: str) -> str:
    """Quest-givers' first tokens, as the product is set and with less done for them."""
    rows = []
    for measure, crowd in (("quests", "fill all slots"), ("quests-lively", "come and go")):
        for column in results.columns(profile, measure):
            figures = [
                results.figure(column, profile, measure, name)
                for name in ("idle_p50_s", "busy_p50_s", "busy_p99_s", "ratio")
            ]
            meaning = SWITCHED_OFF.get(column, "as the product is set")
            rows.append([crowd, f"`{column}`: {meaning}", *figures])
    head = ["ordinary replies", "", "idle p50, s", "busy p50, s", "busy p99, s", "p99 ÷ idle p50"]
    return table(head, rows)


def accuracy_table(results: Results) -> str:
    """How near a column's predictions are to those of `exact`."""
    rows = []
    for column in results.columns("texts", "accuracy"):
        names = ("perplexity", "top_1", "sure_top_1", "divergence", "tokens")
        figures = [results.figure(column, "texts", "accuracy", name) for name in names]
        perplexity, top, sure, divergence, tokens = (f.median if f else 0 for f in figures)
        rows.append(
            [
                f"`{column}`",
                f"{perplexity:.3f}",
                f"{top:.2%}",
                f"{sure:.2%}",
                f"{divergence:.4f}",
                number(tokens),
            ]
        )
    head = ["", "perplexity", "same first choice", "… where `exact` is sure (> 0.5)"]
    return table([*head, "mean divergence, nats", "tokens"], rows)


def picture(results: Results) -> str:
    """Tokens per second of 16 at once, as bars; "" if nothing was measured."""
    groups: dict[str, dict[str, float]] = {}
    for title, measure in (("cold", "cold"), ("again, warm", "warm"), ("new lines", "lines")):
        columns = [c for c in results.columns("cpu", measure) if is_rival(c) or c in OURS]
        found = {c: results.figure(c, "cpu", measure, "tok_s") for c in columns}
        if figures := {column: figure.median for column, figure in found.items() if figure}:
            groups[f"16 at once, {title}: tokens per second"] = figures
    return bars(groups, frozenset(OURS)) if groups else ""


def header(results: Results) -> str:
    """What was measured where, when, with what."""
    samples = results.all_chosen()
    software = "; ".join(sorted({sample.software for sample in samples}))
    machines = "; ".join(sorted({sample.machine for sample in samples}))
    whens = sorted(sample.when for sample in samples)
    disturbed = [s for s in samples if s.disturbance >= CALM_CORES]
    seeds = ", ".join(map(str, sorted({sample.seed for sample in samples})))
    return (
        f"{machines}. {software}. {whens[0]} to {whens[-1]}, seed {seeds}. Medians, smallest and "
        f"largest in brackets. Of {len(samples)} samples shown here {len(disturbed)} were taken "
        f"while others used {CALM_CORES} cores or more"
        + (f" (at most {max(s.disturbance for s in disturbed):.2f})." if disturbed else ".")
    )


def render(samples: Iterable[Sample]) -> str:
    """All tables there are samples for."""
    results = Results(samples, OURS)
    parts: list[tuple[str, Callable[[], str], bool]] = [
        ("Targets", lambda: targets_table(results), bool(results.columns("cpu", "cold"))),
        ("All columns, `cpu`", lambda: columns_table(results, "cpu"), True),
        ("Lengths that no block divides, `odd`", lambda: columns_table(results, "odd"), True),
        ("What each thing brings, `cpu`", lambda: switches_table(results, "cpu"), True),
        ("What each thing brings, `odd`", lambda: switches_table(results, "odd"), True),
        ("Quest-givers, `cpu`", lambda: quests_table(results, "cpu"), True),
        ("How near `fast` is to `exact`", lambda: accuracy_table(results), True),
    ]
    texts = [header(results)]
    for title, write, wanted in parts:
        text = write()
        if wanted and text.count("\n") > 1:
            texts.append(f"## {title}\n\n{text}")
    return "\n\n".join(texts)


def write_report(samples: Path) -> Path:
    """Write the tables into the page beside the samples; returns its path."""
    page = samples.with_suffix(".md")
    old = page.read_text() if page.exists() else f"# Two CPU cores\n\n{BEGIN}\n{END}\n"
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    measured = read_samples(samples)
    text = render(measured)
    if drawn := picture(Results(measured, OURS)):
        plot = samples.with_suffix(".svg")
        plot.write_text(drawn)
        text = f"{text}\n\n![Tokens per second of every column]({plot.name})"
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("samples", type=Path)
    print(write_report(parser.parse_args().samples))


if __name__ == "__main__":
    main()
