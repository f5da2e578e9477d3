"""The shipped scene: complete, distinct, of the right size, in character on the default model."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import scenes
from engine.api import AsyncEngine
from engine.config import EngineConfig
from engine.outputs import RequestOutput
from engine.weights.gguf import GGUFCheckpoint
from engine.weights.load import load_model
from npc.cast import Cast, OpenScene
from npc.dialogue import Dialogue, TurnRequest
from npc.persona import Persona, read_personas
from npc.settings import ReplySettings
from scenes.pack import ScenePack, load_pack
from tests.npc.stage import line

PACK = Path(scenes.__path__[0]) / "packs" / "gilded_griffin"


@pytest.fixture(scope="module")
def pack() -> ScenePack:
    return load_pack(PACK)


@pytest.fixture(scope="module")
def people(pack: ScenePack) -> dict[str, Persona]:
    return {persona.id: persona for persona in read_personas(pack)}


def test_there_is_somebody_for_every_part(people: dict[str, Persona]) -> None:
    kinds = [persona.kind for persona in people.values()]
    assert next(iter(people)) == "mira"
    assert kinds.count("quest_giver") == 1
    assert {"host", "companion", "merchant", "ambient"} <= set(kinds)
    assert len(people) >= 7


def test_all_but_the_quest_giver_have_something_short_to_say_when_there_is_no_time(
    people: dict[str, Persona],
) -> None:
    for persona in people.values():
        if persona.kind != "quest_giver":
            assert len(set(persona.barks)) >= 3, persona.id
            assert all(len(bark) <= 60 for bark in persona.barks), persona.id
            assert all(bark[-1] in ".!?" for bark in persona.barks), persona.id


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tavern(default_model_path: Path) -> AsyncIterator[OpenScene]:
    """The scene on the default model, which says what it finds most likely."""
    model = load_model(str(default_model_path), data_dir=default_model_path.parent)
    engine = AsyncEngine(model, EngineConfig(kv_cache_bytes=384 << 20))
    await engine.start()
    cast = Cast(engine, ReplySettings(temperature=0))
    yield await cast.open(PACK)
    await cast.close()
    await engine.stop()


async def ask(talk: Dialogue, turn: str, text: str) -> str:
    """The NPC's whole answer, which it remembers."""
    outputs: asyncio.Queue[RequestOutput] = asyncio.Queue()
    request = TurnRequest(turn, line(text, id=f"m-{turn}"))
    talk.begin(request, outputs.put_nowait)
    said = ""
    while True:
        output = await outputs.get()
        said += output.text
        if output.finish is not None:
            assert output.finish in ("stop", "length")
            talk.commit(request, said, 1, "completed", 1)
            return said


@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
async def test_people_answer_in_character(tavern: OpenScene) -> None:
    """What a small model can be held to: it says something on one line, and mostly the word that
    its character would.
    """
    asked = [
        ("mira", "Any rumours?", "mill"),
        ("mira", "How much is a room?", "five"),
        ("mira", "What is in room seven?", "dust"),
        ("harn", "Who are you?", "Harn"),
        ("harn", "Tell me about the old mill.", "Crow Hill"),
        ("quill", "Who is Edda?", "miller"),
        ("tobb", "Any rumours?", "Aye"),
        ("lark", "What is the bell at night?", "friend"),
    ]
    answers = await asyncio.gather(
        *(ask(tavern.dialogue(npc, "tavern"), "t1", question) for npc, question, _ in asked)
    )
    for answer in answers:
        assert answer.strip()
        assert "\n" not in answer
    right = [word.lower() in said.lower() for said, (*_, word) in zip(answers, asked, strict=True)]
    assert sum(right) >= 6, answers


@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
async def test_nobody_goes_round_in_circles(tavern: OpenScene) -> None:
    """Whatever is said to it, a small model would soon give the same answer for ever."""
    lines = ("Hello!", "Another one!", "Who taught you that?", "You are lying.", "Really?")

    async def talk(npc: str) -> list[str]:
        dialogue = tavern.dialogue(npc, "tavern")
        return [await ask(dialogue, f"t{turn}", text) for turn, text in enumerate(lines)]

    for answers in await asyncio.gather(*map(talk, ("mira", "harn", "lark"))):
        assert len(set(answers)) == len(answers), answers
        assert len({" ".join(answer.split()[:4]) for answer in answers}) >= 4, answers
