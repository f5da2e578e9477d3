"""The `troupe memory` commands: what NPCs remember, in a folder or of a running server."""

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import httpx2 as httpx
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gameserver.complaint import fail
from gameserver.folders import MEMORY_FILE
from gameserver.help_words import Commands
from gameserver.stores.store import StoreError
from npc.memory.book import Book
from npc.memory.forgetting import export as export_player
from npc.memory.forgetting import forget as forget_player
from npc.memory.inspection import known, seen
from npc.memory.opening import MemoryFileError
from npc.memory.records import Scenes, everywhere
from npc.settings import MemorySettings

if TYPE_CHECKING:
    from gameserver.tenants import Remit

_TIMEOUT_S = 30.0
_HERE = "http://127.0.0.1:8780"
_out = Console(highlight=False)
#: Columns between two of a table, of a memory's text at least, and of a table in a pipe at most.
_BESIDE, _LEAST_TEXT, _WIDE = 2, 30, 4096

Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder given to [bold]serve --data[/bold]; for a server that does not run.",
        metavar="FOLDER",
    ),
]
Address = Annotated[str, typer.Option("--console", help="Console of the server.", metavar="URL")]
Key = Annotated[
    str,
    typer.Option(envvar="OPENAI_API_KEY", help="API key, where the server asks for one."),
]
Game = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        help="Only players of this game, where several share the server; [bold]house[/bold]: of "
        "those that belong to none.",
        metavar="GAME",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        help="Settings of the server that --data belongs to: they say which scenes are whose.",
        metavar="FILE",
    ),
]
Player = Annotated[str, typer.Argument(help="Id of the player.")]
cli = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="See, export and forget what NPCs remember: of a running server, or in its folder.",
)


@cli.command("list")
def list_(
    data: Data = None,
    console: Address = _HERE,
    key: Key = "",
    tenant: Game = None,
    config: Config = None,
) -> None:
    """Say whom NPCs remember."""
    with _answers():
        if data is not None:
            scenes = _scenes(tenant, config)
            with _book(data) as book:
                rows = [asdict(row) for row in known(book, scenes)]
        else:
            rows = _ask("GET", console, key, "", tenant=tenant)["players"]
    names = ("scene", "npc", "player", "name", "lines", "facts")
    cells = [[*(str(row[name]) for name in names), _when(row["last"])] for row in rows]
    if _fits([*names, "last"], cells):
        _print_table([*names, "last"], cells)
        return
    for scene, npc, player, name, lines, facts, last in cells:
        _out.print(f"{player}  ({name})", markup=False, soft_wrap=True)
        about = f"  {npc} in {scene}: {lines} lines, {facts} facts, last {last}"
        _out.print(about, markup=False, soft_wrap=True)


@cli.command()
def show(
    player: Player,
    npc: Annotated[str, typer.Argument(help="Id of the NPC.")],
    data: Data = None,
    console: Address = _HERE,
    key: Key = "",
    tenant: Game = None,
    config: Config = None,
) -> None:
    """Show what an NPC remembers of a player, what is strongest first."""
    with _answers():
        if data is not None:
            scenes = _scenes(tenant, config)
            with _book(data) as book:
                now = int(datetime.now().timestamp() * 1000)
                found = seen(book, MemorySettings(), npc, player, None, "", now, scenes)
                rows = [asdict(memory) for memory in found]
        else:
            path = f"/{quote(player, '')}/{quote(npc, '')}"
            rows = _ask("GET", console, key, path, tenant=tenant)["memories"]
    if not rows:
        _out.print(
            f"{npc} has no facts of {player}; troupe memory list has all ids, and export the lines",
            markup=False,
            soft_wrap=True,
        )
        return
    heading = ("kind", "score", "strength", "importance", "when", "heard by", "")
    cells = []
    for row in rows:
        heard_by = "everybody" if row["heard_by"] is None else ", ".join(row["heard_by"])
        figures = [f"{row[name]:.2f}" for name in heading[1:4]]
        cells.append([row["kind"], *figures, _when(row["ts"]), heard_by, row["text"]])
    if _fits(heading, [[*cell[:-1], cell[-1][:_LEAST_TEXT]] for cell in cells]):
        _print_table(heading, cells)
        return
    for kind, score, strength, importance, when, heard_by, text in cells:
        _out.print(text, markup=False, soft_wrap=True)
        about = f"  {kind} of {when}, heard by {heard_by}: score {score}, strength {strength}"
        _out.print(f"{about}, importance {importance}", markup=False, soft_wrap=True)


