"""Pages of what was said."""

from pathlib import Path

from gameserver.game import GameServer
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving


async def test_history_is_oldest_first_and_names_speakers(server: GameServer) -> None:
    ann = await Player.enter(server)
    accepted = (await ann.say("Any rumours?"))["d"]
    end = (await ann.get("npc.turn.end"))["d"]
    page = await ann.ask("history.get", {"npc": "mira"})
    assert page["st"] == SCENE
    line, reply = page["d"]["items"]
    assert page["d"]["next"] is None
    assert line["id"] == accepted["msg"]
    assert (line["kind"], line["who"], line["name"], line["npc"]) == (
        "player",
        "ann",
        "ann",
        "mira",
    )
    assert (reply["id"], reply["kind"], reply["who"], reply["name"]) == (
        end["turn"],
        "npc",
        "mira",
        "Mira",
    )
    assert (reply["text"], reply["heard"], reply["status"]) == (end["text"], end["n"], "completed")
    assert line["ts"] <= reply["ts"]


async def test_pages_walk_back_to_the_beginning(server: GameServer) -> None:
    ann = await Player.enter(server)
    for number in range(7):
        await ann.ask("observe", {"npc": "mira", "text": f"line {number}", "who": "narrator"})
    for which in ({"npc": "mira"}, {"scene": SCENE}):
        seen: list[str] = []
        before = None
        while True:
            more = {"before": before} if before else {}
            page = (await ann.ask("history.get", {**which, "limit": 3, **more}))["d"]
            assert len(page["items"]) <= 3
            seen = [item["text"] for item in page["items"]] + seen
            before = page["next"]
            if before is None:
                break
        assert seen == [f"line {number}" for number in range(7)]


async def test_an_npc_that_nobody_needed_yet_has_heard_what_the_scene_heard(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, ["Hm."], inspect=True) as server:
        ann = await Player.enter(server)
        await ann.say("Hello Mira")
        await ann.get("npc.turn.end")
        await ann.ask("observe", {"text": "Thunder rolls.", "who": "narrator"})
        assert list(server._world.actors[SCENE].floors) == ["mira"]
        items = (await ann.ask("history.get", {"npc": "harn"}))["d"]["items"]
        assert [item["text"] for item in items] == ["Thunder rolls."]
        end = await ann.hear("What was that?", npc="harn")
        assert "Thunder rolls." in server.prompts[end["turn"]].text


async def test_a_scene_shows_all_its_npcs_and_each_line_once(server: GameServer) -> None:
    ann = await Player.enter(server)
    await ann.ask("observe", {"text": "Thunder rolls.", "who": "narrator"})
    await ann.say("Hello Mira")
    await ann.get("npc.turn.end")
    await ann.say("Hello Harn", npc="harn")
    await ann.get("npc.turn.end")
    items = (await ann.ask("history.get", {"scene": SCENE}))["d"]["items"]
    assert [item["kind"] for item in items] == ["observed", "player", "npc", "player", "npc"]
    assert [item["who"] for item in items] == ["narrator", "ann", "mira", "ann", "harn"]


async def test_pages_stay_small(tmp_path: Path) -> None:
    async with serving(tmp_path, ["x"]) as server:
        ann = await Player.enter(server)
        for _ in range(30):
            await ann.ask("observe", {"text": "é" * 700, "npc": "mira"})
            await ann.ask("observe", {"text": "ü" * 700})
        for which in ({"npc": "mira"}, {"scene": SCENE}):
            await ann.send("history.get", {**which, "limit": 50})
            raw = await ann.socket.recv()
            assert 10_000 < len(raw.encode()) < 32 * 1024  # type: ignore[union-attr]


async def test_refused_pages(server: GameServer) -> None:
    ann = await Player.enter(server)
    assert (await ann.ask("history.get", {"npc": "x"}))["d"]["code"] == "no_npc"
    refused = (await ann.ask("history.get", {"npc": "mira", "limit": 51}))["d"]
    assert (refused["code"], refused["limit"]) == ("bad_field", 50)
    unknown = await ann.ask("history.get", {"npc": "mira", "before": "m-none"})
    assert unknown["d"] == {"items": [], "next": None}


async def test_an_observed_line_is_in_the_prompt_and_nobody_answers_it(tmp_path: Path) -> None:
    async with serving(tmp_path, ["Yes."], inspect=True) as server:
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        line = {"text": "The ferry bell rings.", "who": "harn"}
        assert (await ann.ask("observe", line))["t"] == "ack"
        await bob.quiet(0.05)
        assert {"npc.turn.start", "player.said"}.isdisjoint(bob.types())
        await ann.say("Did you hear that?")
        end = (await ann.get("npc.turn.end"))["d"]
        assert "Harn: The ferry bell rings." in server.prompts[end["turn"]].text
        for bad in ("", "x" * 1501):
            assert (await ann.ask("observe", {"text": bad}))["t"] == "error"
