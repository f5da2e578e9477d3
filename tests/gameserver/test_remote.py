"""A game server whose NPCs are spoken by a cluster elsewhere: players notice nothing but words."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from engine.chat import Message
from engine.config import EngineConfig
from engine.grammar import KINDS, Grammar
from engine.params import SamplingParams
from engine.remote.config import RemoteConfig
from engine.remote.engine import RemoteEngine
from engine.weights.load import Vocabulary
from gameserver.app import Application
from gameserver.cli import CannotStart, _computed_by
from gameserver.doctor import examine
from gameserver.game import GameServer
from gameserver.packs import find_packs
from gameserver.settings import Settings
from npc.cast import Cast
from tests.engine.remote.server import Call, FarServer, event, far_server, saying
from tests.gameserver.http.openai.served import TOKENIZER, noise, serving
from tests.gameserver.node import node_on_script, running
from tests.gameserver.player import Player
from tests.gameserver.stage import byte_chat, settings_with, until, write_pack
from tests.gameserver.test_actions import ACTIONS, ROPE
from tests.gameserver.test_doctor import WELL

Answer = Callable[[Call], Awaitable[None]]
TRIAL = '[moss {"moss":7}]'
LONG = "word " * 60


@asynccontextmanager
async def playing(
    folder: Path, url: str, *, barks: tuple[str, ...] = (), **remote: Any
) -> AsyncIterator[GameServer]:
    """A game server on the servers at `url`; Mira can act, and has these barks."""
    pack = write_pack(folder / "pack", context=["wants", "brave", "doors", "allowed_actions"])
    file = pack / "npcs" / "mira.yaml"
    fields = {**yaml.safe_load(file.read_text("utf-8")), "actions": ACTIONS, "barks": list(barks)}
    file.write_text(yaml.safe_dump(fields, sort_keys=False), "utf-8")
    settings = settings_with(
        replies={"sentence_after": 200, "max_tokens": 400},
        # What is no action is shown as it is, so that it can be told from one.
        safety={"in_character": False},
    )
    config = RemoteConfig(urls=(url,), **remote)
    engine = await asyncio.to_thread(RemoteEngine.connect, config, settings.engine)
    await engine.start()
    cast = Cast(engine, settings.replies)
    try:
        await cast.open(pack)
        server = GameServer(cast, settings, inspect=True)
        await server.start()
        yield server
        await server.close()
    finally:
        await cast.close()
        await engine.stop()


def vllm(answer: Answer) -> Answer:
    """A server that keeps to grammars when it is tried."""

    async def tried(call: Call) -> None:
        grammar = (call.body.get("structured_outputs") or {}).get("grammar", "")
        if grammar.startswith('start: "[moss'):
            await saying(TRIAL)(call)
        elif call.body["stream"] and call.body["max_tokens"] > 2:
            await answer(call)
        else:
            await saying("Yes.")(call)

    return tried


def answering(status: int, body: Any, **headers: str) -> Answer:
    """A server that answers whatever is asked so, in one piece."""

    async def answer(call: Call) -> None:
        await call.answer(status, body, **headers)

    return answer


def sending(*parts: bytes) -> Answer:
    """A server whose stream is these bytes."""

    async def answer(call: Call) -> None:
        await call.begin()
        for part in parts:
            await call.send(part)

    return answer


def spoken(far: FarServer) -> list[Call]:
    """The requests of turns, without those that tried the server."""
    return [call for call in far.calls if call.body["max_tokens"] > 256]


async def test_a_troupe_speaks_for_another(tmp_path: Path) -> None:
    said = "The brïdge is gone 😀. Nobody leaves tonight."
    async with (
        running(node_on_script(tmp_path, [said])) as far,
        playing(tmp_path, f"http://127.0.0.1:{far.console_port}") as server,
    ):
        ann, bob = await Player.enter(server), await Player.enter(server, "bob")
        end = await ann.hear()
        assert (end["text"], end["status"], end["reason"]) == (said, "completed", "stop")
        assert end["n"] > 5, "words come as they are spoken"
        assert ann.heard(end["turn"]) == said
        assert end["usage"]["completion"] == len(said.encode()) + 1
        await bob.get("npc.turn.end")
        assert bob.heard(end["turn"]) == said
        prompt = server.prompts[end["turn"]].text
        assert "<|system|>An inn at a ford." in prompt
        assert prompt.endswith("ann: Hello?<|end|><|assistant|>")


async def test_a_troupe_holds_replies_to_grammars_for_another() -> None:
    async with serving(noise()) as far:
        config, grammar = RemoteConfig(urls=(far.url,)), Grammar.regex("(ja|nein)( doch){1,3}")
        engine = await asyncio.to_thread(RemoteEngine.connect, config, EngineConfig())
        assert engine.grammar_kinds == KINDS
        assert engine.notices == ()
        await engine.start()
        ids = engine.chat.encode([Message("user", "Well?")], engine.tokenizer)
        outputs = [
            output
            async for output in engine.stream(ids, SamplingParams(max_tokens=64, grammar=grammar))
        ]
        await engine.stop()
    assert outputs[-1].complete
    assert engine.conforms(grammar, "".join(output.text for output in outputs))


async def test_ids_arrive_as_they_are_and_are_billed_exactly() -> None:
    words = Vocabulary("bytes", TOKENIZER, byte_chat(TOKENIZER))
    async with serving(["Well."]) as far:
        config = RemoteConfig(urls=(far.url,), salted=False)
        engine = await asyncio.to_thread(RemoteEngine.connect, config, EngineConfig(), words)
        await engine.start()
        scene = engine.create_prefix(engine.tokenizer.encode("S:An inn.\n"))
        mira = engine.create_prefix(engine.tokenizer.encode("You are Mira.\n"), scene)
        await engine.warm(mira)
        ids = engine.tokenizer.encode("U:Hello?\nA:")
        outputs = [o async for o in engine.stream(ids, SamplingParams(max_tokens=9), prefix=mira)]
        await engine.stop()
    assert "".join(output.text for output in outputs) == "Well."
    bill = outputs[-1].usage
    assert bill is not None
    assert (bill.prompt_tokens, bill.completion_tokens) == (mira.total + len(ids), 6)
    assert bill.cached_tokens > 0, "what was warmed is found there"


async def test_an_interrupt_ends_the_request_over_there(tmp_path: Path) -> None:
    async with (
        running(node_on_script(tmp_path, [LONG], step_ms=5)) as far,
        playing(tmp_path, f"http://127.0.0.1:{far.console_port}") as server,
    ):
        assert far.engine is not None
        before = far.engine.gauges()["requests_cancelled"]
        ann = await Player.enter(server)
        await ann.say()
        turn = (await ann.get("npc.turn.start"))["d"]["turn"]
        await ann.get("npc.delta")
        await ann.ask("npc.interrupt", {"turn": turn, "mode": "truncate"})
        end = (await ann.get("npc.turn.end", turn=turn))["d"]
        assert end["status"] == "interrupted"
        await until(lambda: far.engine.gauges()["requests_cancelled"] == before + 1)
        await until(lambda: far.engine.gauges()["running"] == 0)
        assert (await ann.hear("And now?"))["status"] == "completed"


async def test_halt_ends_all_requests_over_there(tmp_path: Path) -> None:
    async with (
        running(node_on_script(tmp_path, [LONG], step_ms=5)) as far,
        playing(tmp_path, f"http://127.0.0.1:{far.console_port}") as server,
    ):
        assert far.engine is not None
        ann = await Player.enter(server)
        await ann.say()
        await ann.get("npc.delta")
        server.halt()
        await ann.get("npc.turn.end")
        await until(lambda: far.engine.gauges()["running"] == 0)
        server.release()
        await ann.hear("Again?")


async def test_a_quest_giver_is_answered_before_those_who_came_earlier(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def answer(call: Call) -> None:
        await call.begin()
        await call.say("Once")
        await go.wait()
        await call.end()

    async with far_server(vllm(answer)) as far, playing(tmp_path, far.url, in_flight=1) as server:
        players = [
            await Player.enter(server, name, instance=name) for name in ("ann", "bob", "cal")
        ]
        await players[0].say("First?")
        await players[0].get("npc.delta")
        await players[1].say("Second?")
        await players[2].say("Third?", npc="harn")
        await until(lambda: server.gauges()["turns_started"] == 3 or len(spoken(far)) > 1)
        go.set()
        for player in players:
            await player.get("npc.turn.end")
    lines = [call.body["messages"][-1]["content"] for call in spoken(far)]
    assert lines == ["ann: First?", "cal: Third?", "bob: Second?"]
    assert [call.body["priority"] for call in spoken(far)] == [2, 0, 2]


async def test_a_turn_that_breaks_off_fails_alone_and_names_no_server(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        if "break" in call.body["messages"][-1]["content"]:
            await call.begin()
            await call.send(event("The br") + b'data: {"error":"10.0.0.7 is gone"}\n\n')
        else:
            await saying("The bridge.")(call)

    async with far_server(vllm(answer)) as far, playing(tmp_path, far.url) as server:
        ann = await Player.enter(server)
        end = await ann.hear("Does it break?")
        assert end["status"] == "failed"
        assert end["text"]
        assert "The br".startswith(end["text"])  # half a word may be held back
        assert "10.0.0.7" not in str(ann.log)
        assert "127.0.0.1" not in str(ann.log)
        assert (await ann.hear())["text"] == "The bridge."


async def test_while_no_server_answers_players_are_told_when_to_come_again(tmp_path: Path) -> None:
    async def overloaded(call: Call) -> None:
        await call.answer(503, {}, Retry_After="600")

    async with far_server(vllm(overloaded)) as far, playing(tmp_path, far.url) as server:
        ann = await Player.enter(server)
        end = await ann.hear()
        assert (end["status"], end["err"]["code"]) == ("failed", "busy")
        assert end["err"]["retry_ms"] > 0
        far.reply = vllm(saying("Now."))


LIES: dict[str, Answer] = {
    "an error": answering(500, {}),
    "a refusal": answering(400, {"error": {"message": "too long"}}),
    "a wait": answering(429, {}, Retry_After="3600"),
    "an answer in one piece": answering(200, {"choices": []}),
    "nonsense": sending(b"data: {]}\n\n"),
    "an odd end": sending(b'data: {"choices":[{"delta":{},"finish_reason":[7]}]}\n\n'),
    "nothing": sending(),
}


@pytest.mark.parametrize("answer", LIES.values(), ids=LIES.keys())
async def test_an_npc_has_a_bark_for_who_is_told_nothing_and_an_answer_for_the_next(
    tmp_path: Path, answer: Answer
) -> None:
    async with (
        far_server(vllm(answer)) as far,
        playing(
            tmp_path, far.url, barks=("Not now.", "Later."), failures=99, retry_after_most_s=0.1
        ) as server,
    ):
        ann = await Player.enter(server)
        for bark in ("Not now.", "Later."):
            end = await ann.hear()
            assert (end["status"], end["reason"], end["text"]) == ("completed", "bark", bark)
            assert ann.heard(end["turn"]) == bark
        assert server.gauges()["barks"] == 2
        far.reply = vllm(saying("Now."))
        await asyncio.sleep(0.2)  # the server wanted peace
        assert (await ann.hear("And now?"))["text"] == "Now."


async def test_while_all_servers_are_down_npcs_have_barks(tmp_path: Path) -> None:
    async with (
        far_server(vllm(answering(500, {}))) as far,
        playing(tmp_path, far.url, barks=("Not now.",), failures=1, retries=0) as server,
    ):
        far.models = answering(500, {})
        ann = await Player.enter(server)
        for _ in range(3):
            end = await ann.hear()
            assert (end["status"], end["reason"], end["text"]) == ("completed", "bark", "Not now.")


async def test_no_bark_follows_words(tmp_path: Path) -> None:
    answer = sending(event("The bridge is"), event(" gone and"))
    async with (
        far_server(vllm(answer)) as far,
        playing(tmp_path, far.url, barks=("Not now.",)) as server,
    ):
        end = await (await Player.enter(server)).hear()
    assert end["status"] == "failed"
    assert "Not now." not in end["text"]


@pytest.mark.parametrize(
    ("said", "actions", "text"),
    [
        (f"Take it. {ROPE}", ["give_item"], "Take it."),
        ('Take it. [give_item {"item":"crown"}]', [], 'Take it. [give_item {"item":"crown"}]'),
        ("Hush. [open_door]", [], "Hush. [open_door]"),
    ],
)
async def test_actions_are_valid_whatever_a_server_promises(
    tmp_path: Path, said: str, actions: list[str], text: str
) -> None:
    async with far_server(vllm(saying(*said))) as far, playing(tmp_path, far.url) as server:
        ann = await Player.enter(server)
        end = await ann.hear()
    assert [action["name"] for action in end["actions"]] == actions
    assert end["text"] == text
    assert "give_item" in spoken(far)[0].body["structured_outputs"]["grammar"]
    assert "can also act" in str(spoken(far)[0].body["messages"])


async def test_where_no_grammar_is_kept_to_npcs_only_talk(tmp_path: Path) -> None:
    async with far_server(saying(f"Take it. {ROPE}")) as far, playing(tmp_path, far.url) as server:
        ann = await Player.enter(server)
        end = await ann.hear()
    assert (end["actions"], end["text"]) == ([], f"Take it. {ROPE}")
    assert "can also act" not in str(spoken(far)[0].body["messages"])
    assert "structured_outputs" not in spoken(far)[0].body


# A whole node


def node_on(url: str, folder: Path) -> Application:
    settings = Settings(port=0, console_port=0, remote=RemoteConfig(urls=(url,)))
    return Application(settings, data_dir=folder, packs=find_packs(()))


async def test_a_node_is_ready_once_its_model_server_is(tmp_path: Path) -> None:
    loading = True

    async def answer(call: Call) -> None:
        if loading:
            await call.answer(503, {"error": {"message": "loading the weights"}})
        else:
            await vllm(saying("A green light."))(call)

    async with far_server(answer) as far:
        node = node_on(far.url, tmp_path)
        starting = asyncio.create_task(node.start())
        try:
            await until(lambda: "loading the weights" in node.readiness.step.message)
            assert node.alive
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.console_port}") as http:
                assert (await http.get("/readyz")).status_code == 503
                loading = False
                await starting
                assert (await http.get("/readyz")).status_code == 200
                body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60}
                answered = (await http.post("/v1/chat/completions", json=body)).json()
                assert answered["choices"][0]["message"]["content"] == "A green light."
                metrics = (await http.get("/metrics")).text
                assert "troupe_remote_requests_total 1.0" in metrics
                assert 'troupe_remote_errors_total{code="cut"} 0.0' in metrics
                assert "troupe_first_token_seconds_count" in metrics
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await node.stop()


async def test_a_start_that_waits_for_a_server_can_be_given_up(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        await call.answer(503, {})

    async with far_server(answer) as far:
        node = node_on(far.url, tmp_path)
        starting = asyncio.create_task(node.start())
        await until(lambda: "Waiting" in node.readiness.step.message)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await node.stop()


async def test_the_doctor_asks_the_server(tmp_path: Path) -> None:
    async def found(url: str) -> list[tuple[str, str]]:
        settings = msgspec.structs.replace(
            settings_with(console_port=0), remote=RemoteConfig(urls=(url,))
        )
        findings = await asyncio.to_thread(examine, settings, tmp_path, WELL)
        assert "model" not in [finding.name for finding in findings]
        return [(f.state, f"{f.found} {f.costs} {f.fix}") for f in findings if f.name == "remote"]

    async with far_server(saying("Moss.")) as far:
        (state, text), *notices = await found(far.url)
        assert state == "ok"
        assert far.url in text
        assert any("guidance" in text for _, text in notices)
    ((state, text),) = await found(far.url)
    assert (state, "nobody answers" in text) == ("missing", True)


def test_options_name_a_cluster_or_none() -> None:
    none = {"urls": None, "model": None, "tokenizer": None, "key_file": None}
    one = {**none, "urls": ("http://a",), "key_file": "k"}
    far = Settings(remote=RemoteConfig(urls=("http://b",), model="m", key_variable="V"))
    assert _computed_by(None, Settings(), none).remote is None
    assert _computed_by(None, far, none).remote == far.remote
    assert _computed_by("own", far, none).remote is None
    chosen = _computed_by("remote", far, one).remote
    assert chosen == RemoteConfig(urls=("http://a",), model="m", key_file="k")
    with pytest.raises(CannotStart, match="--remote-url"):
        _computed_by("remote", Settings(), none)
    with pytest.raises(CannotStart, match="of no use"):
        _computed_by("own", Settings(), one)
    with pytest.raises(CannotStart, match="no http"):
        _computed_by(None, Settings(), {**none, "urls": ("ftp://a",)})