@cli.command()
def export(
    player: Player,
    data: Data = None,
    console: Address = _HERE,
    key: Key = "",
    tenant: Game = None,
    config: Config = None,
) -> None:
    """Print all that is kept of a player as JSON."""
    with _answers():
        if data is not None:
            scenes = _scenes(tenant, config)
            with _book(data) as book:
                found = export_player(book, player, scenes)
        else:
            found = _ask("GET", console, key, f"/{quote(player, '')}", tenant=tenant)
    sys.stdout.write(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


@cli.command()
def forget(
    player: Player,
    npc: Annotated[
        str | None, typer.Option(help="Only what this NPC remembers.", metavar="ID")
    ] = None,
    data: Data = None,
    console: Address = _HERE,
    key: Key = "",
    tenant: Game = None,
    config: Config = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask in the terminal.")] = False,
) -> None:
    """Delete all that is remembered of a player, to the last byte.

    Scenes and sessions forget it, too: transcripts, feelings, quests, lines that wait. Where
    several games share the server, --tenant says whose player is meant.
    """
    beside = ""
    with _answers():
        if data is not None:
            remit = _remit(tenant, config, must_say=True)
            with _book(data) as book:
                _announce(player, npc, tenant, f"in {data}", sure=yes)
                # Imported here: it reaches the engine, and so torch, which takes seconds.
                from gameserver.forgetting import forget_in_folder

                worlds = asyncio.run(forget_in_folder(data, player, npc, remit))
                deleted = forget_player(book, player, npc, remit.scene)
            if worlds:
                beside = "; scenes and sessions have forgotten, too"
        else:
            _announce(player, npc, tenant, f"at {console}", sure=yes)
            path = f"/{quote(player, '')}"
            deleted = _ask("DELETE", console, key, path, npc=npc, tenant=tenant)["deleted"]
    who = "" if deleted else f" of {player} (troupe memory list has the ids)"
    _out.print(f"{deleted} records{who} deleted{beside}", markup=False, soft_wrap=True)


def add_commands(parent: typer.Typer) -> None:
    """Add them to the command line."""
    parent.add_typer(cli, name="memory")


def _fits(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table has room in the terminal without a cell that is broken. Where there is none,
    as in a pipe, every table has.
    """
    widths = [max(map(cell_len, column)) for column in zip(heading, *rows, strict=True)]
    return not _out.is_terminal or sum(widths) + _BESIDE * len(widths) <= _out.width


def _print_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the last column may go on in further lines if there is a terminal."""
    table = Table(*heading, box=None)
    for column in table.columns:
        column.no_wrap = column.header != "" or not _out.is_terminal
        column.overflow = "fold"
    for row in rows:
        table.add_row(*map(escape, row))
    (_out if _out.is_terminal else Console(width=_WIDE, highlight=False)).print(table)


class _NoAnswer(Exception):
    """What was asked for cannot be had; the message says why."""


def _scenes(game: str | None, config: Path | None) -> Scenes:
    """Which scenes of a folder are meant."""
    if game is None and config is None:
        return everywhere
    return _remit(game, config).scene


def _remit(game: str | None, config: Path | None, *, must_say: bool = False) -> "Remit":
    """What of a folder is meant; `must_say`: not all games, if there are several."""
    # Imported here: they reach the engine, and so torch, which takes seconds.
    from gameserver.tenants import EVERYTHING
    from gameserver.whose import NoSuchGame, remit_by

    if config is None:
        if game is not None:
            raise _NoAnswer("--tenant wants --config FILE here: it says which scenes are whose")
        return EVERYTHING
    try:
        return remit_by(config, game, must_say=must_say)
    except NoSuchGame as error:
        raise _NoAnswer(str(error)) from error


def _announce(player: str, npc: str | None, game: str | None, where: str, *, sure: bool) -> None:
    """Say what will be forgotten, and let a person at a terminal think again."""
    whose = f"{player} of {game}" if game else player
    scenes = f"the scenes of {game}" if game else "all scenes"
    _out.print(f"Forgetting {whose}: {npc or 'all NPCs'} of {scenes} {where}", markup=False)
    if not sure and _at_a_terminal():
        typer.confirm("Go on?", abort=True)


def _at_a_terminal() -> bool:
    """Whether somebody is there who could be asked."""
    return sys.stdin.isatty()


@contextmanager
def _answers() -> Iterator[None]:
    """Say what went wrong in one line."""
    try:
        yield
    except (MemoryFileError, StoreError, _NoAnswer) as error:
        fail(str(error))


@contextmanager
def _book(folder: Path) -> Iterator[Book]:
    path = folder / MEMORY_FILE
    if not path.is_file():
        raise _NoAnswer(f"{path}: there is no such file; NPCs remember in the folder of --data")
    book = Book(path, MemorySettings())
    try:
        yield book
    finally:
        book.close()


def _ask(method: str, console: str, key: str, path: str, **query: str | None) -> Mapping[str, Any]:
    """What the console answers; a part of the query that is None is left out."""
    url = f"{console.rstrip('/')}/console/memories{path}"
    try:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        params = {name: value for name, value in query.items() if value}
        answer = httpx.request(method, url, params=params, headers=headers, timeout=_TIMEOUT_S)
        body: Any = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise _NoAnswer(
            f"no console at {console} ({error}); for a server that does not run, give --data FOLDER"
        ) from error
    if answer.status_code != httpx.codes.OK or not isinstance(body, dict):
        raise _NoAnswer(f"{console} refuses: {answer.text[:200].strip()}")
    return body


def _when(ts: int) -> str:
    return datetime.fromtimestamp(ts / 1000).strftime("%Y-%m-%d %H:%M")
