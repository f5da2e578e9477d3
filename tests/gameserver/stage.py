"""A small stage for socket tests: the real engine on a script, one scene pack, the game server.

The vocabulary is the 256 bytes and an end mark: one token is one byte, so a script reads as text.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from engine.api import AsyncEngine
from engine.chat import ChatFormat, Frame
from engine.scripted import ScriptedModel
from engine.tokenizer import Tokenizer
from gameserver.game import GameServer
from gameserver.settings import Settings
from gameserver.stores.store import Store
from npc.cast import Cast
from npc.notes import SourceMaker

STEP_MS = 2.0
SCENE = "inn"
GREETING = "Welcome in."
BARK = "Not now, love."

PACK: dict[str, Any] = {
    "id": SCENE,
    "title": "The Inn",
    "text": "An inn at a ford.",
    "meta": {"weather": "rain"},
    "instances": True,
    "events": ["thunder"],
    "npcs": ["npcs/mira.yaml", "npcs/harn.yaml"],
}
PEOPLE: list[dict[str, Any]] = [
    {
        "id": "mira",
        "name": "Mira",
        "kind": "ambient",
        "role": "innkeeper",
        "voice": "Brisk.",
        "knows": ["The stew is hot."],
        "greeting": GREETING,
        "barks": [BARK],
    },
    {
        "id": "harn",
        "name": "Harn",
        "kind": "quest_giver",
        "role": "captain",
        "voice": "Gruff.",
        "knows": ["The mill burns."],
    },
]


def byte_tokenizer() -> Tokenizer:
    """One token per byte, and an end mark."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    return Tokenizer(backend, eos_ids=[len(alphabet)], bos_id=None)


def byte_chat(tokenizer: Tokenizer) -> ChatFormat:
    """Each turn begins with its role's letter and ends with a line break."""

    def frame(letter: str) -> Frame:
        return Frame(tuple(tokenizer.encode(f"{letter}:")), tuple(tokenizer.encode("\n")))

    return ChatFormat((), frame("S"), frame("U"), frame("A"))


def byte_model(replies: Sequence[str]) -> ScriptedModel:
    """A model that says `replies` in turn, one byte a step."""
    tokenizer = byte_tokenizer()
    script = [tokenizer.encode(reply) for reply in replies]
    return ScriptedModel(script, tokenizer, byte_chat(tokenizer))


def write_pack(folder: Path, **changes: Any) -> Path:
    """The test pack in a new folder."""
    (folder / "npcs").mkdir(parents=True)
    (folder / "scene.yaml").write_text(yaml.safe_dump({**PACK, **changes}), "utf-8")
    for person in PEOPLE:
        (folder / "npcs" / f"{person['id']}.yaml").write_text(yaml.safe_dump(person), "utf-8")
    return folder


def settings_with(**sections: dict[str, Any]) -> Settings:
    """Settings for tests: any free port, quick timers, generous rates, and no
    end of patience; changed as asked.
    """
    raw: dict[str, Any] = {
        "port": 0,
        "limits": {
            "messages_per_s": 1000.0,
            "messages_burst": 1000,
            "bytes_per_s": 1e7,
            "bytes_burst": 10_000_000,
            "says_per_s": 1000.0,
            "says_burst": 1000,
        },
        "overload": {"first_word_s": 0, "quest_first_word_s": 0, "lag_ms": 1e9},
        "guards": {"linger_s": 0.01, "close_timeout_s": 0.2, "stall_s": 0.3},
    }
    for name, section in sections.items():
        raw[name] = {**raw.get(name, {}), **section} if isinstance(section, dict) else section
    return msgspec.convert(raw, Settings)


@asynccontextmanager
async def serving(
    folder: Path,
    replies: Sequence[str],
    *,
    step_ms: float = STEP_MS,
    inspect: bool = False,
    pack: dict[str, Any] | None = None,
    reply_settings: dict[str, Any] | None = None,
    sources: Sequence[SourceMaker] = (),
    kept_in: Store | None = None,
    **sections: Any,
) -> AsyncIterator[GameServer]:
    """A running game server whose NPCs say `replies` in turn, one byte a step, and have in mind
    what `sources` say; `pack` changes the scene, `sections` the settings. Worlds are `kept_in` a
    store that is open, or else in memory.
    """
    settings = settings_with(replies=reply_settings or {}, **sections)
    config = msgspec.structs.replace(settings.engine, script_step_ms=step_ms)
    engine = AsyncEngine(byte_model(replies), config)
    await engine.start()
    cast = Cast(engine, settings.replies, sources=sources)
    await cast.open(write_pack(folder / "pack", **(pack or {})))
    server = GameServer(cast, settings, inspect=inspect, store=kept_in)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
        await cast.close()
        await engine.stop()


async def until(condition: Any, seconds: float = 20.0) -> None:
    """Wait until `condition()` holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
