"""A bar for people who wait for a long run."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

#: A run that ends sooner needs no bar.
_PATIENCE_S = 2.0


class ProgressBar:
    """Shows on standard error how many of a run's requests are done, and tokens a second.

    It appears when a run has lasted a while, and is gone when it ends.
    """

    def __init__(self, total: int, shown: bool | None, console: "Console | None" = None) -> None:
        """Begin.

        Args:
            total: requests.
            shown: True from the start, False never, None after two seconds on a terminal.
            console: where, instead of standard error.
        """
        self._total = total
        self._wanted = sys.stderr.isatty() if shown is None else shown
        self._due = time.monotonic() + (_PATIENCE_S if shown is None else 0)
        self._began = time.monotonic()
        self._console = console
        self._bar: Progress | None = None
        self._done = self._tokens = 0

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int, tokens: int) -> None:
        """So many more requests are done, and so many more tokens computed."""
        self._done += done
        self._tokens += tokens
        if not self._wanted:
            return
        now = time.monotonic()
        if self._bar is None:
            if now < self._due:
                return
            self._bar = _start(self._total, self._console)
        speed = self._tokens / max(now - self._began, 1e-6)
        self._bar.update(self._bar.task_ids[0], completed=self._done, note=f"{speed:,.0f} tokens/s")


def _start(total: int, console: "Console | None") -> "Progress":
    # Imported here: most runs are short, or nobody watches them.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=total, note="")
    bar.start()
    return bar
