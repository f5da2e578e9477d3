"""What players get when there are more of them than the machine can answer.

    python -m benchmarks.overload                 # a minute; prints the table
    python -m benchmarks.overload --write         # into benchmarks/results/overload.md and .svg
    python -m benchmarks.overload --off           # the same without refusals and levels

Capacity is measured first: turns a second of a server that is asked for many more and refuses none.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.overload_stage import LEARNING_S, Outcome, OverloadStage, settings_of
from benchmarks.panels import page, panel
from benchmarks.report import number, table
from benchmarks.simulated_loop import run
from engine.percentile import percentile
from gameserver.overload.ladder import Level

LOADS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
#: No refusals by time, and no levels.
OFF = {"first_word_s": 0, "quest_first_word_s": 0, "lag_ms": 1e9}
_RESULTS = Path(__file__).parent / "results"
_BEGIN, _END = "<!-- simulated: written by benchmarks.overload -->", "<!-- end of simulated -->"
#: Turns a second that two cores cannot answer in any case.
_FAR_TOO_MANY = 90.0


def play(rate: float, seconds: float, seed: int = 0, overload: Mapping[str, Any] = {}) -> Outcome:
    """One run on a stage of its own, of which the first `LEARNING_S` do not count."""

    async def main() -> Outcome:
        stage = OverloadStage(settings_of(**overload), seed)
        await stage.open()
        return await stage.play(rate, LEARNING_S + seconds)

    return run(main())


def capacity(seconds: float = 20.0, seed: int = 0) -> float:
    """Turns a second that the server is through with when there are always some more."""
    return play(_FAR_TOO_MANY, seconds, seed, OFF).turns_per_s


def wait(waits: Sequence[float], percent: int) -> float | None:
    """A percentile of seconds to the first word, if anybody got one."""
    return percentile(waits, percent) if waits else None


def rows(runs: Mapping[float, Outcome]) -> list[list[str]]:
    """The table, a line for each load."""
    found = []
    for load, outcome in runs.items():
        cells = [f"{load:g}×"]
        for name in ("quest", "player", "ambient"):
            cells += [_ms(wait(outcome.classes[name].waits, percent)) for percent in (50, 99)]
            if name == "quest":
                cells.append(_ms(wait(outcome.classes[name].free_waits, 99)))
        for name in ("quest", "player", "ambient"):
            cells.append(f"{outcome.classes[name].refused_share:.0%}")
        player = outcome.classes["player"]
        cells.append(f"{player.barked / max(player.asked, 1):.0%}")
        level = outcome.usual_level
        cells += [f"{int(level)} {Level(level).name.lower()}", number(outcome.turns_per_s)]
        cells += [number(outcome.ambient_per_s), number(outcome.silence_s)]
        found.append(cells)
    return found


HEAD = (
    "load", "quest p50", "p99", "p99, NPC free", "player p50", "p99", "ambient p50", "p99",
    "quest refused", "player refused", "ambient left out", "player barks", "level", "turns/s",
    "ambient/s", "silence, s",
)  # fmt: skip


def picture(runs: Mapping[float, Outcome]) -> str:
    """Waits by class over load, and what became of players' lines."""
    loads = [f"{load:g}×" for load in runs]

    def line(name: str, percent: int) -> list[float | None]:
        return [wait(outcome.classes[name].waits, percent) for outcome in runs.values()]

    waits = {
        f"{name} p{percent}": line(name, percent)
        for name in ("quest", "player", "ambient")
        for percent in (50, 99)
    }
    shares: dict[str, Sequence[float | None]] = {}
    for name, part in (("refused", "refused"), ("barks", "barked")):
        counts = [
            (getattr(o.classes["player"], part), o.classes["player"].asked) for o in runs.values()
        ]
        shares[name] = [100 * count / asked if count else None for count, asked in counts]
    return page(
        [
            panel("Seconds to the first word, by load", loads, waits, (0.01, 0.1, 1, 3, 10)),
            panel("Players' lines, %", loads, shares, (1, 3, 10, 30, 100)),
        ]
    )


def main() -> None:
    """Print the table; with --write, put it into the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each load")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--off", action="store_true", help="refuse nothing, leave nothing out")
    parser.add_argument("--write", action="store_true", help="into benchmarks/results")
    a = parser.parse_args()
    most = capacity(seed=a.seed)
    print(f"capacity: {most:.1f} turns/s", flush=True)
    runs = {}
    for load in LOADS:
        runs[load] = play(load * most, a.seconds, a.seed, OFF if a.off else {})
        print(rows({load: runs[load]})[0], flush=True)
    text = f"Capacity: {most:.1f} turns a second. Waits in ms.\n\n{table(HEAD, rows(runs))}"
    print(f"\n{text}")
    if a.write:
        _write(text)
        (_RESULTS / "overload.svg").write_text(picture(runs), "utf-8")


def _write(text: str) -> None:
    """Put the table between its marks."""
    file = _RESULTS / "overload.md"
    before, rest = file.read_text("utf-8").split(_BEGIN)
    file.write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{rest.split(_END)[1]}", "utf-8")


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else number(1000 * seconds)


if __name__ == "__main__":
    main()
