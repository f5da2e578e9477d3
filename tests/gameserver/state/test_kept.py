"""The next owner of a scene goes on where the last one has ended, whatever the store."""

import contextlib
from pathlib import Path

import pytest

from gameserver.commands import StateWrite
from gameserver.game import GameServer
from gameserver.ledger import Ledger
from gameserver.protocol import now_ms
from gameserver.state.clock import stamp_of
from gameserver.state.registers import Item
from gameserver.stores.journal import Book, Journal
from gameserver.stores.store import Holding, Store
from gameserver.tally import Tally
from scenes.entities import Entity, Surroundings
from tests.gameserver import stage
from tests.gameserver.stage import SCENE, until
from tests.gameserver.state.alone import KEYS, state_of, truth
from tests.gameserver.state.conftest import QUICK
from tests.gameserver.state.walker import CAPS, THINGS, Walker
from tests.gameserver.test_restart import Crashing

DOOR = Entity("door", {"open": False}, {"pos": "server", "open": "player", "lock": "server"})
AROUND = Surroundings(player_keys=frozenset(KEYS), entities={"door": DOOR})


class Owners:
    """One owner of a scene after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.journal = Journal(store, Tally())

    async def book(self) -> Book:
        """The scene's book, for the next owner."""
        held = await self._store.claim("scene.inn", lease=True)
        assert isinstance(held, Holding)
        self.journal.begin()
        return Book("scene.inn", self.journal, held)


@pytest.fixture
async def owners(store: Store) -> Owners:
    made = Owners(store)
    made.journal.start()
    return made


async def test_the_next_owner_knows_all_that_was_kept(owners: Owners) -> None:
    first = state_of(AROUND, await owners.book(), node="one")
    first.put([StateWrite("door", "open", True), StateWrite("ann", "pose", {"sits": [1, None]})])
    first.put([StateWrite("ann", "pos", [1, 2.5]), StateWrite("bob", "pose", "waves")])
    first.put([StateWrite("bob", "pose", None)])
    first.keep()
    await owners.journal.settled()
    second = state_of(AROUND, await owners.book(), node="two")
    assert truth(second) == truth(first)
    assert second.registers.get("bob", "pose") is not None, "a removal is known, too"
    (item,) = second.put([StateWrite("door", "open", False)])
    assert (item.o, item.h > max(r.item.h for r in first.registers.since(0))) == ("two", True)
    await owners.journal.stop()


async def test_a_clock_behind_that_of_the_last_owner_does_not_lose_writes(owners: Owners) -> None:
    ahead = stamp_of(now_ms() + 3_600_000)
    first = state_of(AROUND, await owners.book(), drift_ms=10**9)
    assert first.apply([Item("door", "open", True, ahead, "far")])
    await owners.journal.settled()
    second = state_of(AROUND, await owners.book())
    (item,) = second.put([StateWrite("door", "open", False)])
    assert item.h > ahead
    assert second.registers.value("door", "open") is False
    await owners.journal.stop()


async def test_moves_are_kept_now_and_then_and_not_each(owners: Owners) -> None:
    first = state_of(AROUND, await owners.book())
    first.put([StateWrite("ann", "pos", [1, 1])])
    await owners.journal.settled()
    second = state_of(AROUND, await owners.book())
    if owners.journal.store.survives:
        assert second.registers.value("ann", "pos") is None
    second.put([StateWrite("ann", "pos", [2, 2])])
    second.pass_time()
    await owners.journal.settled()
    third = state_of(AROUND, await owners.book())
    assert third.registers.value("ann", "pos") == [2, 2]
    third.put([StateWrite("ann", "pos", None)])
    third.pass_time()
    await owners.journal.settled()
    assert state_of(AROUND, await owners.book()).registers.value("ann", "pos") is None
    await owners.journal.stop()


