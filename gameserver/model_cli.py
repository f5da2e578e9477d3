"""`troupe chat`, `complete`, `embed`, `bench` and `key`: the model without the game."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from gameserver.complaint import fail
from gameserver.folders import CannotWrite, check_writable

# What reaches the engine imports torch, which takes seconds; a server is asked without.
if TYPE_CHECKING:
    from engine.api import AsyncEngine
    from gameserver.remote import RemoteModel

DEFAULT_URL = "http://127.0.0.1:8780"

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Load this model into this process, as `serve --model` does. Together with --url: "
        "its name at the server.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help=f"Ask this server, ours or any that speaks OpenAI's API. Default: {DEFAULT_URL}.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option("--key", envvar="OPENAI_API_KEY", help="API key of the server.", metavar="KEY"),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Where models are kept. Default: user's cache."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file as of `serve`; its engine section is for a model in this process.",
    ),
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Longest reply, in tokens.")]
Temperature = Annotated[float, typer.Option(min=0, max=2, help="0 is the likeliest word always.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same reply.")]

Result = TypeVar("Result")

_err = Console(stderr=True, highlight=False)


def add_commands(cli: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (chat, complete, embed, bench, key):
        cli.command()(command)


def chat(
    once: Annotated[
        str | None, typer.Option(metavar="LINE", help="Say one line, print the reply, end.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Who the model is to be.")] = None,
    model: Model = None,
    url: Url = None,
    key: Key = None,
    data: Data = None,
    config: Config = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.7,
    seed: Seed = None,
) -> None:
    """Chat with a model: no scene, no NPC. An empty line or Ctrl+D ends it."""
    fields = _fields(max_tokens, temperature, seed)

    async def talk(remote: "RemoteModel") -> None:
        history = [{"role": "system", "content": system}] if system else []
        while (line := once if once is not None else await asyncio.to_thread(_ask)) is not None:
            history.append({"role": "user", "content": line})
            reply = await _show(remote.chat(history, fields))
            history.append({"role": "assistant", "content": reply})
            if once is not None:
                return

    _run(talk, model, url, key, _Local(data, config))


def complete(
    prompt: Annotated[str, typer.Argument(help="What to continue; - reads it from the input.")],
    model: Model = None,
    url: Url = None,
    key: Key = None,
    data: Data = None,
    config: Config = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.7,
    seed: Seed = None,
) -> None:
    """Continue a text."""
    text = sys.stdin.read() if prompt == "-" else prompt
    fields = _fields(max_tokens, temperature, seed)

    async def go_on(remote: "RemoteModel") -> None:
        await _show(remote.complete(text, fields))

    _run(go_on, model, url, key, _Local(data, config))


def embed(
    texts: Annotated[list[str], typer.Argument(help="Texts, one vector each.")],
    model: Model = None,
    url: Url = None,
    key: Key = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Print the vector of each text, as one line of JSON each."""

    async def print_vectors(remote: "RemoteModel") -> None:
        for text, vector in zip(texts, await remote.embed(texts), strict=True):
            print(json.dumps({"text": text, "embedding": vector}, ensure_ascii=False))

    _run(print_vectors, model, url, key, _Local(data, config))


