"""Cursors: whatever the pace, each client gets every event once, in order, and every word."""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import Mock

from hypothesis import given, settings
from hypothesis import strategies as st

from gameserver.messages import Ack, Gap, TurnEnd, TurnStart, TurnUsage
from gameserver.outbox import Outbox
from gameserver.protocol import Close, Encoded, encode
from gameserver.settings import Flow
from gameserver.stores.journal import Gate
from gameserver.streams import Latest, Stream
from gameserver.tally import Tally
from gameserver.turn import Turn
from tests.gameserver.stage import settings_with

SETTINGS = settings_with()


class Wire:
    """A socket that can be full."""

    def __init__(self) -> None:
        self.writable = True
        self.sent: list[Encoded] = []
        self.aborted: Close | None = None

    def write(self, messages: Sequence[Encoded]) -> None:
        assert self.writable
        self.sent += messages

    def abort(self, code: Close) -> None:
        self.aborted = code

    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(message.json) for message in self.sent]


class Client:
    """An outbox that follows a stream, on a wire."""

    def __init__(self, stream: Stream) -> None:
        self.wire = Wire()
        self.outbox = Outbox(self.wire, SETTINGS, Tally())
        self.outbox.follow(stream, self.snapshot, list)

    def snapshot(self, gap: Gap | None) -> Encoded:
        assert gap is not None
        return encode("scene.snapshot", gap)

    def text(self, turn: str) -> str:
        """What came of a turn; fails if a chunk is missing or comes twice."""
        text, n = "", 0
        for message in self.wire.messages():
            d = message["d"]
            if message["t"] in ("npc.delta", "npc.turn.sync") and d["turn"] == turn:
                assert d["i"] == n
                text, n = text + d["text"], n + d["n"]
        return text


class Scene:
    """A stream with one NPC that speaks one turn after another."""

    def __init__(self, flow: Flow | None = None) -> None:
        self.stream = Stream("inn", 1, flow or SETTINGS.flow)
        self.turn: Turn | None = None
        self.turns: list[Turn] = []

    def start(self, merge_s: float = 0.0) -> Turn:
        self.turn = Turn(f"t{len(self.turns)}", "mira", (self.stream,), merge_s)
        self.turns.append(self.turn)
        start = TurnStart(self.turn.id, "mira", [], [])
        self.stream.append("npc.turn.start", start, opens=self.turn)
        return self.turn

    def end(self) -> None:
        turn, self.turn = self.turn, None
        assert turn is not None
        turn.publish()
        usage = TurnUsage(0, 0, 0, 0, 0, 0)
        end = TurnEnd(turn.id, "mira", "completed", "stop", 0, turn.text(), 0, (), usage)
        self.stream.append("npc.turn.end", end, closes=turn)


async def test_everybody_who_keeps_up_gets_the_very_same_bytes() -> None:
    scene = Scene()
    ann, bob = Client(scene.stream), Client(scene.stream)
    turn = scene.start()
    for text in ("one ", "two ", "three"):
        turn.append(text)
        await asyncio.sleep(0)
    scene.end()
    await asyncio.sleep(0)
    assert len(ann.wire.sent) == 5
    assert all(a is b for a, b in zip(ann.wire.sent, bob.wire.sent, strict=True))


async def test_nothing_is_built_for_a_full_wire_and_then_it_comes_merged() -> None:
    scene = Scene()
    ann = Client(scene.stream)
    ann.wire.writable = False
    turn = scene.start()
    for text in ("one ", "two ", "three"):
        turn.append(text)
        await asyncio.sleep(0)
    assert ann.wire.sent == []
    ann.wire.writable = True
    ann.outbox.wake()
    await asyncio.sleep(0)
    start, delta = ann.wire.messages()
    assert start["t"] == "npc.turn.start"
    assert (delta["d"]["i"], delta["d"]["n"], delta["d"]["text"]) == (0, 3, "one two three")


async def test_chunks_are_merged_between_publications() -> None:
    scene = Scene()
    ann = Client(scene.stream)
    turn = scene.start(merge_s=0.03)
    for text in "abcdef":
        turn.append(text)
    await asyncio.sleep(0.05)
    deltas = [m["d"]["text"] for m in ann.wire.messages() if m["t"] == "npc.delta"]
    assert deltas == ["a", "bcdef"]


