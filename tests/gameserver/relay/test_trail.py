"""What is kept on the way to a client is what the client keeps itself, whatever it is told; and
what is another node's business never reaches it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gameserver.commands import Cursor, Resume, TurnCursor
from gameserver.protocol import Code, Refusal, encode
from gameserver.relay.trail import Trail, Verdict
from tests.gameserver.wanderer import Wanderer

JOINED = {"players": [], "npcs": [], "turns": [], "meta": {}}


def told(t: str, d: dict[str, Any] | None = None, **envelope: Any) -> bytes:
    return encode(t, d or {}, **envelope).json


def trail(*, binary: bool = False) -> Trail:
    return Trail(binary, "s-1", "token")


class Story:
    """A scene as one client is told of it, in legal order."""

    def __init__(self) -> None:
        self.s = 4
        self.running: dict[str, int] = {}
        self.count = 0

    def next(self, draw: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
        kinds = ["event", "start", "snapshot", "state", "left"]
        kind = draw(st.sampled_from([*kinds, *(["delta", "delta", "sync", "end"] * 2)]))
        turn = draw(st.sampled_from(sorted(self.running))) if self.running else ""
        where: dict[str, Any] = {"st": "inn", "ep": 9}
        if kind in ("event", "start", "end") or not turn:
            self.s += 1
            where["s"] = self.s
        if kind == "start":
            self.count += 1
            turn = f"t{self.count}"
            self.running[turn] = 0
            return "npc.turn.start", {"turn": turn, "npc": "mira"}, where
        if kind == "end" and turn:
            del self.running[turn]
            return "npc.turn.end", {"turn": turn, "text": "", "n": 0}, where
        if kind in ("delta", "sync") and turn:
            i, n = self.running[turn], draw(st.integers(1, 3))
            self.running[turn] = i + n
            t = "npc.delta" if kind == "delta" else "npc.turn.sync"
            return t, {"turn": turn, "i": i, "n": n, "text": "x" * n}, where
        if kind == "snapshot":
            turns = [
                {"turn": t, "npc": "mira", "i": 0, "n": n, "text": "x" * n}
                for t, n in self.running.items()
            ]
            return "scene.snapshot", {**JOINED, "turns": turns}, {**where, "s": self.s}
        if kind == "state" and turn:
            return "npc.state", {"npc": "mira", "rev": 1}, where
        if "s" not in where:
            self.s += 1
            where["s"] = self.s
        return "player.said", {"msg": "m", "player": "bob", "text": "?"}, where


@settings(max_examples=200, deadline=None)
@given(st.data(), st.booleans())
def test_the_trail_knows_what_the_client_knows(data: st.DataObject, binary: bool) -> None:
    client = Wanderer(None, "ann")  # type: ignore[arg-type]
    client.forgiving = True
    kept, story = trail(binary=binary), Story()
    for t, d, where in [
        ("scene.joined", JOINED, {"st": "inn", "s": 4, "ep": 9}),
        *(story.next(data.draw) for _ in range(data.draw(st.integers(0, 30)))),
    ]:
        message = encode(t, d, **where)
        assert kept.told(message.msgpack if binary else message.json) is Verdict.PASS
        client._keep(json.loads(message.json))
    assert kept.cursors == client.cursors
    assert {turn: i for turn, (_, i) in kept.turns.items()} == {
        turn: n for turn, (_, n) in client.texts.items()
    }
    resume = kept.resume()
    assert (resume.session, resume.token) == ("s-1", "token")
    assert resume.cursors == [Cursor("inn", story.s)]
    assert {cursor.turn: cursor.next_i for cursor in resume.turns or ()} == story.running


def test_a_command_is_open_until_it_is_answered_and_is_asked_again_as_it_was() -> None:
    kept = trail()
    say = '{"t": "say", "id": 5, "d": {"text": "?"}}'
    assert kept.asked(say) == "say"
    assert kept.asked('{"t": "flow.set", "id": 6, "d": {}}') == "flow.set"
    kept.asked('{"t": "heartbeat", "d": {"n": 1}}')
    kept.asked('{"t": "history.get", "d": {}}')
    for nonsense in (
        "",
        "{",
        "[]",
        '{"t": 1}',
        '{"t":"say","id":"x"}',
        "\ud800",
        b"\xc1",
        "9" * 99,
    ):
        assert kept.asked(nonsense) == ""
    assert kept.waiting()[0] == say
    assert len(kept.waiting()) == 3
    kept.told(told("say.accepted", {"msg": "m", "queue_pos": 0}, re=5))
    kept.told(Refusal(Code.BUSY, "later").encode(6).json)
    kept.told(told("heartbeat.ack", {"n": 1, "now": 2}))
    assert kept.waiting() == []


def welcome(resumed: bool, token: str = "next") -> bytes:
    return told("welcome", {"session": "s-2", "resume_token": token, "resumed": resumed})


def test_the_welcome_of_another_owner_is_not_the_clients() -> None:
    kept = trail()
    kept.resume()
    assert kept.told(told("hello")) is Verdict.KEEP
    assert kept.told(welcome(True, "")) is Verdict.KEEP
    assert (kept.session, kept.token) == ("s-1", "token"), "its client has this one"
    assert kept.told(told("scene.synced", st="me", s=0)) is Verdict.KEEP
    assert kept.told(told("scene.synced", st="me", s=0)) is Verdict.PASS
    kept.resume()
    assert kept.told(welcome(False)) is Verdict.OVER
    kept.resume()
    for close in (4503, None):
        busy = Refusal(Code.BUSY, "x", close=close)  # type: ignore[arg-type]
        assert kept.told(busy.encode().json) is Verdict.LEAVE


def test_the_welcome_that_a_client_waits_for_is_its_own() -> None:
    wish = Resume("s-1", "old", [Cursor("inn", 7)], [TurnCursor("t", 3)])
    kept = Trail.of(wish, binary=False)
    assert kept.told(told("hello")) is Verdict.KEEP
    assert kept.told(welcome(True)) is Verdict.PASS
    assert (kept.session, kept.token, kept.cursors) == ("s-2", "next", {"inn": 7})
    assert kept.told(told("scene.synced", st="inn", s=9)) is Verdict.PASS, "it has asked for it"
    kept = Trail.of(wish, binary=False)
    assert kept.told(welcome(False)) is Verdict.PASS
    assert (kept.cursors, kept.turns) == ({}, {}), "it begins anew"


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        (told("reconnect", {"delay_ms": 5, "reason": "x"}), Verdict.KEEP),
        (Refusal(Code.DRAINING, "x", close=1012).encode().json, Verdict.KEEP),  # type: ignore[arg-type]
        (Refusal(Code.MOVED, "x", close=4450).encode().json, Verdict.KEEP),  # type: ignore[arg-type]
        (Refusal(Code.DRAINING, "x").encode(3).json, Verdict.PASS),
        (Refusal(Code.REPLACED, "x", close=4409).encode().json, Verdict.PASS),  # type: ignore[arg-type]
        (told("scene.moved", {"url": "", "ticket": "", "node": "b"}), Verdict.LEAVE),
        (told("notice", {"code": "degraded", "data": {}}, st="inn"), Verdict.PASS),
        (told("something.new", {"x": [1, {"y": 2}]}, st="inn", s=9), Verdict.PASS),
    ],
)
def test_what_becomes_of_messages(message: bytes, verdict: Verdict) -> None:
    kept = trail()
    kept.welcomed = True
    assert kept.told(message) is verdict


def test_a_scene_elsewhere_takes_the_session_along_or_is_for_another_connection() -> None:
    kept = trail()
    moved = told("scene.moved", {"url": "ws://b", "ticket": "", "delay_ms": 0, "node": "b"}, re=1)
    kept.asked('{"t": "scene.join", "id": 1, "d": {"scene": "mill"}}')
    assert kept.told(moved) is Verdict.LEAVE
    assert kept.hint == "b"
    assert len(kept.waiting()) == 1, "it is asked again there"
    kept.told(told("scene.joined", JOINED, st="inn", s=4))
    assert kept.told(moved) is Verdict.SEND_ON
    assert kept.waiting() == []
    kept.told(told("scene.left", st="inn"))
    assert not kept.scenes


@given(st.binary(max_size=60), st.booleans())
def test_whatever_a_client_sends_is_carried_and_nothing_breaks(frame: bytes, binary: bool) -> None:
    kept = trail(binary=binary)
    kept.asked(frame)
    kept.asked(frame.decode("latin-1"))
    assert all(isinstance(number, int) for number in kept.open)
    msgspec.json.encode(kept.resume())
