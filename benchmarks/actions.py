"""What actions cost a model, and whether it does what its words say.

The people of the tavern who can act are asked the same lines twice: as they are, and as people who
only talk. Reported are: right answers (a word that the character would say), actions where the line
asks for one and where it does not, and tokens per second of one reply at a time.

    python -m benchmarks.actions [--model default] [--rounds 3]
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import yaml

import scenes
from engine import EngineConfig
from engine.api import AsyncEngine
from engine.decoding.stops import SentenceEnd
from engine.outputs import RequestOutput
from engine.weights.load import load_model
from npc.actions.offer import Act
from npc.actions.repertoire import everything
from npc.cast import Cast, OpenScene
from npc.dialogue import Dialogue, TurnRequest
from npc.settings import ReplySettings
from npc.transcript import Line

TAVERN = Path(scenes.__path__[0]) / "packs" / "gilded_griffin"
#: NPC, line, a word that its answer should hold ("" for any), and the action that should go with
#: it. The first of each kind are not among the examples of the NPC.
LINES = (
    ("quill", "I would like to buy a lantern.", "", ("trade", "lantern")),
    ("quill", "Sell me a rope, please.", "", ("trade", "rope")),
    ("quill", "I'll buy the map.", "", ("trade", "map")),
    ("mira", "Can I have some bread?", "", ("give_item", "bread")),
    ("mira", "A hot cider for me.", "", ("give_item", "cider")),
    ("mira", "I'm hungry. Stew, please!", "", ("give_item", "stew")),
    ("harn", "I will go and look for Robin.", "", ("start_quest", "light_in_the_mill")),
    ("harn", "I accept. I'll bring Robin home.", "", ("start_quest", "light_in_the_mill")),
    ("quill", "Who is Edda?", "miller", None),
    ("quill", "What is this place?", "Griffin", None),
    ("quill", "Any rumours?", "light", None),
    ("quill", "Hello!", "", None),
    ("mira", "Any rumours?", "mill", None),
    ("mira", "How much is a room?", "five", None),
    ("mira", "What is in room seven?", "dust", None),
    ("mira", "Who are you?", "Mira", None),
    ("harn", "Who are you?", "Harn", None),
    ("harn", "Tell me about the old mill.", "Crow Hill", None),
    ("harn", "How much do you pay?", "silver", None),
    ("harn", "Where is the bridge?", "gone", None),
)


@dataclass
class Result:
    """What came of all lines: counts, seconds and tokens."""

    right: int = 0
    asked_right: int = 0
    acted: int = 0
    asked_to_act: int = 0
    uncalled: int = 0
    not_asked: int = 0
    seconds: float = 0.0
    tokens: int = 0
    replies: list[str] = field(default_factory=list)


async def say(dialogue: Dialogue, request: TurnRequest, result: Result) -> tuple[str, list[Act]]:
    """One reply: its words and its actions; it ends with its sentence, as a game server sees to."""
    outputs: asyncio.Queue[RequestOutput] = asyncio.Queue()
    channels, text, acts = dialogue.channels(request), "", list[Act]()
    sentence, tokens, over, before = SentenceEnd(), 0, False, None
    dialogue.begin(request, outputs.put_nowait)
    while True:
        output = await outputs.get()
        now = time.perf_counter()
        if before is not None:
            result.tokens += len(output.token_ids)
            result.seconds += now - before
        before = now
        tokens += len(output.token_ids)
        pieces = channels.push(output.text)
        if output.finish is not None:
            pieces += channels.flush()
        for piece in pieces:
            if over:
                break
            if isinstance(piece, Act):
                acts.append(piece)
            elif piece.channel == "speech":
                said, over = sentence.push(piece.text, dialogue.said_enough(request, tokens))
                text += said
        if output.finish is not None:
            return text, acts


async def ask_all(scene: OpenScene, acting: bool, seed: int) -> Result:
    """All lines, each to an NPC who has heard nothing before."""
    result = Result()
    for number, (npc, line, word, wanted) in enumerate(LINES):
        dialogue = scene.dialogue(npc, f"room{seed}")
        offer = everything(scene.actions(npc)) if acting else None
        heard = Line(f"m{number}", "player", "ann", "Ann", npc, line, 0)
        text, acts = await say(dialogue, TurnRequest(f"t{number}", heard, offer=offer), result)
        if word:
            result.asked_right += 1
            result.right += word.lower() in text.lower()
        did = [(act.name, *map(str, act.args.values()))[:2] for act in acts]
        if wanted is None:
            result.not_asked += 1
            result.uncalled += bool(did)
        else:
            result.asked_to_act += 1
            result.acted += wanted in did
        result.replies.append(f"{npc} <- {line}\n      {text}  {did or ''}")
    return result


async def measure(arguments: argparse.Namespace) -> None:
    model = load_model(arguments.model, data_dir=arguments.data, max_len=4096)
    engine = AsyncEngine(model, EngineConfig(kv_cache_bytes=384 << 20, max_model_len=4096))
    await engine.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            plain = without_actions(TAVERN, Path(folder) / "tavern")
            replies = ReplySettings(act_bias=arguments.bias)
            casts = [Cast(engine, replies) for _ in range(2)]
            opened = [
                await cast.open(pack) for cast, pack in zip(casts, (TAVERN, plain), strict=True)
            ]
            for seed in range(arguments.rounds):  # in turn: a busy machine disturbs both
                for acting, scene in zip((True, False), opened, strict=True):
                    _report(acting, await ask_all(scene, acting, seed), arguments.show and not seed)
            for cast in casts:
                await cast.close()
    finally:
        await engine.stop()


def without_actions(pack: Path, folder: Path) -> Path:
    """A copy of a pack whose people only talk."""
    shutil.copytree(pack, folder)
    for file in [folder / "scene.yaml", *(folder / "npcs").iterdir()]:
        fields = yaml.safe_load(file.read_text("utf-8"))
        fields.pop("quests", None)
        fields.pop("actions", None)
        for example in fields.get("examples", ()):
            example.pop("does", None)
        file.write_text(yaml.safe_dump(fields, allow_unicode=True, sort_keys=False), "utf-8")
    return folder


def _report(acting: bool, result: Result, show: bool) -> None:
    if show:
        print("\n".join(result.replies))
    print(
        f"{'acting' if acting else 'talking':8} right {result.right}/{result.asked_right}  "
        f"acts where asked {result.acted}/{result.asked_to_act}, "
        f"elsewhere {result.uncalled}/{result.not_asked}  "
        f"{result.tokens / result.seconds:.1f} tokens/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", type=Path, default=Path(".cache/troupe"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bias", type=float, default=ReplySettings().act_bias)
    parser.add_argument("--show", action="store_true", help="print the replies of each first round")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
