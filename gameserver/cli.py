"""The `troupe` command."""

import asyncio
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from gameserver import cards_cli, doctor_cli, halt_cli, logs, memory_cli, model_cli, quests_cli
from gameserver.complaint import complain, fail
from gameserver.folders import CannotWrite, check_writable, data_folder
from gameserver.help_words import Commands
from gameserver.packs import CannotFind, find_packs
from gameserver.settings_faults import fault_in

# Everything that reaches the engine imports torch, which takes seconds: `serve` does so itself, and
# help and `talk` come up at once.
if TYPE_CHECKING:
    from gameserver.app import Application
    from gameserver.settings import Settings
    from gameserver.startup_display import StartupDisplay

cli = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Live NPCs for multiplayer games: a session server with its own LLM engine.",
    epilog="Begin with [bold]troupe serve[/bold]; then open the playground it prints, or run "
    "[bold]troupe talk[/bold] in another terminal.",
)

_SHOWN = 12  # scenes, and NPCs of each, that a start lists

_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)


@cli.callback()
def troupe(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Without a command, say what there is."""
    if version:
        typer.echo(f"troupe {metadata.version('troupe-npc')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@cli.command()
def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file of settings; options given here come before it.", metavar="FILE"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="[bold]default[/bold] (SmolLM2-135M-Instruct, fetched once), a GGUF file, a "
            "Hugging Face folder or hub id, or [bold]script:FILE[/bold] for exact replies.",
            metavar="MODEL",
        ),
    ] = None,
    engine: Annotated[
        Literal["own", "remote"] | None,
        typer.Option(
            help="Who computes replies: this machine, or a cluster (vLLM, SGLang, NIM, "
            "llama-server) that --remote-url or the settings name. Default: the cluster, if one is "
            "named."
        ),
    ] = None,
    remote_url: Annotated[
        list[str] | None,
        typer.Option(
            help="Address of a server that speaks OpenAI's API. May be given again.", metavar="URL"
        ),
    ] = None,
    remote_model: Annotated[
        str | None,
        typer.Option(help="Its model. Default: the first it lists.", metavar="NAME"),
    ] = None,
    remote_tokenizer: Annotated[
        str | None,
        typer.Option(
            help="The model's tokenizer (folder, hub id, GGUF file): sends token ids instead of "
            "messages.",
            metavar="MODEL",
        ),
    ] = None,
    remote_key_file: Annotated[
        Path | None, typer.Option(help="File that holds its API key.", metavar="FILE")
    ] = None,
    scenes: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of a scene pack, or of several. May be given again. Default: the shipped "
            "tavern.",
            metavar="FOLDER",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address of the game port. Default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Game port; 0 takes a free one. Default: 8765.")
    ] = None,
    console_host: Annotated[
        str | None, typer.Option(help="Address of the console. Default: 127.0.0.1.")
    ] = None,
    console_port: Annotated[
        int | None,
        typer.Option(
            help="Port of playground, health and metrics; 0 takes a free one. Default: 8780."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Keep worlds, sessions, transcripts and models here: players go on after a "
            "restart. Default: in memory, and models in the user's cache folder.",
            metavar="FOLDER",
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help="Keep models here instead of in the data folder.", metavar="FOLDER"),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(
            help="Keep worlds and sessions in this Redis, which several nodes may share: "
            "redis://host:port/0.",
            metavar="URL",
        ),
    ] = None,
    inspect: Annotated[
        bool,
        typer.Option(
            "--inspect", help="Show prompts at /debug/prompts/TURN on the console: for developers."
        ),
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Write where the engine's time went to this file when the server ends, and a "
            "trace for Perfetto beside it.",
            metavar="FILE",
        ),
    ] = None,
    watch: Annotated[
        bool | None,
        typer.Option(
            "--watch", help="Follow changes of scene files while players talk.", show_default=False
        ),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="How much is logged.")
    ] = "warning",
) -> None:
    """Start a node: load the model, open the scenes, let players in."""
    from engine.errors import EngineError
    from gameserver.app import Application
    from gameserver.settings import Settings, SettingsError
    from gameserver.startup_display import StartupDisplay
    from gameserver.stores.store import StoreError
    from npc.safety.rules import RulesError
    from scenes.pack import PackError

    logs.configure(log_level)
    given = {
        "host": host,
        "port": port,
        "console_host": console_host,
        "console_port": console_port,
        "model": model,
        "scenes": tuple(str(folder) for folder in scenes) if scenes else None,
        "data": str(data) if data else None,
        "models": str(models) if models else None,
        "redis": redis,
        "watch": watch,
    }
    remote = {
        "urls": tuple(remote_url) if remote_url else None,
        "model": remote_model,
        "tokenizer": remote_tokenizer,
        "key_file": str(remote_key_file) if remote_key_file else None,
    }
    display = StartupDisplay(_err)
    try:
        settings = _overridden(_computed_by(engine, Settings.load(config), remote), given)
        if profile is not None:
            check_writable(profile)
        node = Application(
            settings,
            data_dir=data_folder(settings),
            packs=find_packs(settings.scenes),
            inspect=inspect,
            profile=profile,
            on_step=display.show,
        )
        with display:
            asyncio.run(node.run(on_ready=lambda: _welcome(display, node)))
    except (
        *(EngineError, PackError, SettingsError, StoreError, RulesError),
        *(CannotFind, CannotStart, CannotWrite, OSError),
    ) as error:
        display.close()
        complain(str(error))
        _leave(1)
    _leave()


@cli.command()
def talk(
    once: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Say one line to one NPC, print the reply, end.", metavar="NPC LINE"),
    ] = None,
    url: Annotated[str, typer.Option(help="Game port of the server.")] = "ws://127.0.0.1:8765",
    scene: Annotated[
        str | None, typer.Option(help="Scene to enter. Default: the server's first.")
    ] = None,
    player: Annotated[str, typer.Option(help="Your name.")] = "Traveller",
    key: Annotated[
        str | None,
        typer.Option(help="Key, where the server wants one.", metavar="KEY", envvar="TROUPE_KEY"),
    ] = None,
) -> None:
    """Talk to the NPCs of a running server from the terminal."""
    from gameserver import talk as terminal
    from gameserver.visitor import TalkError

    try:
        if once is not None:
            asyncio.run(terminal.say_once(url, scene, player, *once, key))
        else:
            asyncio.run(terminal.talk(url, scene, player, key))
    except TalkError as error:
        fail(str(error))
    except KeyboardInterrupt:
        _out.print()


model_cli.add_commands(cli)
cards_cli.add_commands(cli)
quests_cli.add_commands(cli)
halt_cli.add_commands(cli)
memory_cli.add_commands(cli)
cli.command()(doctor_cli.doctor)


class CannotStart(Exception):
    """What was asked for cannot be done; the message says why."""


def _overridden(settings: "Settings", given: dict[str, Any]) -> "Settings":
    """Settings with what the command line gave, checked like a file.

    Raises:
        CannotStart: an option is out of range.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    raw = msgspec.to_builtins(settings) | chosen
    try:
        return msgspec.convert(raw, type(settings))
    except msgspec.ValidationError as error:
        fault = fault_in(raw, type(settings), error)
        option = _option(fault.path)
        raise CannotStart(f"{option}: {fault.problem}" if option else fault.problem) from None


def _option(path: str) -> str:
    """The option that sets a setting; "" for what belongs to none alone."""
    name, _, below = path.partition(".")
    if name == "remote":
        field = below.partition("[")[0]
        return f"--remote-{'url' if field == 'urls' else field.replace('_', '-')}" if field else ""
    return f"--{name.partition('[')[0].replace('_', '-')}" if name else ""


def _computed_by(
    engine: Literal["own", "remote"] | None, settings: "Settings", given: dict[str, Any]
) -> "Settings":
    """Settings with the cluster that the command line names, or with none.

    Raises:
        CannotStart: there is none, or an option is wrong.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if engine == "own" or (engine is None and not chosen):
        if chosen:
            raise CannotStart("--remote-... is of no use with --engine own")
        return settings if engine is None else msgspec.structs.replace(settings, remote=None)
    known = {} if settings.remote is None else msgspec.to_builtins(settings.remote)
    if "key_file" in chosen:
        known.pop("key_variable", None)
    if not {"urls"} <= (known | chosen).keys():
        raise CannotStart("a remote engine needs --remote-url, or remote: urls in the settings")
    return _overridden(settings, {"remote": known | chosen})


def _welcome(display: "StartupDisplay", node: "Application") -> None:
    """Say where everything is."""
    from gameserver.http.listener import authority

    display.close()
    assert node.engine is not None
    assert node.cast is not None
    settings = node.settings
    rows = [
        ("Playground", f"http://{authority(settings.console_host, node.console_port)}/"),
        ("Game port", f"ws://{authority(settings.host, node.game_port)}"),
        ("Model", node.engine.model_name),
        ("", node.engine.summary),
        *(("Notice", notice) for notice in node.engine.notices),
    ]
    scenes = list(node.cast.scenes.values())
    for scene in scenes[:_SHOWN]:
        rows.append(("Scene", f"{scene.title}: {_listed(list(scene.npcs.names))}"))
    if len(scenes) > _SHOWN:
        rows.append(("", f"and {len(scenes) - _SHOWN:,} more scenes"))
    _out.print("[bold yellow]Troupe is open.[/] Ctrl+C closes it.")
    for title, text in rows:
        _out.print(f"  [bold]{title:<11}[/]{escape(text)}", soft_wrap=True)
    sys.stdout.flush()


def _listed(names: list[str]) -> str:
    """Names for people, who read only so many."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN:,} more"


def _leave(status: int = 0) -> NoReturn:
    """End the process without waiting for a thread that still downloads or computes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Entry point of the `troupe` command."""
    cli()


if __name__ == "__main__":
    main()
