"""An open pack can be talked to: on the real engine, with a script in place of the model."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.api import AsyncEngine
from engine.config import EngineConfig
from engine.outputs import RequestOutput
from engine.scripted import ScriptedModel
from npc.cast import Cast
from npc.dialogue import Dialogue, TurnRequest
from npc.settings import ReplySettings
from scenes.pack import PackError
from tests.gameserver.stage import byte_chat, byte_tokenizer
from tests.npc.stage import line
from tests.scenes.packs import MIRA, write_pack

REPLY = "Hello, Anna."


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    tokenizer = byte_tokenizer()
    model = ScriptedModel([tokenizer.encode(REPLY)], tokenizer, byte_chat(tokenizer))
    engine = AsyncEngine(model, EngineConfig(script_step_ms=0))
    await engine.start()
    yield engine
    await engine.stop()


async def ask(talk: Dialogue, request: TurnRequest) -> tuple[str, RequestOutput]:
    """The whole answer, and its last output; committed."""
    outputs: asyncio.Queue[RequestOutput] = asyncio.Queue()
    talk.begin(request, outputs.put_nowait)
    text = ""
    while True:
        output = await outputs.get()
        text += output.text
        if output.finish is not None:
            talk.commit(request, text, 1, "completed", 1)
            return text, output


async def test_an_open_pack_tells_what_its_files_say(engine: AsyncEngine, tmp_path: Path) -> None:
    cast = Cast(engine, ReplySettings())
    scene = await cast.open(write_pack(tmp_path))
    assert cast.scenes == {"inn": scene}
    assert (scene.id, scene.title, scene.allows_instances) == ("inn", "The Inn", True)
    assert scene.meta["weather"] == "rain"
    assert scene.events == {"thunder"}
    assert list(scene.npcs) == ["mira", "harn"]
    talk = scene.dialogue("mira", "inn.1")
    assert (talk.persona.name, talk.greeting) == ("Mira", "Come in.")
    await cast.close()
    await cast.close()
    assert not cast.scenes


async def test_no_players_first_line_pays_for_scene_and_persona(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    cast = Cast(engine, ReplySettings())
    scene = await cast.open(write_pack(tmp_path))
    for stream in ("inn", "inn.1"):
        for npc in scene.npcs:
            talk = scene.dialogue(npc, stream)
            request = TurnRequest("t1", line("Hi!"))
            text, last = await ask(talk, request)
            assert text == REPLY
            assert last.usage is not None
            own = last.usage.prompt_tokens - last.usage.cached_tokens
            assert own <= len("U:Anna: Hi!\nA:")
    await cast.close()


async def test_one_instance_knows_nothing_of_another(engine: AsyncEngine, tmp_path: Path) -> None:
    cast = Cast(engine, ReplySettings())
    scene = await cast.open(write_pack(tmp_path))
    here, there = scene.dialogue("mira", "inn.1"), scene.dialogue("mira", "inn.2")
    await ask(here, TurnRequest("t1", line("Hi!")))
    assert there.history(player="anna", before=None, limit=9) == ([], None)
    await cast.close()


async def test_blocks_come_back_when_the_cast_closes(engine: AsyncEngine, tmp_path: Path) -> None:
    before = engine.gauges().get("blocks_held", 0)
    cast = Cast(engine, ReplySettings())
    scene = await cast.open(write_pack(tmp_path))
    await ask(scene.dialogue("mira", "inn"), TurnRequest("t1", line("Hi!")))
    await cast.close()
    async with asyncio.timeout(2):
        while engine.gauges()["blocks_held"] != before:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_broken_persona_opens_nothing(engine: AsyncEngine, tmp_path: Path) -> None:
    cast = Cast(engine, ReplySettings())
    with pytest.raises(PackError, match=r"mira\.yaml:3: kind"):
        await cast.open(write_pack(tmp_path, mira=MIRA.replace("kind: host", "kind: hero")))
    assert not cast.scenes
