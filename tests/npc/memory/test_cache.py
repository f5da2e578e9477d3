"""Memory stands late in the prompt: the engine goes on finding the talk before it computed."""

from npc.settings import ReplySettings
from tests.npc.memory.stage import ask, remembering, with_memory
from tests.npc.stage import MIRA, RecordingEngine
from tests.npc.test_lore import computed

TURNS = 16


async def test_the_cache_survives_memories_that_come_and_go() -> None:
    """Against the order that chat front-ends use, with memory before the talk, and no memory at
    all: on a real pool and tree, in shares of prompt tokens that are found computed.
    """
    facts = [f"I met trader{n} who sells item{n} near town{n} in year {n}." for n in range(TURNS)]
    async with remembering(facts=2, lines=0, tokens=200, distil_quiet_s=0.0) as memories:
        talk = with_memory(memories, RecordingEngine())
        for fact in facts:
            await ask(talk, fact)
            await memories.distil()
        with memories._book.change() as database:  # facts alone: a summary is always the same
            database.execute("DELETE FROM memories WHERE kind='summary'")
        engine = RecordingEngine()
        talk = with_memory(memories, engine, settings=ReplySettings(recalled_examples=0))
        late, early, without, new = [], [], [], []
        note = talk._writer.known
        for number in range(TURNS):
            words = f"{number}: and what of trader{number}, please?"
            prompt = await ask(talk, words)
            assert f"item{number} " in prompt
            ids = list(engine.submitted[-1].prompt_ids)
            notes = [
                list(note("Mira", text, "remembers").ids) + list(talk._writer._break)
                for text in (
                    line.removeprefix("(Mira remembers: ").removesuffix(")")
                    for line in prompt.replace("<user>", "\n").split("\n")
                    if line.startswith("(Mira remembers: ")
                )
            ]
            size = sum(map(len, notes))
            joined = [token for ids in notes for token in ids]
            at = next(i for i in range(len(ids)) if ids[i : i + size] == joined)
            late.append(ids)
            # The line before this one was computed behind its own notes, so it is once more.
            new.append(len(f"Anna: {words}Aye.Anna: {words}") + size)
            early.append([*joined, *ids[:at], *ids[at + size :]])
            without.append([*ids[:at], *ids[at + size :]])
    prefix = talk._writer.persona(MIRA)
    (fresh, rate), (_, rate_early), (_, rate_without) = (
        computed(prompts, prefix) for prompts in (late, early, without)
    )
    print(f"hit rate {rate_without:.2f} without, {rate:.2f} late, {rate_early:.2f} early")
    assert rate > rate_early + 0.3
    frames_and_cut_blocks = 16
    assert all(f <= n + frames_and_cut_blocks for f, n in zip(fresh[1:], new[1:], strict=True))