async def test_what_was_collected_stays_gone_for_the_next_owner(owners: Owners) -> None:
    first = state_of(AROUND, await owners.book(), removed=1)
    (old,) = first.put([StateWrite("ann", "pose", "sits")])
    first.put([StateWrite(player, "pose", "x") for player in ("bob", "cid")])
    first.put([StateWrite(player, "pose", None) for player in ("ann", "bob", "cid")])
    first.pass_time()
    await owners.journal.settled()
    second = state_of(AROUND, await owners.book())
    assert second.registers.get("ann", "pose") is None
    assert second.registers.horizon == first.registers.horizon
    assert second.apply([old]) == [], "it is older than its removal, of which nothing is left"
    await owners.journal.stop()


async def test_what_the_scene_file_no_longer_has_is_forgotten(owners: Owners) -> None:
    first = state_of(AROUND, await owners.book())
    first.put([StateWrite("door", "lock", "iron"), StateWrite("ann", "pose", "sits")])
    await owners.journal.settled()
    less = Surroundings(entities={"door": Entity("door", {"open": True}, {"open": "player"})})
    second = state_of(less, await owners.book())
    assert truth(second) == {("door", "open"): True}
    await owners.journal.settled()
    third = state_of(AROUND, await owners.book())
    assert truth(third) == {("door", "open"): False}
    await owners.journal.stop()


async def test_of_a_player_who_is_forgotten_nothing_is_kept(owners: Owners) -> None:
    first = state_of(AROUND, await owners.book())
    first.put([StateWrite(player, "pose", f"{player} sits") for player in ("ann", "bob")])
    await owners.journal.settled()
    Ledger(await owners.book(), 500).forget("ann", None)
    await owners.journal.settled()
    assert set(truth(state_of(AROUND, await owners.book()))) == {("door", "open"), ("bob", "pose")}
    await owners.journal.stop()


async def test_a_server_that_was_killed_goes_on_and_tells_everything_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in THINGS.items():
        monkeypatch.setitem(stage.PACK, name, value)
    node = Crashing(tmp_path, ["Hm."], state=QUICK, flow={"resume_s": 30.0})
    server = await node.start()
    ann, bob = await Walker.enter(server), await Walker.enter(server, "bob")
    gone = await Walker.enter(server, "cid")
    await ann.put("door", "open", True)
    await ann.walk(3, 4)
    await bob.walk(5, 6)
    await gone.put("cid", "pose", "sits")
    await gone.ask("scene.leave")
    await ann.knows("bob", "pos", [5, 6])
    await ann.knows("cid", "pose", None)
    state = server._world.actors[SCENE].state
    await until(lambda: not state._shelf._moved)  # the sweep has come by
    await server._journal.settled()
    before, rev, ep = dict(ann.state), ann.rev, ann.ep
    await node.crash()
    server = await node.start()
    again = await back(server, ann, rev, ep)
    assert again.state == before
    assert again.deltas[0]["d"]["full"]
    assert again.ep > ep
    await node.stop()


async def test_who_does_not_come_back_after_a_restart_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in THINGS.items():
        monkeypatch.setitem(stage.PACK, name, value)
    node = Crashing(tmp_path, ["Hm."], state=QUICK, flow={"resume_s": 0.5})
    server = await node.start()
    ann = await Walker.enter(server)
    await ann.put("ann", "pose", "sits")
    await node.crash()
    server = await node.start()
    bob = await Walker.enter(server, "bob")
    await bob.knows("ann", "pose", None)
    await node.stop()


async def back(server: GameServer, walker: Walker, rev: int, ep: int) -> Walker:
    """A player goes on with its session."""
    welcome = next(m["d"] for m in walker.log if m["t"] == "welcome")
    with contextlib.suppress(Exception):
        await walker.socket.close()
    again = await Walker.dial(server, walker.name)
    again.begin()
    resume = {
        "session": welcome["session"],
        "token": welcome["resume_token"],
        "cursors": [{"st": SCENE, "s": 0, "rev": rev, "ep": ep}],
    }
    assert (await again.identify(caps=CAPS, resume=resume))["d"]["resumed"]
    await again.until(lambda: bool(again.deltas))
    return again
