"""Scene packs are read again while players talk: no turn is lost and none is mixed."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api import AsyncEngine
from gameserver.game import GameServer
from gameserver.reload import Reloader, Report
from npc.cast import Cast
from tests.gameserver.player import Player
from tests.gameserver.stage import (
    PACK,
    PEOPLE,
    SCENE,
    byte_model,
    settings_with,
    until,
    write_pack,
)
from tests.gameserver.wanderer import Wanderer

REPLIES = ["The bridge is gone. Nobody leaves tonight.", "The stew is hot."]


@dataclass
class Stage:
    """A running server and the files it plays."""

    server: GameServer
    engine: AsyncEngine
    cast: Cast
    reloader: Reloader
    folder: Path

    def write(self, people: list[dict[str, Any]] = PEOPLE, **changes: Any) -> None:
        """Other files in the place of those that were read."""
        for person in people:
            file = self.folder / "npcs" / f"{person['id']}.yaml"
            file.write_text(yaml.safe_dump(person), "utf-8")
        npcs = [f"npcs/{person['id']}.yaml" for person in people]
        text = yaml.safe_dump({**PACK, "npcs": npcs, **changes})
        (self.folder / "scene.yaml").write_text(text, "utf-8")

    async def reload(self, people: list[dict[str, Any]] = PEOPLE, **changes: Any) -> Report:
        self.write(people, **changes)
        return await self.reloader.reload()

    async def at_rest(self) -> dict[str, float]:
        """The gauges once nothing is computed any more."""
        await until(lambda: not self.engine._engine.has_work)
        await asyncio.sleep(0.02)  # the last step takes its snapshot after its work
        return self.engine.gauges()

    def prompt(self, turn: str) -> str:
        """What the model was sent for a turn."""
        return self.server.prompts[turn].text


@asynccontextmanager
async def stage(folder: Path, step_ms: float = 1.0) -> AsyncIterator[Stage]:
    options = settings_with()
    config = settings_with(engine={"script_step_ms": step_ms}).engine
    engine = AsyncEngine(byte_model(REPLIES), config)
    await engine.start()
    cast = Cast(engine, options.replies)
    pack = write_pack(folder / "pack")
    await cast.open(pack)
    server = GameServer(cast, options, inspect=True)
    await server.start()
    try:
        yield Stage(server, engine, cast, Reloader(cast, lambda: (pack,), server.adopt), pack)
    finally:
        await server.close()
        await cast.close()
        await engine.stop()


def changed(npc: str, **fields: Any) -> list[dict[str, Any]]:
    """The usual people, one of them with other words."""
    return [{**person, **fields} if person["id"] == npc else person for person in PEOPLE]


async def test_an_open_turn_ends_on_the_old_version_and_the_next_has_the_new(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, step_ms=5) as world:
        ann = await Player.enter(world.server)
        await ann.say("Before?")
        first = (await ann.get("npc.turn.start"))["d"]["turn"]
        await ann.say("Waiting?")
        await ann.get("npc.delta")
        report = await world.reload(changed("mira", voice="Sings every word."))
        assert [scene.rewritten for scene in report.scenes] == [("mira",)]
        end = (await ann.get("npc.turn.end", turn=first))["d"]
        assert (end["status"], end["text"]) == ("completed", REPLIES[0])
        second = (await ann.get("npc.turn.end"))["d"]["turn"]
        assert "Brisk." in world.prompt(first)
        assert "Sings every word." in world.prompt(second)
        assert "Brisk." not in world.prompt(second)
        assert REPLIES[0] in world.prompt(second), "Mira remembers what she said before"


async def test_players_see_who_came_who_left_and_who_has_another_name(tmp_path: Path) -> None:
    async with stage(tmp_path) as world:
        ann = await Player.enter(world.server)
        mira, _ = changed("mira", name="Old Mira")
        fenn = {**PEOPLE[1], "id": "fenn", "name": "Fenn"}
        report = await world.reload([mira, fenn], meta={"weather": "snow"})
        (scene,) = report.scenes
        assert (scene.added, scene.removed, scene.renamed) == (("fenn",), ("harn",), ("mira",))
        snapshot = await ann.get("scene.snapshot")
        assert snapshot["st"] == SCENE
        assert "gap" not in snapshot["d"]
        assert [npc["name"] for npc in snapshot["d"]["npcs"]] == ["Old Mira", "Fenn"]
        assert snapshot["d"]["meta"] == {"weather": "snow", "title": "The Inn", "rev": 1}
        assert (await ann.get("scene.meta"))["d"]["rev"] == 1
        assert (await ann.say(npc="harn"))["d"]["code"] == "no_npc"
        assert (await ann.hear(npc="fenn"))["status"] == "completed"


async def test_words_alone_change_nothing_that_players_see(tmp_path: Path) -> None:
    async with stage(tmp_path) as world:
        ann = await Player.enter(world.server)
        await world.reload(changed("harn", voice="Whispers."))
        await world.reload(meta={"weather": "fog"})
        meta = (await ann.get("scene.meta"))["d"]
        assert meta == {"weather": "fog", "title": "The Inn", "rev": 1}
        assert "scene.snapshot" not in ann.types()


async def test_lines_that_wait_for_somebody_who_leaves_get_a_turn_that_fails(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, step_ms=5) as world:
        ann = await Player.enter(world.server)
        await ann.say("First?")
        first = (await ann.get("npc.turn.start"))["d"]["turn"]
        waiting = (await ann.say("Second?"))["d"]["msg"]
        await world.reload([PEOPLE[1]])
        assert (await ann.get("npc.turn.end", turn=first))["d"]["text"] == REPLIES[0]
        turn = (await ann.get("npc.turn.start", cause=[waiting]))["d"]["turn"]
        end = (await ann.get("npc.turn.end", turn=turn))["d"]
        assert (end["status"], end["err"]["code"]) == ("failed", "no_npc")
        actor = world.server._world.actors[SCENE]
        await until(lambda: "mira" not in actor.floors)
        assert (await world.reload()).scenes[0].added == ("mira",)
        assert (await ann.hear())["status"] == "completed", "back, and a stranger"


@pytest.mark.parametrize(
    ("file", "text", "line", "field", "words"),
    [
        ("scene.yaml", "id: inn\ntitle: [x]\n", 2, "title", "must be text"),
        ("npcs/mira.yaml", "id: mira\nname: Mira\nkind: hero\n", 3, "kind", "must be one of"),
        ("scene.yaml", "a: [", 1, "", "not YAML"),
        ("scene.yaml", yaml.safe_dump({**PACK, "id": "mill"}), 0, "id", "keeps its id"),
        ("npcs/mira.yaml", None, 7, "npcs[0]", "no file"),
    ],
)
async def test_a_pack_with_a_mistake_keeps_the_old_version(
    tmp_path: Path, file: str, text: str | None, line: int, field: str, words: str
) -> None:
    async with stage(tmp_path) as world:
        ann = await Player.enter(world.server)
        path = world.folder / file
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        (fault,) = (await world.reloader.reload()).errors
        assert fault.field == field
        assert fault.line == line or text is None
        assert words in fault.problem
        assert (await ann.hear())["text"] == REPLIES[0]


async def test_a_version_too_long_for_the_model_keeps_the_old_one(tmp_path: Path) -> None:
    async with stage(tmp_path) as world:
        ann = await Player.enter(world.server)
        (fault,) = (await world.reload(text="x " * 9000)).errors
        assert "limit" in fault.problem
        assert (await ann.hear())["status"] == "completed"


async def test_who_was_away_is_shown_the_new_version(tmp_path: Path) -> None:
    """No event tells of it, so that events alone would leave them with the old one."""
    async with stage(tmp_path) as world:
        ann = Wanderer(world.server, "ann")
        await ann.connect()
        await ann.ask("scene.join", {"scene": SCENE})
        ann.drop()
        await until(lambda: world.server.gauges()["sessions_away"] == 1)
        await world.reload(PEOPLE[:1])
        await ann.connect()
        snapshot = await ann.until("scene.snapshot")
        assert [npc["id"] for npc in snapshot["d"]["npcs"]] == ["mira"]


async def test_a_new_pack_opens_and_one_that_is_gone_goes_on(tmp_path: Path) -> None:
    async with stage(tmp_path) as world:
        mill = write_pack(tmp_path / "mill", id="mill", title="The Mill")
        found = [world.folder, mill]
        reloader = Reloader(world.cast, lambda: tuple(found), world.server.adopt)
        report = await reloader.reload()
        assert [(s.scene, s.what) for s in report.scenes] == [
            ("inn", "unchanged"),
            ("mill", "opened"),
        ]
        ann = await Player.enter(world.server, scene="mill")
        found.pop()
        (fault,) = (await reloader.reload()).errors
        assert "is gone" in fault.problem
        assert (await ann.hear())["status"] == "completed"


async def test_blocks_of_old_versions_come_back_and_equal_text_is_not_computed_again(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as world:
        ann = await Player.enter(world.server)
        await ann.hear()
        before = await world.at_rest()
        for voice in ("Sings.", "Shouts.", "Brisk."):  # the last is what it was
            await world.reload(changed("mira", voice=voice))
        after = await world.at_rest()
        for gauge in ("blocks_held", "blocks_free", "blocks_cached"):
            assert after[gauge] == before[gauge]
        assert (await world.reload(events=["thunder", "rain"])).scenes[0].what == "changed"
        computed = "prefill_tokens_computed"
        assert (await world.at_rest())[computed] == after[computed]


async def test_watching_follows_files_by_itself(tmp_path: Path) -> None:
    async with stage(tmp_path) as world:
        ann = await Player.enter(world.server)
        watching = asyncio.create_task(world.reloader.watch([world.folder]))
        try:
            await asyncio.sleep(0.3)
            world.write(meta={"weather": "hail"})
            assert (await ann.get("scene.meta"))["d"]["weather"] == "hail"
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


async def test_very_many_scenes_are_welcomed_in_one_message(tmp_path: Path) -> None:
    async with stage(tmp_path) as world:
        folders = [world.folder]
        for number in range(400):
            title = f"{number} " + "é" * 90
            folders.append(write_pack(tmp_path / f"p{number}", id=f"s{number}", title=title))
        reloader = Reloader(world.cast, lambda: tuple(folders), world.server.adopt)
        assert not (await reloader.reload()).errors
        ann = await Player.dial(world.server)
        welcome = await ann.identify()
        assert 100 < len(welcome["d"]["scenes"]) < 400
        assert len(json.dumps(welcome, ensure_ascii=False).encode()) < 60 * 1024
        ann.stream = "s399"
        assert (await ann.ask("scene.join", {"scene": "s399"}))["t"] == "scene.joined"
        assert (await ann.hear())["status"] == "completed"


VERSIONS = [
    PEOPLE,
    changed("mira", voice="Sings."),
    changed("mira", name="Mirabel"),
    [PEOPLE[0]],
    [PEOPLE[1], PEOPLE[0]],
]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), moments=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_reloads_at_any_moment_lose_no_turn_and_no_block(
    tmp_path_factory: pytest.TempPathFactory, seed: int, moments: list[int]
) -> None:
    asyncio.run(_reload_at_any_moment(tmp_path_factory.mktemp("packs"), seed, moments))


async def _reload_at_any_moment(folder: Path, seed: int, moments: list[int]) -> None:
    chance = random.Random(seed)
    async with stage(folder, step_ms=0.5) as world:
        held = (await world.at_rest())["blocks_held"]
        players = [await Player.enter(world.server, name) for name in ("ann", "bob")]
        accepted: list[str] = []

        async def talk(player: Player) -> None:
            for _ in range(4):
                answer = await player.say("So?", npc=chance.choice(("mira", "harn")))
                if answer["t"] == "say.accepted":
                    accepted.append(answer["d"]["msg"])
                await player.quiet(chance.random() * 0.03)

        async def rewrite() -> None:
            for version in moments:
                await asyncio.sleep(chance.random() * 0.03)
                assert not (await world.reload(VERSIONS[version])).errors

        await asyncio.gather(*map(talk, players), rewrite())
        await until(lambda: world.server.gauges()["turns_running"] == 0)
        for player in players:
            await player.quiet(0.05)
            starts = {m["d"]["cause"][0]: m for m in player.log if m["t"] == "npc.turn.start"}
            ends = {m["d"]["turn"]: m["d"] for m in player.log if m["t"] == "npc.turn.end"}
            assert set(accepted) == set(starts), "every line that was taken got its turn"
            for start in starts.values():
                end = ends[start["d"]["turn"]]
                if end["status"] == "completed":
                    assert end["text"] in REPLIES
                else:
                    assert end["err"]["code"] == "no_npc"
                assert player.heard(end["turn"]) == end["text"]
        await world.reload()
        assert (await world.at_rest())["blocks_held"] == held
        for player in players:
            await player.socket.close()
