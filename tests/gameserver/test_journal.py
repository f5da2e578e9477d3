"""Nothing is told before it is kept, nobody waits for the store, and nothing that was accepted is
lost while it is in trouble."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Mapping, Sequence, Sized
from unittest import mock

import pytest

from gameserver.messages import Ack, TurnStart
from gameserver.outbox import Outbox
from gameserver.protocol import encode
from gameserver.stores.journal import Book, Journal
from gameserver.stores.memory import MemoryStore
from gameserver.stores.store import Elsewhere, Holding, StoreDown, Unit
from gameserver.streams import Stream
from gameserver.tally import Tally
from gameserver.turn import Turn
from tests.gameserver.stage import until
from tests.gameserver.test_outbox import SETTINGS, Wire


class SlowStore:
    """A store whose commits wait until they are let through, or fail.

    Attributes:
        commits: the groups that were asked for.
    """

    survives = True
    shared = False

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.free = asyncio.Event()
        self.failing = False
        self.failure: Exception = StoreDown("no")
        self.commits: list[Sequence[Unit]] = []

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def claim(
        self, bucket: str, *, lease: bool, expected: tuple[str, bytes] | None = None
    ) -> Holding | Elsewhere:
        return await self.memory.claim(bucket, lease=lease)

    async def peek(self, bucket: str, key: str) -> bytes | None:
        return await self.memory.peek(bucket, key)

    async def keys(self, bucket: str) -> Sequence[str]:
        return await self.memory.keys(bucket)

    async def commit(self, units: Sequence[Unit]) -> frozenset[str]:
        self.commits.append(units)
        if self.failing:
            raise self.failure
        await self.free.wait()
        return await self.memory.commit(units)

    async def buckets(self, prefix: str) -> Sequence[str]:
        return await self.memory.buckets(prefix)

    async def scrub(self) -> None: ...


class Scene:
    """A stream that is written down, and a client that follows it."""

    def __init__(self, store: SlowStore) -> None:
        self.store = store
        self.journal = Journal(store, Tally())
        self.journal.start()
        self.book = Book("inn", self.journal, Holding(1, {}, ()))
        self.stream = Stream("inn", 1, SETTINGS.flow, self.book)
        self.wire = Wire()
        self.outbox = Outbox(self.wire, SETTINGS, Tally(), self.journal)
        self.outbox.follow(self.stream, lambda gap: encode("scene.snapshot", Ack()), list)

    def types(self) -> list[str]:
        return [message["t"] for message in self.wire.messages()]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene(SlowStore())
    yield made
    made.store.free.set()
    made.store.failing = False
    await made.journal.stop()


async def a_moment() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_events_and_answers_wait_for_the_store_and_keep_their_order(scene: Scene) -> None:
    scene.journal.begin()
    scene.outbox.tell(encode("hello", Ack()))  # tells of nothing that happened
    scene.stream.append("player.said", Ack())
    scene.outbox.tell(encode("say.accepted", Ack(), re=1))
    await a_moment()
    assert scene.types() == ["hello"]
    scene.outbox.tell(encode("error", Ack(), re=2), at_once=True)
    await a_moment()
    assert scene.types() == ["hello", "error"]
    scene.store.free.set()
    await until(lambda: len(scene.types()) == 4)
    assert scene.types() == ["hello", "error", "say.accepted", "player.said"]


async def test_speech_waits_for_the_start_of_its_turn_and_for_nothing_else(scene: Scene) -> None:
    scene.store.free.set()
    turn = Turn("t", "mira", (scene.stream,), 0.0)
    scene.stream.append("npc.turn.start", TurnStart("t", "mira", [], []), opens=turn)
    turn.append("One ")
    await until(lambda: scene.types() == ["npc.turn.start", "npc.delta"])
    scene.store.free.clear()
    scene.stream.append("player.said", Ack())  # never kept
    scene.outbox.tell(encode("ack", Ack()))
    turn.append("two.")
    await a_moment()
    assert scene.types() == ["npc.turn.start", "npc.delta", "npc.delta"]


async def test_who_comes_while_the_store_is_slow_is_shown_the_scene_first(scene: Scene) -> None:
    turn = Turn("t", "mira", (scene.stream,), 0.0)
    turn.append("One ")
    scene.stream.append("presence", Ack())
    scene.outbox.tell(encode("scene.joined", Ack()))
    scene.outbox.listen(turn, 1)
    turn.append("two.")
    await a_moment()
    assert scene.types() == []
    scene.store.free.set()
    await until(lambda: "npc.delta" in scene.types())
    assert scene.types()[0] == "scene.joined"


async def test_a_node_past_its_deadline_says_nothing_until_it_is_renewed(scene: Scene) -> None:
    scene.store.free.set()
    turn = Turn("t", "mira", (scene.stream,), 0.0)
    scene.stream.append("npc.turn.start", TurnStart("t", "mira", [], []), opens=turn)
    await until(lambda: scene.types() == ["npc.turn.start"])
    scene.journal.deadline = time.monotonic()
    turn.append("One ")
    scene.stream.append("presence", Ack())
    scene.outbox.tell(encode("ack", Ack()))
    scene.outbox.tell(encode("notice", Ack()), at_once=True)
    await asyncio.sleep(0.02)
    assert scene.types() == ["npc.turn.start", "notice"]
    scene.journal.renewed(time.monotonic() + 60)
    await until(lambda: len(scene.types()) == 5)
    assert scene.types()[2:] == ["ack", "presence", "npc.delta"]


async def test_what_happens_while_a_commit_runs_goes_into_the_next_one_together(
    scene: Scene,
) -> None:
    scene.stream.append("presence", Ack())
    await a_moment()
    for _ in range(100):
        scene.journal.begin()
        scene.stream.append("presence", Ack())
    scene.store.free.set()
    await until(lambda: scene.stream.last == 101 and len(scene.types()) == 101)
    assert [len(group) for group in scene.store.commits] == [1, 100]


@pytest.mark.parametrize("failure", [StoreDown("no"), ValueError("nobody thought of this")])
async def test_a_store_that_fails_is_asked_again_until_it_takes_everything(
    scene: Scene, failure: Exception
) -> None:
    scene.store.free.set()
    scene.store.failing, scene.store.failure = True, failure
    for _ in range(3):
        scene.stream.append("presence", Ack())
    await until(lambda: len(scene.store.commits) >= 3)
    assert scene.types() == []
    assert scene.journal.waiting_s > 0
    scene.store.failing = False
    await until(lambda: len(scene.types()) == 3)
    assert scene.journal.waiting_s == 0
    held = await scene.store.claim("inn", lease=True)
    assert isinstance(held, Holding)
    assert [s for s, _ in held.log] == [1, 2, 3]


async def test_a_mistake_of_those_who_write_something_down_late_costs_nobody_else(
    scene: Scene,
) -> None:
    scene.store.free.set()
    asked = []

    def stumble(bucket: str) -> None:
        asked.append(bucket)
        if len(asked) == 1:
            raise KeyError(bucket)

    scene.journal.on_commit = stumble
    scene.stream.append("presence", Ack())
    await until(lambda: len(scene.types()) == 1)
    scene.stream.append("presence", Ack())
    await until(lambda: len(scene.types()) == 2)
    assert asked == ["inn", "inn"]


async def test_what_is_somebody_elses_is_given_up_with_all_that_shares_its_fate(
    scene: Scene,
) -> None:
    lost: list[Mapping[str, int]] = []
    scene.journal.on_lost = lost.append
    inn, ann, bob = (Book(n, scene.journal, Holding(1, {}, ())) for n in ("inn", "ann", "bob"))
    await scene.store.claim("inn", lease=True)  # a higher epoch
    scene.store.free.set()
    scene.journal.begin()
    inn.put("k", b"v")
    ann.put("k", b"v")
    scene.journal.begin()
    bob.put("k", b"v")
    await scene.journal.settled()
    assert lost == [{"inn": 1, "ann": 1}]
    ann.put("k", b"more")  # nothing of it is written any more
    bob.put("l", b"v")
    await scene.journal.settled()
    assert await scene.store.peek("ann", "k") is None
    assert await scene.store.peek("bob", "l") == b"v"


async def test_what_is_lost_by_the_way_takes_nothing_along(scene: Scene) -> None:
    """A whisper to a session that goes on elsewhere, in the same unit as all else of the scene."""
    lost: list[Mapping[str, int]] = []
    scene.journal.on_lost = lost.append
    inn, ann = (Book(n, scene.journal, Holding(1, {}, ())) for n in ("inn", "ann"))
    await scene.store.claim("ann", lease=False)  # a higher epoch
    for key in ("a", "b", "c"):  # in one commit, and in one that waits behind it
        scene.journal.begin()
        inn.put(key, b"v")
        ann.loosely().put(key, b"v")
        if key == "a":
            await a_moment()
    scene.store.free.set()
    await scene.journal.settled()
    assert lost == [{"ann": 1}]
    assert (ann.lost, inn.lost) == (True, False)
    assert sorted(await scene.store.keys("inn")) == ["a", "b", "c"]
    assert await scene.store.keys("ann") == []


async def test_nothing_is_known_of_what_was_lost_once_nobody_writes_to_it(scene: Scene) -> None:
    """Or a node would know all sessions that ever went to another one."""
    scene.store.free.set()
    journal = scene.journal
    for number in range(50):
        name = f"session.{number}"
        book = Book(name, journal, Holding(1, {}, ()))
        await scene.store.claim(name, lease=False)
        book.keep(60.0)
        book.put("k", b"v")
        await journal.settled()
        assert book.lost
    del book
    gc.collect()
    sizes = [len(value) for value in vars(journal).values() if isinstance(value, Sized)]
    assert max(sizes) <= 2, "the scene's own, and the store's"


@pytest.mark.parametrize("kind", ["memory", "another"])
async def test_what_comes_late_does_not_bring_to_life_what_is_erased(kind: str) -> None:
    """A whispered turn ends, and one of its listeners is gone: of its session nothing is kept."""
    slow = SlowStore()
    slow.free.set()
    journal = Journal(slow.memory if kind == "memory" else slow, Tally())
    journal.start()
    held = await slow.claim("ann", lease=False)
    assert isinstance(held, Holding)
    book = Book("ann", journal, held)
    book.put("k", b"v")
    book.erase()
    book.loosely().append(1, b"late")
    book.put("k", b"late")
    await journal.settled()
    assert await slow.memory.keys("ann") == []
    assert await slow.memory.claim("ann", lease=False) == Holding(mock.ANY, {}, ())
    await journal.stop()


async def test_memory_keeps_everything_at_once() -> None:
    store = MemoryStore()
    journal = Journal(store, Tally())
    book = Book("inn", journal, Holding(1, {}, ()))
    book.put("k", b"v")
    assert journal.written == journal.durable == 0
    assert await store.peek("inn", "k") == b"v"


async def test_a_store_that_was_idle_is_tried_before_anything_is_accepted(scene: Scene) -> None:
    journal, wait_s = scene.journal, 0.05
    assert not journal.doubtful, "nobody asked for proof"
    journal.proof = Book("node.a", journal, Holding(1, {}, ()))
    assert journal.doubtful
    await journal.prove(wait_s)
    assert journal.waiting_s >= wait_s, "it takes nothing"
    written = journal.written
    for _ in range(3):
        await journal.prove(wait_s)
    assert journal.written == written, "one try is enough"

    scene.store.free.set()
    await journal.settled()
    assert not journal.doubtful
    await journal.prove(wait_s)
    assert journal.written == written, "what is known to be well is not tried"


async def test_what_is_written_after_the_proof_is_a_unit_of_its_own(scene: Scene) -> None:
    journal = scene.journal
    journal.proof = Book("node.a", journal, Holding(1, {}, ()))
    proving = asyncio.create_task(journal.prove(20.0))
    await a_moment()
    scene.book.put("k", b"v")
    scene.store.free.set()
    await proving
    await journal.settled()
    units = [unit for group in scene.store.commits for unit in group]
    assert [list(unit.epochs) for unit in units] == [["node.a"], ["inn"]]