def bench(
    profile: Annotated[
        str,
        typer.Option(
            help="The workload: tiny, cpu, odd, gpu, long, lonely or uneven. Scenes share a "
            "prompt, each NPC has a persona in it, each player says one line to an NPC."
        ),
    ] = "cpu",
    passes: Annotated[
        str,
        typer.Option(
            help="What to measure, one after another: [bold]first[/] (nothing was seen before), "
            "[bold]again[/] (the same lines), [bold]new[/] (new lines in the same scenes)."
        ),
    ] = "first,again,new",
    rate: Annotated[
        float, typer.Option(min=0, help="Lines a second, Poisson; 0 sends all at once.")
    ] = 0.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Most lines open at a time.")] = 256,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each reply. Default: the profile's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the workload and the arrival times.")] = 0,
    vocab: Annotated[
        int | None, typer.Option(min=101, help="Token ids below this. Default: the profile's.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Send words: the server takes no token ids.")
    ] = False,
    eos: Annotated[
        bool,
        typer.Option("--eos", help="Let replies end by themselves: the server has no ignore_eos."),
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Measure an engine in this process, without HTTP."),
    ] = None,
    to_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there, too.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="At the server. Default: its first.")
    ] = None,
    url: Url = None,
    key: Key = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Measure how fast a server speaks: requests, tokens, times to the first token, gaps, errors.

    Prompts are token ids that no tokenizer touches, so that every server gets the same.
    """
    from gameserver.bench import session
    from gameserver.bench.load import HttpTarget
    from gameserver.bench.words import WORDS

    try:
        plan = session.Plan.checked(profile, passes, rate, concurrency, tokens, seed, vocab)
        if to_json is not None:
            check_writable(to_json)
    except (ValueError, CannotWrite) as error:
        fail(str(error))

    async def a_server() -> dict[str, object]:
        from gameserver.remote import RemoteModel

        async with RemoteModel(url or DEFAULT_URL, model, key, concurrency) as remote:
            target = HttpTarget(remote, WORDS if text else (), to_the_end=not eos)
            name = f"{await remote.name()} at {url or DEFAULT_URL}"
            return await session.measure(target, plan, name)

    async def our_engine(spec: str) -> dict[str, object]:
        from gameserver.bench.in_process import EngineTarget

        running = _Local(data, config).load(spec)
        await running.start()
        try:
            name = f"{running.model_name} in this process"
            return await session.measure(EngineTarget(running), plan, name)
        finally:
            await running.stop()

    report = _guarded(lambda: our_engine(engine) if engine else a_server())
    if to_json is not None:
        to_json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def key(
    name: Annotated[str, typer.Argument(help="Whose key it is; letters, digits, . _ -")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="What it is good for: api, play, events; else api and play."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Whose scenes it is for, where several games are served.")
    ] = None,
) -> None:
    """Make a key, and the line that admits it in a key file.

    `api.keys_file` names the key file of the HTTP API, `auth.keys_file` that of the game port.
    """
    from gameserver.keys import NAME, SCOPES, key_line, new_key

    if not (NAME.fullmatch(name) and NAME.fullmatch(tenant or name)):
        fail("a name has 1 to 64 letters, digits, dots, dashes or underscores")
    if unknown := sorted(set(scope or ()) - SCOPES):
        fail(f"there is no scope {unknown[0]}; known are {', '.join(sorted(SCOPES))}")
    fresh = new_key()
    line = key_line(name, fresh, scope or (), tenant)
    print(f"key, shown only now:   {fresh}\nline of the key file:  {line}")


def _run(
    work: "Callable[[RemoteModel], Awaitable[None]]",
    model: str | None,
    url: str | None,
    key: str | None,
    local: "_Local",
) -> None:
    """Do `work` with a server, or with a model in this process."""

    async def go() -> None:
        from gameserver.remote import RemoteModel

        if model is None or url is not None:
            async with RemoteModel(url or DEFAULT_URL, model, key) as remote:
                await work(remote)
            return
        from gameserver.local_model import serving

        async with (
            serving(local.load(model)) as (own_url, own_key),
            RemoteModel(own_url, None, own_key) as remote,
        ):
            await work(remote)

    _guarded(go)


def _guarded(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run it, and turn what is expected to go wrong into one line and exit status 1."""
    from gameserver.remote import RemoteError

    expected: tuple[type[Exception], ...] = (RemoteError, OSError)
    try:
        return asyncio.run(work())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except expected as error:
        hint = ""
        if isinstance(error, RemoteError) and error.kind == "unreachable":
            hint = "; start one with `troupe serve`, or load a model here (see --help)"
        fail(f"{error}{hint}")
    except Exception as error:
        # The engine's errors, whose module is only there when an engine was loaded.
        if type(error).__module__ != "engine.errors":
            raise
        fail(str(error))


@dataclass(frozen=True, slots=True)
class _Local:
    """How a model is loaded into this process."""

    data: Path | None
    config: Path | None

    def load(self, spec: str) -> "AsyncEngine":
        """An engine over the model, not started."""
        from engine.api import AsyncEngine
        from engine.build import load
        from gameserver.folders import data_folder
        from gameserver.settings import Settings, SettingsError

        try:
            settings = Settings.load(self.config)
        except SettingsError as error:
            fail(str(error))
        with _err.status("Loading the model"):
            model = load(spec, settings.engine, data_dir=data_folder(settings, self.data))
            return AsyncEngine(model, settings.engine)


def _fields(max_tokens: int, temperature: float, seed: int | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature}
    return fields if seed is None else {**fields, "seed": seed}


async def _show(pieces: AsyncIterator[Any]) -> str:
    """Write a reply to stdout as it comes; returns it whole."""
    reply = ""
    async for piece in pieces:
        reply += piece.text
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return reply


def _ask() -> str | None:
    with contextlib.suppress(EOFError):
        return input("> ").strip() or None
    return None
