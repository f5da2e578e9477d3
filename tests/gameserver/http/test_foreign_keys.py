"""Whatever the console's port serves, a game's key gets nothing of another game there, nor can it
tell what is another's from what is not there.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute, Mount, Route

from gameserver.app import Application
from gameserver.http.console import STATIC, Console
from gameserver.keys import key_line
from tests.gameserver.node import node_on_script, running
from tests.gameserver.player import Player
from tests.gameserver.stage import write_pack

ACME, BOLT, OPERATOR = "tr-acme", "tr-bolt", "tr-operator"
#: What bolt alone has: a scene whose id an instance of acme's could have, its player, what she
#: says, what she is told, and a quest.
SCENE, PLAYER, SAID, TOLD, QUEST = "inn.north", "brunhild", "zanzibar", "xylophone", "The Kraken"
BOLTS = (SCENE, PLAYER, SAID, TOLD, QUEST, "bolt")
TENANTS: dict[str, Any] = {"acme": {"scenes": ["inn"]}, "bolt": {"scenes": [SCENE]}}
QUEST_FILE = f"""
id: kraken
title: {QUEST}
giver: harn
stages:
  - id: begun
    journal: It is there.
    next: [{{to: ended, on: {{event: thunder}}}}]
  - {{id: ended, journal: It is gone., ending: good}}
