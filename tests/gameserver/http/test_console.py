"""The console tells the truth about the node, to those it is meant for."""

import re
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.measures import Series
from gameserver.http.console import STATIC, Console
from gameserver.http.metrics import Metrics
from gameserver.http.openai.api import OpenAIApi
from gameserver.inspection import Inspector
from gameserver.keys import Keys
from gameserver.readiness import Readiness
from gameserver.settings import ApiSettings
from gameserver.tenants import Remit, Tenants
from npc.memory.memories import Memories


@dataclass
class Prompt:
    scene: str
    text: str
    token_ids: tuple[int, ...]


class FakeNode:
    def __init__(self) -> None:
        self.readiness = Readiness()
        self.alive = True
        self.engine = None
        self.budgets = None
        self.prompts: Mapping[str, Prompt] | None = None
        self.inspector: Inspector | None = None
        self.memories: Memories | None = None
        self.figures = {"blocks_free": 7.0, "steps": 3.0, "errors_bad_json": 2.0}

    def gauges(self) -> dict[str, float]:
        return self.figures

    halted: bool | None = None

    def halt(self) -> None:
        self.halted = True

    def release(self) -> None:
        self.halted = False

    async def reload(self) -> Mapping[str, object] | None:
        return None

    tenants: Collection[str] = ()

    def remit(self, game: str | None) -> Remit:
        return Tenants({}).remit(game, ())

    async def forget(self, player: str, npc: str | None, game: str | None) -> int:
        return 0

    def measures(self) -> list[Series]:
        return []

    def playground(self) -> dict[str, object]:
        return {"game": {"port": 1234, "path": "/v1/ws"}}


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


def console(node: FakeNode, keys: Keys | None = None) -> Console:
    return Console(node, "127.0.0.1", OpenAIApi(node, ApiSettings(), keys or Keys({})))


@pytest.fixture
async def http(node: FakeNode) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=console(node).app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8780") as client:
        yield client


async def test_readyz_is_503_with_progress_until_players_may_come(
    http: httpx.AsyncClient, node: FakeNode
) -> None:
    node.readiness.advance("Loading the model", 3, 10)
    reply = await http.get("/readyz")
    assert reply.status_code == 503
    assert reply.json() == {
        "ready": False,
        "state": "starting",
        "progress": {"message": "Loading the model", "done": 3, "total": 10},
    }
    node.readiness.state = "ready"
    reply = await http.get("/readyz")
    assert (reply.status_code, reply.json()["ready"]) == (200, True)
    node.readiness.state = "draining"
    assert (await http.get("/readyz")).status_code == 503


async def test_livez_fails_when_a_part_that_must_run_has_died(
    http: httpx.AsyncClient, node: FakeNode
) -> None:
    assert (await http.get("/livez")).status_code == 200
    node.alive = False
    assert (await http.get("/livez")).status_code == 503


async def test_gauges_are_plain_json(http: httpx.AsyncClient, node: FakeNode) -> None:
    assert (await http.get("/debug/gauges")).json() == node.figures


async def test_prompts_exist_only_with_inspection(http: httpx.AsyncClient, node: FakeNode) -> None:
    reply = await http.get("/debug/prompts/t1")
    assert reply.status_code == 404
    assert "--inspect" in reply.json()["error"]
    node.prompts = {"t1": Prompt("inn", "hello", (1, 2))}
    reply = await http.get("/debug/prompts/t1")
    assert reply.json() == {"turn": "t1", "text": "hello", "token_ids": [1, 2]}
    assert (await http.get("/debug/prompts/t2")).status_code == 404


async def test_playground_learns_the_game_port_only_when_the_node_is_ready(
    http: httpx.AsyncClient, node: FakeNode
) -> None:
    assert "game" not in (await http.get("/playground.json")).json()
    node.readiness.state = "ready"
    body = (await http.get("/playground.json")).json()
    assert body["ready"] is True
    assert body["game"] == {"port": 1234, "path": "/v1/ws"}


async def test_a_name_that_merely_resolves_to_us_is_refused(node: FakeNode) -> None:
    # DNS rebinding: a page on evil.example must not read gauges or prompts through our address.
    transport = httpx.ASGITransport(app=console(node).app)
    async with httpx.AsyncClient(transport=transport) as client:
        for good in ("localhost:8780", "127.0.0.1", "[::1]:8780"):
            assert (await client.get(f"http://{good}/debug/gauges")).status_code == 200
        assert (await client.get("http://evil.example/debug/gauges")).status_code == 400


async def test_the_page_is_served_with_its_parts_and_a_strict_policy(
    http: httpx.AsyncClient,
) -> None:
    page = await http.get("/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    for part in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert (await http.get(f"/{part}")).status_code == 200, part


def test_the_page_loads_nothing_from_elsewhere_and_never_parses_text_as_markup() -> None:
    files = [file for file in STATIC.rglob("*") if file.is_file()]
    assert len(files) > 10
    for file in files:
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://(?!\$)", text), file.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), file


def test_metrics_are_typed_labelled_by_cause_and_rendered_at_most_once_a_second() -> None:
    figures = {"blocks_free": 7.0, "steps": 3.0, "errors_bad_json": 2.0, "closes_1000": 1.0}
    figures |= {"turns_ended_completed": 5.0, "turns_running": 1.0}
    now = [0.0]
    metrics = Metrics(lambda: figures, clock=lambda: now[0])
    families = {f.name: f for f in text_string_to_metric_families(metrics.render().decode())}
    assert families["troupe_blocks_free"].type == "gauge"
    assert families["troupe_steps"].type == "counter"
    assert families["troupe_turns_running"].type == "gauge"
    for family, code in (("errors", "bad_json"), ("closes", "1000"), ("turns_ended", "completed")):
        (sample,) = families[f"troupe_{family}"].samples
        assert sample.labels == {"code": code}
    assert families["troupe_halts"].samples[0].value == 0, "none yet, and shown all the same"
    figures["steps"] = 4.0
    now[0] = 0.9
    assert b"troupe_steps_total 3.0" in metrics.render()
    now[0] = 1.1
    assert b"troupe_steps_total 4.0" in metrics.render()
