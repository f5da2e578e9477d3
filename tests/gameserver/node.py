"""A whole node in the test's own event loop, with replies from a script."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from engine.tokenizer import Tokenizer
from gameserver.app import Application
from gameserver.cli import find_packs
from gameserver.settings import Settings


def write_script(folder: Path, tokenizer: Tokenizer, replies: Sequence[str]) -> Path:
    """A file for `--model script:FILE` that says these replies, in turn."""
    file = folder / "script.json"
    file.write_text(json.dumps([tokenizer.encode(reply) for reply in replies]))
    return file


@contextlib.asynccontextmanager
async def running_node(
    script: Path, cache_dir: Path, *, step_ms: float = 1.0, inspect: bool = False, port: int = 0
) -> AsyncIterator[Application]:
    """A started node on free ports, with the shipped tavern."""
    settings = Settings(port=port, console_port=0, model=f"script:{script}")
    settings = msgspec.structs.replace(
        settings, engine=msgspec.structs.replace(settings.engine, script_step_ms=step_ms)
    )
    node = Application(settings, data_dir=cache_dir, packs=find_packs(()), inspect=inspect)
    try:
        await node.start()
        yield node
    finally:
        await node.stop()
