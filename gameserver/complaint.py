"""How a command says that it cannot do what it was asked for: one line, and exit status 1."""

from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape


def complain(problem: str) -> None:
    """Say on stderr what is wrong."""
    err = Console(stderr=True, highlight=False)
    err.print(f"[bold red]troupe:[/] {escape(problem)}", soft_wrap=True)


def fail(problem: str) -> NoReturn:
    """Say what is wrong, and end the command."""
    complain(problem)
    raise typer.Exit(1)
