"""A whole node in the test's own event loop, with replies from a script."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from engine.weights.load import Vocabulary
from gameserver.app import Application
from gameserver.packs import find_packs
from gameserver.settings import Settings
from tests.gameserver.stage import byte_chat, byte_tokenizer

TOKENIZER = byte_tokenizer()
VOCABULARY = Vocabulary("bytes", TOKENIZER, byte_chat(TOKENIZER))


def node_on_script(
    folder: Path,
    replies: Sequence[str],
    *,
    step_ms: float = 1.0,
    inspect: bool = False,
    packs: tuple[Path, ...] | None = None,
    profile: Path | None = None,
    **sections: Any,
) -> Application:
    """A node, not started, on free ports, with the shipped tavern; NPCs say `replies` in turn, and
    `sections` change the settings.
    """
    script = folder / "script.json"
    script.write_text(json.dumps([TOKENIZER.encode(reply) for reply in replies]))
    raw = {"port": 0, "console_port": 0, "model": f"script:{script}", **sections}
    settings = msgspec.convert(raw, Settings)
    engine = msgspec.structs.replace(settings.engine, script_step_ms=step_ms)
    return Application(
        msgspec.structs.replace(settings, engine=engine),
        data_dir=folder,
        packs=packs or find_packs(()),
        inspect=inspect,
        profile=profile,
    )


@contextlib.asynccontextmanager
async def running(node: Application) -> AsyncIterator[Application]:
    """A node from start to stop. Its vocabulary is the 256 bytes, so that nothing is fetched."""
    with mock.patch("gameserver.app.load_vocabulary", return_value=VOCABULARY):
        try:
            await node.start()
            yield node
        finally:
            await node.stop()
