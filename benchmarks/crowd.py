"""What very many registered NPCs cost before anybody speaks to them; one JSON line.

    python -m benchmarks.crowd --npcs 100000

Writes packs of 250 people into a temporary folder and opens them as a server does, on the real
engine with a script in place of the model. Fails when a promise is broken.
"""

import argparse
import asyncio
import gc
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml
from rich.console import Console
from rich.progress import Progress, TaskID

from engine.api import AsyncEngine
from engine.config import EngineConfig
from engine.outputs import RequestOutput
from npc.cast import Cast
from npc.dialogue import Line, TurnRequest
from npc.settings import ReplySettings
from tests.gameserver.stage import byte_model

PEOPLE_PER_PACK = 250
MOST_BYTES = 200 * 1024**2
MOST_SECONDS = 60.0
WORDS = ("river", "stone", "lantern", "bread", "winter", "tower", "ferry", "market", "debt", "mill")


def write_packs(folder: Path, npcs: int, seed: int = 0) -> list[Path]:
    """Packs with so many people, each with about 600 characters of their own."""
    chance = random.Random(seed)

    def words(count: int) -> str:
        return " ".join(chance.choices(WORDS, k=count)).capitalize() + "."

    packs: list[Path] = []
    for first in range(0, npcs, PEOPLE_PER_PACK):
        pack = folder / f"pack{first}"
        pack.mkdir()
        names = [f"n{n}" for n in range(first, min(first + PEOPLE_PER_PACK, npcs))]
        for name in names:
            person = {
                "id": name,
                "name": f"Villager {name}",
                "kind": "ambient",
                "role": "a villager",
                "voice": words(30),
                "knows": [words(12), words(12)],
                "greeting": words(6),
                "examples": [{"player": words(5), "npc": words(8)}],
            }
            # JSON is YAML that is quickly written.
            (pack / f"{name}.yaml").write_text(json.dumps(person))
        scene = {"id": f"scene{first}", "title": words(2), "text": words(60)}
        scene["npcs"] = [f"{name}.yaml" for name in names]
        (pack / "scene.yaml").write_text(yaml.safe_dump(scene))
        packs.append(pack)
    return packs


async def measure(npcs: int, warm: int, bars: Progress) -> dict[str, float]:
    """Open packs with so many NPCs and speak to the last one."""
    # One token a byte: who is there takes some thousand tokens.
    config = EngineConfig(script_step_ms=0, max_model_len=32_768)
    engine = AsyncEngine(byte_model(["Good day."]), config)
    await engine.start()
    with tempfile.TemporaryDirectory() as name:
        packs = await asyncio.to_thread(write_packs, Path(name), npcs)
        tasks: dict[str, TaskID] = {}

        def show(message: str, done: int, total: int) -> None:
            if message not in tasks:
                tasks[message] = bars.add_task(message, total=total)
            bars.update(tasks[message], completed=done + 1)

        gc.collect()
        before = psutil.Process().memory_info().rss
        started = time.monotonic()
        cast = Cast(engine, ReplySettings(), warm)
        await cast.open_all(packs, show)
        opening = time.monotonic() - started
        gc.collect()
        grown = psutil.Process().memory_info().rss - before
    computed = engine.gauges()["prefill_tokens_computed"]
    scene = list(cast.scenes.values())[-1]
    heard: asyncio.Queue[RequestOutput] = asyncio.Queue()
    line = Line("m1", "player", "ada", "Ada", list(scene.npcs)[-1], "Good day?", 0)
    talk = scene.dialogue(list(scene.npcs)[-1], scene.id)
    talk.begin(TurnRequest("t1", line), heard.put_nowait)
    while (await heard.get()).finish is None:
        pass
    result = {
        "npcs": sum(len(scene.npcs) for scene in cast.scenes.values()),
        "scenes": len(cast.scenes),
        "open_s": round(opening, 2),
        "rss_mb": round(grown / 1024**2, 1),
        "bytes_per_npc": round(grown / npcs),
        "prefill_before_speech": computed,
    }
    await cast.close()
    await engine.stop()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--npcs", type=int, default=100_000)
    parser.add_argument("--warm", type=int, default=0, help="NPCs computed at the start")
    a = parser.parse_args()
    with Progress(console=Console(stderr=True)) as bars:
        result = asyncio.run(measure(a.npcs, a.warm, bars))
    print(json.dumps(result))
    broken = [
        rule
        for rule, holds in {
            f"more than {MOST_BYTES / 1024**2:.0f} MB": result["rss_mb"] * 1024**2 <= MOST_BYTES,
            f"opening took more than {MOST_SECONDS:.0f} s": result["open_s"] <= MOST_SECONDS,
            "tokens were computed for nobody": a.warm or not result["prefill_before_speech"],
        }.items()
        if not holds
    ]
    if broken:
        sys.exit("; ".join(broken))


if __name__ == "__main__":
    main()
