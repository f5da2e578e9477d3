"""The `troupe halt` and `troupe release` commands: the kill switch of a running server."""

from typing import Annotated

import httpx2 as httpx
import typer
from rich.console import Console

from gameserver.complaint import fail

_TIMEOUT_S = 5.0
Address = Annotated[str, typer.Option("--console", help="Console of the server.", metavar="URL")]
_HERE = "http://127.0.0.1:8780"


def halt(console: Address = _HERE) -> None:
    """Stop every generation of a running server at once, until `troupe release`.

    Replies end where they are, and new lines are refused. Only from the server's own machine.
    """
    _switch(console, "halt")
    Console(highlight=False).print("All generation is halted. [bold]troupe release[/] ends that.")


def release(console: Address = _HERE) -> None:
    """Let the NPCs of a halted server speak again."""
    _switch(console, "release")
    Console(highlight=False).print("Generation goes on.")


def add_commands(cli: typer.Typer) -> None:
    """Add both to the command line."""
    cli.command()(halt)
    cli.command()(release)


def _switch(console: str, what: str) -> None:
    problem = ""
    try:
        answer = httpx.post(f"{console.rstrip('/')}/{what}", timeout=_TIMEOUT_S)
        if answer.status_code != httpx.codes.OK:
            problem = f"{console} is no console, or refuses: {answer.text[:200].strip()}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        problem = (
            f"no console at {console}: {error}; start a server with `troupe serve`, or name its "
            "console with --console"
        )
    if problem:
        fail(problem)
