"""The `troupe import` and `troupe export` commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from gameserver.complaint import fail
from npc.cards.card import read_card
from npc.cards.convert import Wishes, slug
from npc.cards.errors import CardError
from npc.cards.fields import text
from npc.cards.store import export_card, export_world, import_card
from npc.priority import KINDS
from scenes.document import PackError

_out = Console(highlight=False)
_DEFAULT = Wishes()


def add_commands(cli: typer.Typer) -> None:
    """Register the commands of this module."""
    cli.command("import")(take_in)
    cli.command("export")(give_out)


def take_in(
    file: Annotated[
        Path, typer.Argument(help="Character card (.json, .png, .charx) or World Info (.json).")
    ],
    into: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a scene pack; a new pack is made if there is none. Default: a folder "
            "named like the character.",
            metavar="FOLDER",
        ),
    ] = None,
    npc: Annotated[str, typer.Option("--id", help="Id of the NPC or of the lore file.")] = "",
    kind: Annotated[
        str, typer.Option(help=f"How urgent its words are: {', '.join(KINDS)}.")
    ] = _DEFAULT.kind,
    role: Annotated[
        str, typer.Option(help="What it is to the people around, as in 'the innkeeper'.")
    ] = _DEFAULT.role,
) -> None:
    """Turn a character card into an NPC file of a scene pack, or World Info into lore."""
    if kind not in KINDS:
        fail(f"--kind {kind}: must be one of {', '.join(KINDS)}")
    try:
        folder = into or Path(npc or slug(text(read_card(file).data, "name") or file.stem))
        done = import_card(file, folder, Wishes(npc, kind, role))
    except CardError as error:
        fail(f"{file}: {error} ({error.reason})")
    except (PackError, OSError) as error:
        fail(str(error))
    for path in done.written:
        _line("wrote", str(path))
    for what in done.mapped:
        _line("taken over", what)
    _tell_left_out(done.left_out)
    _line("next", f"troupe serve --scenes {folder}")


def give_out(
    pack: Annotated[Path, typer.Argument(help="Folder of a scene pack.")],
    file: Annotated[Path, typer.Argument(help="What to write: .json, .png or .charx.")],
    npc: Annotated[
        str | None, typer.Option(help="Id of an NPC. Without one: the scene's lore as World Info.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="PNG to put the card into.", metavar="FILE")
    ] = None,
) -> None:
    """Write an NPC as a character card, or a scene's lore as World Info."""
    try:
        if file.exists():
            fail(f"{file} exists already")
        if npc is None:
            done = export_world(pack)
        else:
            drawn = picture.read_bytes() if picture else None
            done = export_card(pack, npc, file.suffix.lower(), drawn)
        file.write_bytes(done.content)
    except CardError as error:
        fail(f"{error} ({error.reason})")
    except (PackError, OSError) as error:
        fail(str(error))
    _line("wrote", str(file))
    _tell_left_out(done.left_out)


def _tell_left_out(left_out: Mapping[str, int]) -> None:
    for what, times in left_out.items():
        _line("left out", f"{what} ({times})" if times > 1 else what)


def _line(label: str, words: str) -> None:
    _out.print(f"[bold]{label:<11}[/]{escape(words)}", soft_wrap=True)
