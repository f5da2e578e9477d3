"""Each command that was accepted takes effect once, or its client is told that it did not: also if
more answers were lost than are remembered, ids are used again, or a node is killed between taking a
command in and answering it."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.gameserver.process import Process
from tests.gameserver.stage import SCENE, serving, until, write_pack
from tests.gameserver.stores.redis_server import RedisServer
from tests.gameserver.test_crashes import FREE
from tests.gameserver.wanderer import Lost, Message, Wanderer

REPLY = "No."


def thunder(number: int) -> tuple[str, Message]:
    return "world.event", {"name": "thunder", "data": {"n": number}}


def effects(wanderer: Wanderer) -> Counter[int]:
    """How often each command has had its effect, as far as its scene tells."""
    found = Counter[int]()
    for message in wanderer.events.values():
        if message["t"] == "world.event":
            found[message["d"]["data"]["n"]] += 1
        elif message["t"] == "player.said":
            found[int(message["d"]["text"].split()[0])] += 1
    return found


async def test_more_answers_may_be_lost_than_are_remembered(tmp_path: Path) -> None:
    """The oldest commands are told that they come too late, which is no offence."""
    flow = {"answers": 4}
    async with serving(tmp_path, [REPLY], flow=flow) as server:
        ann = Wanderer(server, "ann")
        await ann.connect()
        await ann.ask("scene.join", {"scene": SCENE})
        numbers = [ann.command(*thunder(n)) for n in range(2, 18)]
        assert numbers == list(range(2, 18))
        await until(lambda: server._world.actors[SCENE].stream.last >= len(numbers))
        ann.drop()
        await ann.connect()
        while ann._open:
            await ann.receive()
        told = {n: ann.answers[n] for n in numbers}
        assert [n for n in numbers if told[n]["t"] == "ack"] == numbers[-4:]
        for n in numbers[:-4]:
            assert (told[n]["d"]["code"], told[n]["d"]["fatal"]) == ("bad_field", False)
        assert (await ann.ask("heartbeat", {"n": 1}))["t"] == "heartbeat.ack"
        assert effects(ann) == Counter(numbers)
        # Used again with other content, an id is refused, whether it is remembered or not.
        for n, code in ((numbers[0], "bad_field"), (numbers[-1], "duplicate_id")):
            ann.answers.clear()
            ann._send({"t": "say", "id": n, "st": SCENE, "d": {"text": "What?", "npc": "mira"}})
            while n not in ann.answers:
                await ann.receive()
            assert ann.answers[n]["d"]["code"] == code
        assert effects(ann) == Counter(numbers)
        ann.drop()


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_node_that_is_killed_while_it_takes_commands_in_runs_each_once_or_says_no(
    tmp_path: Path, redis: RedisServer, kind: str, request: pytest.FixtureRequest
) -> None:
    pack = write_pack(tmp_path / "pack")
    redis.command("FLUSHALL")
    place: dict[str, Any] = {"data": str(tmp_path / "data")}
    if kind == "redis":
        place = {"redis": f"redis://127.0.0.1:{redis.port}/0", "store": {"lease_s": 1.5}}
    settings = {"scenes": [str(pack)], "url": "ws://one.example", **place, **FREE}
    node = await Process(tmp_path, [REPLY], 0.5, **settings).start()
    dice = random.Random(kind)
    ann = Wanderer(node, "ann")  # type: ignore[arg-type]
    ann.forgiving = True
    try:
        await ann.connect()
        await ann.ask("scene.join", {"scene": SCENE})
        sent = list[int]()
        for _ in range(6):
            for _ in range(8):
                n = ann._last_id + 1
                text = f"{n} is the number"
                line = {"npc": "mira", "text": text}
                t, d = dice.choice([thunder(n), ("say", line), ("observe", line)])
                sent.append(ann.command(t, d))
            await asyncio.sleep(dice.uniform(0.0, 0.02))
            node.kill()
            waiting = set(ann._open)
            await node.start()
            await come_back(ann)
            assert waiting >= set(ann._open), "answered once more, and no others"
            while ann._open:
                await ann.receive()
        answers = {n: ann.answers[n] for n in sent}
        done = [n for n, a in answers.items() if a["t"] in ("ack", "say.accepted")]
        refused = {a["d"]["code"] for n, a in answers.items() if n not in done}
        assert refused <= {"busy", "rate_limited"}, refused
        await ann.ask("heartbeat", {"n": 1})
        done_and_seen = effects(ann) + await observed(ann)
        assert done_and_seen == Counter(done)
        assert len(done) > len(sent) // 3
    finally:
        ann.drop()
        node.kill()


async def observed(ann: Wanderer) -> Counter[int]:
    """The same of lines that an NPC has only heard, as it remembers them."""
    found, before = Counter[int](), None
    while True:
        page = (await ann.ask("history.get", {"npc": "mira", "before": before}))["d"]
        heard = (item["text"] for item in page["items"] if item["kind"] == "observed")
        found.update(int(text.split()[0]) for text in heard)
        if (before := page["next"]) is None:
            return found


async def come_back(ann: Wanderer) -> None:
    """Resume, as often as it takes."""
    ann.drop()
    while True:
        try:
            await ann.connect()
        except (Lost, OSError, asyncio.IncompleteReadError):
            ann.drop()
            await asyncio.sleep(0.05)
        else:
            assert ann.welcome["resumed"] is True, ann.welcome
            return