"""
MEMORY = {"vectors": "hashing", "distil_by": "rules", "distil_lines": 2, "distil_pause_s": 3600}


@dataclass
class House:
    """A node with two games and a scene of the house, in each of which somebody has talked.

    Attributes:
        turn: of bolt's answer.
    """

    node: Application
    turn: str = ""

    @property
    def console(self) -> Console:
        """As somebody elsewhere reaches it."""
        return Console(self.node, "0.0.0.0", self.node._api)

    async def ask(self, key: str, method: str, path: str, **more: Any) -> httpx.Response:
        """From far away."""
        transport = httpx.ASGITransport(app=self.console.app, client=("192.0.2.7", 1))
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://npc.example") as http:
            return await http.request(method, path, headers=headers, **more)

    async def see(self, key: str, path: str) -> Any:
        """What is shown there."""
        answer = await self.ask(key, "GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()


async def talk(node: Application, key: str, scene: str, name: str, text: str) -> str:
    """Returns the turn that answers."""
    assert node.game is not None
    player = await Player.dial(node.game, name)
    await player.identify(auth={"kind": "key", "token": key})
    player.stream = (await player.ask("scene.join", {"scene": scene}))["st"]
    return str((await player.hear(text))["turn"])


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as made:
        yield made


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[House]:
    lines = [key_line("studio", ACME, tenant="acme"), key_line("studio", BOLT, tenant="bolt")]
    (folder / "keys").write_text("\n".join([*lines, key_line("ops", OPERATOR)]))
    packs = [write_pack(folder / name, id=name) for name in ("inn", "hall")]
    packs.append(write_pack(folder / SCENE, id=SCENE, quests=["kraken.yaml"]))
    (packs[-1] / "kraken.yaml").write_text(QUEST_FILE)
    file = {"keys_file": str(folder / "keys")}
    node = node_on_script(
        folder,
        [f"It is a {TOLD}.", "It is an inn.", "It is a hall.", *["Well."] * 99],
        inspect=True,
        packs=tuple(packs),
        tenants=TENANTS,
        auth=file,
        api=file,
        memory=MEMORY,
    )
    async with running(node):
        turn = await talk(node, BOLT, SCENE, PLAYER, f"My horse is called {SAID}.")
        await talk(node, ACME, "inn", "ann", "My horse is called Biscuit.")
        await talk(node, OPERATOR, "hall", "ann", "My horse is called Clover.")
        assert node.memories is not None
        while await node.memories.distil():
            pass
        yield House(node, turn)


def routes(of: Iterable[BaseRoute], before: str = "") -> Iterable[tuple[str, str]]:
    """All that an application serves: method and path."""
    for route in of:
        if isinstance(route, Route):
            yield from ((method, before + route.path) for method in sorted(route.methods or ()))
        elif isinstance(route, Mount) and route.routes:
            yield from routes(route.routes, before + route.path)
        else:
            assert isinstance(route, Mount), route
            files = [file for file in STATIC.rglob("*") if file.is_file()]
            yield from (("GET", f"/{file.relative_to(STATIC)}") for file in files)


def filled(path: str, values: dict[str, str]) -> tuple[str, list[str]]:
    """A path with values for its parameters, and those that it took."""
    taken = [value for field, value in values.items() if f"{{{field}}}" in path]
    for field, value in values.items():
        path = path.replace(f"{{{field}}}", value)
    return path, taken


def body_of(path: str) -> dict[str, Any]:
    """Something to be computed."""
    asked = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "Well?"}]}}
    asked |= {"/v1/completions": {"prompt": "Well"}, "/v1/embeddings": {"input": "Well"}}
    return {"json": {"model": "default", **asked[path]}} if path in asked else {}


async def test_no_route_shows_a_key_what_is_another_games(house: House) -> None:
    served = list(routes(house.console.app.routes))
    assert ("DELETE", "/console/memories/{player}") in served
    assert ("POST", "/v1/chat/completions") in served and ("GET", "/index.html") in served
    shown_to_operators = set[str]()
    bolts = {"scene": SCENE, "npc": "mira", "player": PLAYER, "tenant": "bolt"}
    bolts |= {"turn": house.turn, "name:path": SCENE}
    nobodys = {field: f"no{value}" for field, value in bolts.items()}
    for method, path in sorted(served):
        for query in ("", "?tenant={tenant}", "?tenant=house"):
            told = []
            for values in (bolts, nobodys):
                asked, named = filled(path + query, values)
                answer = await house.ask(ACME, method, asked, **body_of(path))
                text = answer.text
                for name in named:  # what somebody asks for is theirs to know
                    text = text.replace(name, "?")
                assert not [word for word in BOLTS if word in text], (method, asked, text)
                told.append((answer.status_code, text))
            if "{" in path or path.startswith("/console"):
                assert told[0] == told[1], (method, path)
        if method == "GET":
            asked, named = filled(path, bolts)
            text = (await house.ask(OPERATOR, "GET", asked)).text
            if any(word in text for word in set(BOLTS) - set(named)):
                shown_to_operators.add(path)
    assert shown_to_operators == {
        "/console/npcs",
        "/console/npcs/{scene}/{npc}",
        "/console/memories",
        "/console/memories/{player}",
        "/console/memories/{player}/{npc}",
        "/debug/prompts/{turn}",
    }, "and nothing of it was forgotten"


async def test_a_game_sees_its_own_and_an_operator_what_is_asked_for(house: House) -> None:
    for key, query, scenes in (
        (ACME, "", ["inn"]),
        (BOLT, "?tenant=bolt", [SCENE]),
        (OPERATOR, "?tenant=bolt", [SCENE]),
        (OPERATOR, "?tenant=house", ["hall"]),
        (OPERATOR, "", ["hall", "inn", SCENE]),
    ):
        overview = await house.see(key, f"/console/npcs{query}")
        assert sorted(scene["id"] for scene in overview["scenes"]) == scenes
        own = {ACME: ["acme"], BOLT: ["bolt"]}
        assert overview["games"] == own.get(key, ["acme", "bolt", "house"])
        known = (await house.see(key, f"/console/memories{query}"))["players"]
        assert sorted(row["scene"] for row in known) == scenes
    sheet = await house.see(ACME, "/console/npcs/inn/mira")
    everybodys = await house.see(OPERATOR, "/console/npcs/inn/mira")
    assert 0 < sheet["spent_by_all"]["tokens"] < everybodys["spent_by_all"]["tokens"]
    exported = await house.see(OPERATOR, "/console/memories/ann?tenant=acme")
    assert {line["scene"] for line in exported["lines"]} == {"inn"}


async def remembered(house: House) -> list[tuple[str, str]]:
    """Where, and whom."""
    rows = (await house.see(OPERATOR, "/console/memories"))["players"]
    return sorted((row["scene"], row["player"]) for row in rows)


async def test_ann_of_one_game_is_forgotten_and_not_her_namesake(house: House) -> None:
    """In memories, in scenes that run, and in the prompts that are kept."""
    assert house.node.game is not None
    which = await house.ask(OPERATOR, "DELETE", "/console/memories/ann")
    assert which.status_code == 400 and "acme, bolt, house" in which.json()["error"]
    assert await remembered(house) == [("hall", "ann"), ("inn", "ann"), (SCENE, PLAYER)]
    forgotten = await house.ask(ACME, "DELETE", "/console/memories/ann")
    assert forgotten.json()["deleted"] > 0
    assert await remembered(house) == [("hall", "ann"), (SCENE, PLAYER)]
    said = {}
    for scene in ("inn", "hall"):
        sheet = await house.see(OPERATOR, f"/console/npcs/{scene}/mira")
        said[scene] = (len(sheet["prompts"]), "My horse" in str(sheet["lines"]))
    assert said == {"inn": (0, False), "hall": (1, True)}
    await house.ask(OPERATOR, "DELETE", "/console/memories/ann?tenant=house")
    assert await remembered(house) == [(SCENE, PLAYER)]
