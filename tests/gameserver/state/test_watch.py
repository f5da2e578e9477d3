"""A client ends with what is so, whatever was lost on the way and wherever it is."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gameserver.commands import StateWrite
from gameserver.protocol import Encoded
from gameserver.state.scene_state import SceneState
from gameserver.state.watch import Watch
from scenes.entities import Entity, Surroundings
from tests.gameserver.state.alone import KEYS, PLAYERS, state_of, truth


class Client:
    """Applies messages as the docs say, and loses some with its connection."""

    def __init__(self, state: SceneState, player: str) -> None:
        self.state = state
        self.watch = Watch(state, player)
        self.known: dict[tuple[str, str], Any] = {}
        self.rev: int | None = None
        self.told = 0

    def read(self, most: int = 1_000_000, *, lost: int = 0) -> None:
        """Get so many messages at most; the last ones are lost."""
        sent: list[Encoded] = []
        for message in self.watch.messages(lambda unit: True):
            sent.append(message)
            if len(sent) == most:
                break
        for message in sent[: len(sent) - lost]:
            self.take(msgspec.json.decode(message.json)["d"])
        if lost:
            self.watch.resume(self.rev, 1)

    def take(self, body: Any) -> None:
        """One message has come."""
        assert len(msgspec.json.encode(body)) < 8 * 1024
        if body.get("full"):
            self.known.clear()
        else:
            assert self.rev is not None
            assert body["rev"] >= self.rev
        self.rev = body["rev"]
        for item in body["items"]:
            self.told += 1
            self.known[item["e"], item["k"]] = item["v"]
            if item["v"] is None:
                del self.known[item["e"], item["k"]]


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 5.0]))
def test_a_client_converges_over_losses_far_and_near(seed: int, sight: float) -> None:
    dice = random.Random(seed)
    around = Surroundings(
        sight=sight,
        player_keys=frozenset(KEYS[1:]),
        entities={"door": Entity("door", {"open": 1}, {"open": "player"})},
    )
    state = state_of(around, removed=2)
    clients = [Client(state, player) for player in PLAYERS]
    for _ in range(150):
        e, k = dice.choice(PLAYERS), dice.choice(KEYS)
        value = (
            [dice.randint(0, 20), dice.randint(0, 20)] if k == "pos" else "x" * dice.randint(0, 900)
        )
        state.put([StateWrite(e, k, value if dice.random() < 0.8 else None)])
        state._settings = msgspec.structs.replace(state._settings, far_ms=dice.choice([0, 10**9]))
        if dice.random() < 0.5:
            state._publish()
        if dice.random() < 0.2:
            state.pass_time()
        client = dice.choice(clients)
        client.read(dice.randint(1, 3), lost=dice.choice([0, 0, 0, 1]))
    state._settings = msgspec.structs.replace(state._settings, far_ms=0)
    state._publish()
    for client in clients:
        client.read()
        assert client.known == truth(state)


def walk(state: SceneState, player: str, x: int) -> None:
    """One step, and a beat."""
    state.put([StateWrite(player, "pos", [x, 0])])
    state._publish()


def test_moves_out_of_sight_come_now_and_then_and_all_else_at_once() -> None:
    state = state_of(Surroundings(sight=5.0, player_keys=frozenset(KEYS)), far_ms=10**9)
    walk(state, "ann", 0)
    walk(state, "bob", 4)
    walk(state, "cid", 100)
    ann = Client(state, "ann")
    ann.read()
    assert ann.known["cid", "pos"] == [100, 0], "who comes is told where everybody is"
    told = ann.told
    for step in range(1, 20):
        walk(state, "cid", 100 + step)
        ann.read()
    assert ann.told == told
    walk(state, "bob", 3)
    state.put([StateWrite("cid", "pose", "waves")])
    state._publish()
    ann.read()
    assert ann.known["bob", "pos"] == [3, 0]
    assert ann.known["cid", "pose"] == "waves"
    assert ann.known["cid", "pos"] == [100, 0]
    state._settings = msgspec.structs.replace(state._settings, far_ms=0)
    state._publish()
    ann.read()
    assert ann.known["cid", "pos"] == [119, 0]
    walk(state, "cid", 2)
    ann.read()
    assert ann.known["cid", "pos"] == [2, 0]


def test_who_was_away_longer_than_removals_are_known_is_told_everything() -> None:
    state = state_of(Surroundings(player_keys=frozenset(KEYS)), removed=1)
    walk(state, "ann", 1)
    walk(state, "bob", 1)
    walk(state, "cid", 1)
    ann = Client(state, "ann")
    ann.read()
    state.put([StateWrite(player, "pos", None) for player in ("bob", "cid")])
    state._publish()
    state.pass_time()
    assert state.registers.forgotten
    ann.watch.resume(ann.rev, 1)
    ann.read()
    assert ann.known == {("ann", "pos"): [1, 0]}


@pytest.mark.parametrize("kept", [0, 1])
def test_what_the_store_has_not_is_not_told_and_nobody_starves(kept: int) -> None:
    state = state_of(Surroundings(player_keys=frozenset(KEYS)))
    for unit, player in enumerate(PLAYERS):
        state.put([StateWrite(player, "pose", "sits")])
        register = state.registers.get(player, "pose")
        assert register is not None
        register.unit = unit
    state._publish()
    ann = Client(state, "ann")
    for message in ann.watch.messages(lambda unit: unit <= kept):
        ann.take(msgspec.json.decode(message.json)["d"])
    assert set(ann.known) == {(player, "pose") for player in PLAYERS[: kept + 1]}
    ann.read()
    assert ann.known == truth(state)
