"""The page of results, from the results of all parts that were ever run."""

import json
from pathlib import Path

from benchmarks.bars import bars
from benchmarks.curves import curves
from benchmarks.load.part import Result
from benchmarks.report import number, table

_TITLES = {
    "idle": "Idle: sessions that are only there",
    "talk": "Talk: how many can listen",
    "model": "Model: talking clients on the default model",
    "slow": "Slow: readers that hardly read",
    "storm": "Storm: all come back at once",
    "jam": "Jam: hostile sockets",
    "fuzz": "Fuzz: frames that no client sends",
    "cut": "Cut: lines lost at any byte",
}
_DISTURBED = 0.15


def read(path: Path) -> dict[str, Result]:
    """The latest result of each part."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["part"]: Result.of(line) for line in lines}


def keep(path: Path, result: Result) -> None:
    """Put the result of a part in the place of an earlier one."""
    kept = {**read(path), result.part: result}
    path.write_text("".join(json.dumps(found.as_json()) + "\n" for found in kept.values()))


def write(results: dict[str, Result], page: Path) -> None:
    """Write the page and its pictures."""
    parts = [
        "# Load\n",
        "By `make load`: one node, its guests and its enemies on the loopback of one machine. "
        "[docs/session-cases.md](../../docs/session-cases.md) says which rule "
        "each part stands for.\n",
        table(["part", "promise", "measured", "bound", "kept"], _promises(results)) + "\n",
    ]
    for part, title in _TITLES.items():
        if part in results:
            parts += [f"## {title}\n", *_section(results[part], page.parent)]
    page.write_text("\n".join(parts))


def _promises(results: dict[str, Result]) -> list[list[str]]:
    rows = []
    for part in _TITLES:
        for promise in results[part].promises if part in results else ():
            sign = "≤" if promise.most else "≥"
            measured = f"{number(promise.value)} {promise.unit}".strip()
            bound = f"{sign} {number(promise.bound)} {promise.unit}".strip()
            rows.append([part, promise.label, measured, bound, "yes" if promise.kept else "**no**"])
    return rows


def _section(result: Result, folder: Path) -> list[str]:
    size = ", ".join(f"{name} {value}" for name, value in result.size.items())
    shared = f"others took {result.others:.2f} of {result.cores} cores meanwhile"
    warning = "; **the machine was shared**" if result.others > _DISTURBED else ""
    found = [f"{result.when}, {result.seconds:.0f} s. {size}. {shared}{warning}.\n"]
    if result.rows:
        head = list(result.rows[0])
        rows = [[_cell(row[column]) for column in head] for row in result.rows]
        found.append(table(head, rows) + "\n")
    for name, picture in _pictures(result).items():
        (folder / f"{name}.svg").write_text(picture)
        found.append(f"![{name}]({name}.svg)\n")
    return [*found, *(f"{note}\n" for note in result.notes)]


def _cell(value: object) -> str:
    return number(value) if isinstance(value, (int, float)) else str(value)


def _pictures(result: Result) -> dict[str, str]:
    """Pictures by name, for the parts that have a curve to show."""
    rows = result.rows

    def column(name: str) -> list[float]:
        return [float(row[name]) for row in rows]

    if result.part == "talk":
        sizes = column("clients")
        waits = {name: column(name) for name in ("late p99, ms", "gap p99, ms", "loop lag p99, ms")}
        frames = {"deltas/s": column("deltas/s")}
        return {
            "load-talk-deltas": curves("Deltas a second", "listening clients", sizes, frames),
            "load-talk-waits": curves("Milliseconds", "listening clients", sizes, waits),
        }
    if result.part == "fuzz":
        memory = {"RSS, MB": column("RSS, MB")}
        sent = column("frames")
        return {"load-fuzz-memory": curves("Memory of the node", "frames sent", sent, memory)}
    if result.part == "idle":
        groups = {"Resident memory, MB": {row[""]: row["RSS, MB"] for row in rows}}
        return {"load-idle": bars(groups, frozenset(row[""] for row in rows))}
    return {}
