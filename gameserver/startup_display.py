"""What a person sees while the node starts: a bar a piece of work, or plain lines in a log."""

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from gameserver.readiness import Step


class StartupDisplay:
    """Shows steps as they come; one whose message is new is a new piece of work.

    Args:
        console: where to. Bars are drawn in a terminal only.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=console,
        )
        self._message = ""
        self._task: TaskID | None = None

    def show(self, step: Step) -> None:
        """Show a step. May be called from any thread."""
        if step.message != self._message:
            self._finish()
            self._message = step.message
            if self._console.is_terminal:
                self._task = self._bars.add_task(step.message, total=None)
            else:
                self._console.print(f"{step.message} ...", markup=False)
        if self._task is not None and step.total:
            self._bars.update(self._task, completed=step.done, total=step.total)

    def close(self) -> None:
        """The start is over, well or not. Idempotent."""
        self._finish()
        if self._console.is_terminal:  # elsewhere it would add an empty line
            self._bars.stop()

    def __enter__(self) -> "StartupDisplay":
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _finish(self) -> None:
        if self._task is not None:
            total = self._bars.tasks[self._bars.task_ids.index(self._task)].total or 1
            self._bars.update(self._task, completed=total, total=total)
            self._task = None
