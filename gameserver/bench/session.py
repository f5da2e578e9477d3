"""One run of `troupe bench`: the passes in their order, progress, the table, the file."""

from dataclasses import asdict, dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gameserver.bench.load import Target, run
from gameserver.bench.report import Figures, figures, table
from gameserver.bench.workload import PROFILES, Line, build

#: Passes by name, in the order in which they make sense, and what their lines are.
PASSES = ("first", "again", "new")
_OTHER_LINES = 1_000_003  # added to the seed of the workload


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured; see `troupe bench --help`."""

    profile: str
    passes: tuple[str, ...]
    rate: float
    concurrency: int
    tokens: int
    seed: int
    vocab: int | None

    @classmethod
    def checked(
        cls,
        profile: str,
        passes: str,
        rate: float,
        concurrency: int,
        tokens: int | None,
        seed: int,
        vocab: int | None,
    ) -> "Plan":
        """A plan from what the command line gave; raises `ValueError` saying what is wrong."""
        if profile not in PROFILES:
            raise ValueError(f"there is no profile {profile!r}, but {', '.join(PROFILES)}")
        names = tuple(name.strip() for name in passes.split(",") if name.strip())
        if not names or any(name not in PASSES for name in names):
            raise ValueError(f"--passes takes some of {', '.join(PASSES)}, not {passes!r}")
        wanted = tokens or PROFILES[profile].out
        return cls(profile, names, rate, concurrency, wanted, seed, vocab)

    def lines(self, name: str) -> list[Line]:
        """What is said in a pass."""
        other = self.seed + _OTHER_LINES if name == "new" else None
        return build(self.profile, self.seed, other, vocab=self.vocab)


async def measure(target: Target, plan: Plan, name: str) -> dict[str, object]:
    """Run all passes and print the table; returns the figures for a file.

    Args:
        name: of the target, for people.
    """
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    done: list[Figures] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True) as progress:
        for one in plan.passes:
            lines = plan.lines(one)
            task = progress.add_task(one, total=len(lines))
            replies = await run(
                target,
                lines,
                tokens=plan.tokens,
                rate=plan.rate,
                concurrency=plan.concurrency,
                seed=plan.seed,
                on_reply=lambda reply, task=task: progress.advance(task),  # type: ignore[misc]
            )
            done.append(figures(one, replies))
    pace = f"{plan.rate:g} lines/s" if plan.rate else "all at once"
    out.print(
        f"[bold]{name}[/], profile {plan.profile}, {plan.tokens} tokens a reply, {pace}",
        soft_wrap=True,
    )
    out.print(table(done))
    return {"target": name, "plan": asdict(plan), "passes": [f.as_json() for f in done]}
