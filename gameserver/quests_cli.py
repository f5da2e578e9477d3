"""The `troupe quests` commands."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from gameserver.complaint import fail
from gameserver.help_words import Commands
from npc.persona import read_personas
from npc.quests.document import read_quests
from npc.quests.graph import dot, graph_svg, mermaid
from npc.quests.quest import Quest
from scenes.document import PackError
from scenes.pack import load_pack

Form = Literal["mermaid", "dot", "svg"]

_out = Console(highlight=False)
_DRAW = {"mermaid": mermaid, "dot": dot, "svg": graph_svg}
_Pack = Annotated[Path, typer.Argument(help="Folder of a scene pack.")]


def add_commands(cli: typer.Typer) -> None:
    """Register the commands of this module."""
    quests = typer.Typer(
        cls=Commands, no_args_is_help=True, help="Check and draw the quests of a scene pack."
    )
    quests.command()(check)
    quests.command()(draw)
    cli.add_typer(quests, name="quests")


def check(pack: _Pack) -> None:
    """Say what is wrong with a pack's quests, with file and line, or what there is."""
    quests = _read(pack)
    for quest in quests.values():
        endings = sorted({stage.ending for stage in quest.stages.values() if stage.ending})
        whose = "shared by the scene" if quest.shared else "of each player"
        words = f"{len(quest.stages)} stages, endings {', '.join(endings)}, {whose}"
        _out.print(f"[bold]{quest.id}[/] {escape(words)}", soft_wrap=True)
    if not quests:
        _out.print("this pack has no quests")


def draw(
    pack: _Pack,
    quest: Annotated[
        str | None, typer.Argument(help="Id of the quest; not needed if there is but one.")
    ] = None,
    form: Annotated[Form, typer.Option(help="As what.")] = "mermaid",
) -> None:
    """Draw a quest: as text for Mermaid or Graphviz, or as an SVG picture."""
    quests = _read(pack)
    name = quest or (next(iter(quests)) if len(quests) == 1 else "")
    if name not in quests:
        fail(f"name one of the quests of {pack}: {', '.join(quests) or 'there are none'}")
    typer.echo(_DRAW[form](quests[name]), nl=form == "svg")


def _read(folder: Path) -> dict[str, Quest]:
    try:
        pack = load_pack(folder)
        return read_quests(pack, {persona.id: persona for persona in read_personas(pack)})
    except PackError as error:
        fail(str(error))