class Clock:
    """A loop as far as a turn needs one: its time is set, and its timers are rung, by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due = 0.0
        self._ring: Callable[[], None] | None = None

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, callback: Callable[..., None], *args: object) -> Mock:
        self.due, self._ring = due, partial(callback, *args)
        return Mock()

    def ring(self, late_s: float) -> None:
        self.now, ring = self.due + late_s, self._ring
        assert ring is not None
        ring()


async def test_a_loop_that_is_late_gets_fewer_and_larger_pieces_but_the_first_word_at_once() -> (
    None
):
    scene, clock, merge_s = Scene(), Clock(), 0.03
    turn = scene.start(merge_s)
    turn._loop = clock  # type: ignore[assignment]
    turn.append("a")
    assert turn.published == 1
    pauses = []
    for late_s in (0.0, 0.01, 0.2, 0.0, 0.0):
        turn.append("b")
        pauses.append(round(clock.due - clock.now, 6))
        clock.ring(late_s)
        assert turn.published == len(turn.chunks)
    # As usual, then by how late the last one was, but never without bound; and back again.
    assert pauses == [0.03, 0.03, 0.05, 0.09, 0.03]
    late = scene.start(merge_s)
    late._loop = clock  # type: ignore[assignment]
    late.append("a")
    assert late.published == 1


async def test_a_client_that_lacks_nothing_but_words_is_told_all_else_that_comes() -> None:
    scene = Scene()
    ann = Client(scene.stream)
    private = Stream("me", 1, SETTINGS.flow)
    ann.outbox.follow(private, ann.snapshot, list)
    state = Latest("npc.state", scene.stream, lambda rev: Gap(rev, rev))
    turn = scene.start()
    happens: dict[str, Callable[[], None]] = {
        "presence": partial(scene.stream.append, "presence", Ack()),
        "player.said": partial(private.append, "player.said", Ack()),
        "npc.state": state.changed,
        "ack": lambda: ann.outbox.tell(encode("ack", Ack())),
    }
    for t, happen in happens.items():
        for _ in range(2):  # words, and nothing else
            turn.append("word ")
            await asyncio.sleep(0)
        ann.wire.sent.clear()
        happen()
        turn.append("word ")
        await asyncio.sleep(0)
        assert {m["t"] for m in ann.wire.messages()} == {t, "npc.delta"}
    ann.outbox.park("pause")
    ann.wire.sent.clear()
    for _ in range(2):
        turn.append("word ")
        await asyncio.sleep(0)
    assert ann.wire.sent == []


async def test_a_client_that_cannot_be_told_keeps_nothing_from_the_others() -> None:
    scene = Scene()
    clients = [Client(scene.stream) for _ in range(3)]
    clients[1].wire.write = Mock(side_effect=RuntimeError)  # type: ignore[method-assign]
    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    turn = scene.start()
    await asyncio.sleep(0)
    turn.append("word")
    await asyncio.sleep(0)
    assert [len(client.wire.sent) for client in clients] == [2, 0, 2]
    assert faults
    assert all(isinstance(fault["exception"], RuntimeError) for fault in faults)


async def test_a_latest_value_is_sent_once_and_newest() -> None:
    scene = Scene()
    ann = Client(scene.stream)
    ann.wire.writable = False
    state = Latest("npc.state", scene.stream, lambda rev: Gap(rev, rev))
    for _ in range(5):
        state.changed()
    ann.wire.writable = True
    ann.outbox.wake()
    await asyncio.sleep(0)
    (message,) = ann.wire.messages()
    assert message["d"]["from"] == 5
    assert (message["st"], message["ep"]) == ("inn", 1)


async def test_three_missed_windows_in_a_minute_end_the_connection() -> None:
    scene = Scene(Flow(window_events=2))
    ann = Client(scene.stream)
    for _ in range(3):
        ann.wire.writable = False
        for _ in range(5):
            scene.stream.append("presence", Ack())
        ann.wire.writable = True
        ann.outbox.wake()
        await asyncio.sleep(0)
    assert [m["t"] for m in ann.wire.messages()] == ["scene.snapshot"] * 2
    assert ann.wire.messages()[1]["d"] == {"from": 6, "to": 10}
    assert ann.wire.aborted == Close.STALLED


async def test_a_client_that_lets_answers_pile_up_is_cut_off() -> None:
    ann = Client(Scene().stream)
    for _ in range(100):  # a burst is no reason, as long as it is read
        ann.outbox.tell(b"{}")
    await asyncio.sleep(0)
    assert len(ann.wire.sent) == 100
    ann.wire.writable = False
    for _ in range(SETTINGS.guards.outbound_messages - 1):
        ann.outbox.tell(b"{}")
    assert ann.wire.aborted is None
    ann.outbox.tell(b"{}")
    assert ann.wire.aborted == Close.STALLED


async def test_a_client_that_left_hears_no_more() -> None:
    scene = Scene()
    ann = Client(scene.stream)
    turn = scene.start()
    await asyncio.sleep(0)
    ann.outbox.unfollow(scene.stream)
    turn.append("secret")
    scene.end()
    await asyncio.sleep(0)
    assert [m["t"] for m in ann.wire.messages()] == ["npc.turn.start"]
    assert not scene.stream.readers


async def test_old_events_leave_the_window() -> None:
    stream = Stream("inn", 1, Flow(window_bytes=1000))
    for _ in range(100):
        stream.append("presence", Ack())
    kept = stream.after(95)
    assert kept is not None
    assert [event.s for event in kept] == [96, 97, 98, 99, 100]
    assert stream.after(0) is None
    assert stream.after(100) == []


steps = st.lists(
    st.one_of(
        st.sampled_from(["start", "chunk", "end", "event", "turn of the loop"]),
        st.tuples(st.sampled_from(["full", "free", "park", "unpark"]), st.integers(0, 2)),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(steps)
async def test_any_pace_gives_the_same_story(story: list[str | tuple[str, int]]) -> None:
    scene = Scene()
    clients = [Client(scene.stream) for _ in range(3)]
    for step in story:
        if isinstance(step, tuple):
            what, number = step
            client = clients[number]
            if what in ("full", "free"):
                client.wire.writable = what == "free"
                client.outbox.wake()
            else:
                (client.outbox.park if what == "park" else client.outbox.unpark)("pause")
        elif step == "start" and scene.turn is None:
            scene.start()
        elif step == "chunk" and scene.turn is not None:
            scene.turn.append(f"w{len(scene.turn.chunks)} ")
        elif step == "end" and scene.turn is not None:
            scene.end()
        elif step == "event":
            scene.stream.append("presence", Ack())
        else:
            await asyncio.sleep(0)
    for client in clients:
        client.wire.writable = True
        client.outbox.unpark("pause")
    if scene.turn is not None:
        scene.end()
    await asyncio.sleep(0)
    for client in clients:
        messages = client.wire.messages()
        numbers = [m["s"] for m in messages if "s" in m]
        assert numbers == list(range(1, scene.stream.last + 1))
        ended: set[str] = set()
        for message in messages:
            if message["t"] in ("npc.delta", "npc.turn.sync"):
                assert message["d"]["turn"] not in ended
            elif message["t"] == "npc.turn.end":
                ended.add(message["d"]["turn"])
        for turn in scene.turns:
            heard = client.text(turn.id)
            assert turn.text().startswith(heard)
            if not any(isinstance(step, tuple) and step[0] == "park" for step in story):
                assert heard == turn.text()


async def test_what_waits_for_no_store_overtakes_what_does_and_keeps_its_own_order() -> None:
    """So that an error is the last that a client hears."""
    for written in (0, 1):  # nothing waits, or all that is told of something
        wire, gate = Wire(), Gate()
        gate.written = written
        outbox = Outbox(wire, SETTINGS, Tally(), gate)
        for t, at_once in [("hello", True), ("answer", False), ("moved", True), ("error", True)]:
            outbox.tell(encode(t, Ack()), at_once=at_once)
        await asyncio.sleep(0)
        waiting = ["answer"] if written else []
        told = [message["t"] for message in wire.messages()]
        assert told == [t for t in ("hello", "answer", "moved", "error") if t not in waiting]
        gate.durable = written
        outbox.wake()
        await asyncio.sleep(0)
        assert [message["t"] for message in wire.messages()] == told + waiting
