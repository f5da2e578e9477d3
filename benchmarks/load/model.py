"""Model: talking clients on the model that is fetched by default, by class."""

import asyncio
from pathlib import Path

from benchmarks.load.node import Node
from benchmarks.load.part import Promise, Result, Stage, p

_QUEST_GIVERS = ("harn",)
_NPCS = ["mira", "harn", "quill", "tobb"]
_PER_ROOM = 4


async def run(stage: Stage, clients: int, measure_s: float, models: Path) -> Result:
    """Taverns of four players; in each, everybody talks to somebody else."""
    stage.say("the model is loaded")
    node = Node.of_the_default_model(stage.folder / "node", models)
    await stage.node(node)
    bus = await stage.bus()
    wish = {"scene": "gilded_griffin", "per_room": _PER_ROOM, "npcs": _NPCS}
    opened = await bus.do("open", port=node.port, count=clients, prefix="m", **wish)
    assert opened["ready"] == clients, opened
    stage.say(f"{clients} clients talk for {measure_s:.0f} s")
    await bus.do("talk", each=True)
    before = await node.gauges()
    await asyncio.sleep(measure_s)
    seen, after = await bus.do("report"), await node.gauges()
    rows = []
    for kind, members in (("quest-giver", _QUEST_GIVERS), ("others", tuple(_NPCS))):
        chosen = [npc for npc in members if kind == "quest-giver" or npc not in _QUEST_GIVERS]
        firsts = [ms for npc in chosen for ms in seen["firsts"].get(npc, [])]
        rows.append(
            {
                "class": kind,
                "answers": len(firsts),
                "TTFT p50, ms": p(firsts, 0.5),
                "TTFT p99, ms": p(firsts, 0.99),
            }
        )
    tokens = after["generated_tokens"] - before["generated_tokens"]
    quest, other = rows[0]["TTFT p50, ms"], rows[1]["TTFT p50, ms"]
    return Result(
        "model",
        {"clients": clients, "s": measure_s},
        [
            Promise(
                "answers that began, a client",
                sum(r["answers"] for r in rows) / clients,
                1.0,
                most=False,
            ),
            Promise("first word of quest-givers against others", quest / max(1.0, other), 1.0, "×"),
        ],
        rows,
        [
            f"{tokens / seen['seconds']:.0f} tokens/s in all, {seen['turns']} turns; gaps between "
            f"frames of a reply p50 {p(seen['gaps'], 0.5):.0f} ms, p99 {p(seen['gaps'], 0.99):.0f} "
            f"ms; loop lag p99 {after['loop_lag_ms_p99']:.0f} ms; refused: {seen['errors'] or 0}.",
        ],
    )
