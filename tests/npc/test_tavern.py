"""The shipped scene: complete, distinct, of the right size, in character on the default model."""

import asyncio
from pathlib import Path

import pytest

import scenes
from engine.api import AsyncEngine
from engine.config import EngineConfig
from engine.outputs import RequestOutput
from engine.weights.gguf import GGUFCheckpoint
from engine.weights.load import load_model
from npc.cast import Cast
from npc.dialogue import TurnRequest
from npc.persona import Persona, load_personas
from npc.settings import ReplySettings
from scenes.pack import ScenePack, load_pack
from tests.npc.stage import line

PACK = Path(scenes.__path__[0]) / "packs" / "gilded_griffin"


@pytest.fixture(scope="module")
def pack() -> ScenePack:
    return load_pack(PACK)


@pytest.fixture(scope="module")
def people(pack: ScenePack) -> dict[str, Persona]:
    return load_personas(pack)


def test_there_is_somebody_for_every_part(people: dict[str, Persona]) -> None:
    kinds = [persona.kind for persona in people.values()]
    assert next(iter(people)) == "mira"
    assert kinds.count("quest_giver") == 1
    assert {"host", "companion", "merchant", "ambient"} <= set(kinds)
    assert len(people) >= 7


def test_everybody_is_written_out(people: dict[str, Persona]) -> None:
    for persona in people.values():
        assert len(persona.knows) >= 4, persona.id
        assert len(persona.examples) >= 12, persona.id
        assert persona.greeting, persona.id
        asked = [example.player for example in persona.examples]
        assert len(set(asked)) == len(asked), persona.id


def test_nobody_speaks_with_the_words_of_another(people: dict[str, Persona]) -> None:
    said = [e.npc for p in people.values() for e in p.examples]
    said += [fact for p in people.values() for fact in p.knows]
    said += [p.greeting for p in people.values()]
    assert len(set(said)) == len(said)


def test_examples_are_short_enough_to_be_a_reply(people: dict[str, Persona]) -> None:
    for persona in people.values():
        for example in persona.examples:
            assert len(example.npc.split()) <= 26, (persona.id, example.npc)
            assert ":" not in example.npc
            assert "\n" not in example.npc


@pytest.mark.model
def test_the_lore_is_about_600_tokens(pack: ScenePack, default_checkpoint: GGUFCheckpoint) -> None:
    assert 450 <= len(default_checkpoint.tokenizer().encode(pack.text)) <= 650


@pytest.mark.model
@pytest.mark.timeout(300)
async def test_people_answer_in_character_on_the_default_model(default_model_path: Path) -> None:
    """What a small model can be held to: it says something short, ends where a sentence ends, does
    not speak for others, and mostly says the word that its character would.
    """
    questions = {
        "mira": [("Any rumours?", "mill"), ("How much is a room?", "five"), ("Hello!", "dear")],
        "harn": [("Who are you?", "Harn"), ("Tell me about the old mill.", "Crow Hill")],
        "quill": [("What do you sell?", "lantern"), ("Who is Edda?", "miller")],
        "tobb": [("Tell me about the river.", "Aye"), ("Any rumours?", "mill")],
    }
    model = load_model(str(default_model_path), data_dir=default_model_path.parent, numerics="bf16")
    engine = AsyncEngine(model, EngineConfig(kv_cache_bytes=384 << 20))
    await engine.start()
    cast = Cast(engine, ReplySettings(temperature=0))
    scene = await cast.open(PACK)
    answers: list[tuple[str, str]] = []

    async def ask(npc: str, question: str, wanted: str) -> None:
        ended, text = asyncio.Event(), []

        def take(output: RequestOutput) -> None:
            text.append(output.text)
            if output.finish is not None:
                assert output.finish in ("stop", "length")
                ended.set()

        scene.dialogue(npc, "tavern").begin(TurnRequest("t1", line(question)), take)
        await ended.wait()
        answers.append(("".join(text), wanted))

    await asyncio.gather(*(ask(npc, *asked) for npc, list_ in questions.items() for asked in list_))
    await cast.close()
    await engine.stop()
    for said, _ in answers:
        assert said.strip()
        assert "\n" not in said
    in_character = sum(wanted.lower() in said.lower() for said, wanted in answers)
    assert in_character >= len(answers) * 2 // 3, answers
