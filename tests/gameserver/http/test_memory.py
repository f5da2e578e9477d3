"""The console shows and deletes memories, to those who may see what players say."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from gameserver.http.console import Console
from gameserver.http.openai.api import OpenAIApi
from gameserver.keys import Key, Keys, key_line
from gameserver.settings import ApiSettings
from npc.memory.memories import Memories
from tests.gameserver.http.test_console import FakeNode
from tests.npc.memory.stage import remembering, spoken


class Node(FakeNode):
    """A node that remembers."""

    def __init__(self, memories: Memories | None) -> None:
        super().__init__()
        self.memories = memories
        self.forgotten: list[tuple[str, str | None]] = []

    async def forget(self, player: str, npc: str | None, game: str | None) -> int:
        self.forgotten.append((player, npc))
        assert self.memories is not None
        return await self.memories.forget(player, npc)


@asynccontextmanager
async def visiting(
    node: Node, keys: Keys | None = None, client: str = "127.0.0.1"
) -> AsyncIterator[httpx.AsyncClient]:
    api = OpenAIApi(node, ApiSettings(), keys or Keys({}))
    transport = httpx.ASGITransport(app=Console(node, "127.0.0.1", api).app, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8780") as http:
        yield http


async def test_memories_are_listed_shown_exported_and_deleted() -> None:
    async with remembering() as memories:
        memories.take(spoken("My horse is called Biscuit."))
        memories.take(spoken("I like rain and mud."))
        await memories.distil()
        node = Node(memories)
        async with visiting(node) as http:
            (row,) = (await http.get("/console/memories")).json()["players"]
            assert (row["npc"], row["player"], row["lines"]) == ("mira", "anna", 2)
            path = "/console/memories/anna/mira"
            shown = (await http.get(path, params={"query": "Biscuit"})).json()["memories"]
            facts = [memory for memory in shown if memory["kind"] == "fact"]
            assert facts[0]["text"] == "My horse is called Biscuit."
            assert facts[0]["relevance"] > facts[1]["relevance"]
            exported = (await http.get("/console/memories/anna")).json()
            assert len(exported["lines"]) == 2
            deleted = await http.delete("/console/memories/anna", params={"npc": "mira"})
            assert deleted.json()["deleted"] == 5
            assert node.forgotten == [("anna", "mira")]
            assert (await http.get("/console/memories")).json() == {"players": []}
        assert json.loads(json.dumps(exported)) == exported


async def test_who_may_not_see_what_players_say_sees_and_deletes_nothing() -> None:
    async with remembering() as memories:
        memories.take(spoken("My horse is called Biscuit."))
        node = Node(memories)
        name, digest = key_line("ann", "secret").split()
        keys = Keys({bytes.fromhex(digest): Key(name)})
        paths = ["/console/memories", "/console/memories/anna", "/console/memories/anna/mira"]
        requests = [*(("GET", path) for path in paths), ("DELETE", "/console/memories/anna")]
        for method, path in requests:
            async with visiting(node, client="192.0.2.7") as http:
                assert (await http.request(method, path)).status_code == 403
            async with visiting(node) as http:
                elsewhere = {"origin": "https://evil.example"}
                answer = await http.request(method, path, headers=elsewhere)
                assert answer.status_code == 403
            async with visiting(node, keys) as http:
                assert (await http.request(method, path)).status_code == 401
        assert node.forgotten == []
        async with visiting(node, keys, "192.0.2.7") as http:
            http.headers["authorization"] = "Bearer secret"
            assert (await http.get("/console/memories")).status_code == 200


async def test_a_node_without_memory_says_so() -> None:
    async with visiting(Node(None)) as http:
        assert (await http.get("/console/memories")).status_code == 503
