"""The `troupe doctor` command."""

import json
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from gameserver.complaint import fail

_MARKS = {"ok": "[green]ok[/]     ", "missing": "[yellow]missing[/]", "broken": "[red]broken[/] "}


def doctor(
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings, as for serve.", metavar="FILE")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Where worlds, memories and models are kept, as for serve.", metavar="FOLDER"
        ),
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="Where models are kept, as for serve.", metavar="FOLDER")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Say what this machine has and lacks, what that costs, and how to fix it.

    Ends with 1 if a server could not start. Changes nothing and fetches nothing.
    """
    # Imported here: torch takes seconds.
    from gameserver import doctor as examination
    from gameserver.folders import data_folder
    from gameserver.settings import Settings, SettingsError

    try:
        settings = Settings.load(config)
    except SettingsError as error:
        fail(str(error))
    given = {"data": data, "models": models}
    folders = {name: str(folder) for name, folder in given.items() if folder is not None}
    settings = msgspec.structs.replace(settings, **folders)
    folder = data_folder(settings)
    findings = examination.examine(settings, folder, examination.this_machine())
    if as_json:
        sys.stdout.write(json.dumps(examination.as_json(findings), indent=1) + "\n")
    else:
        out = Console(highlight=False)
        for finding in findings:
            line = f"{_MARKS[finding.state]} [bold]{finding.name:<13}[/]{escape(finding.found)}"
            out.print(line, soft_wrap=True)
            for label, text in (("costs", finding.costs), ("fix", finding.fix)):
                if text:
                    out.print(f"        {label}: {escape(text)}", soft_wrap=True)
    raise typer.Exit(0 if examination.healthy(findings) else 1)
