"""Budgets: what is over one is refused with its reason and a time, and nothing else is."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gameserver.budgets import Budgets
from gameserver.protocol import Refusal
from gameserver.settings import BudgetSettings
from gameserver.tally import Tally
from tests.gameserver.player import Player
from tests.gameserver.stage import serving

NOON = 20_000 * 86_400 + 43_200.0


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def budgets(clock: Clock, **accounts: Any) -> Budgets:
    return Budgets(msgspec.convert(accounts, BudgetSettings), Tally(), clock)


def refusal(kept: Budgets, npc: str = "inn/mira", player: str = "ann") -> Refusal | None:
    try:
        kept.check(npc, player)
    except Refusal as error:
        return error
    return None


def test_without_settings_there_is_no_limit() -> None:
    kept = budgets(Clock())
    for _ in range(1000):
        kept.check("inn/mira", "ann")
        kept.turn("inn/mira", "ann")
        kept.spend("inn/mira", "ann", 10**6)
    assert kept.gauges() == {"budget_tokens_today": 10**9}


@pytest.mark.parametrize(
    ("account", "others"),
    [
        ("npc", [("inn/harn", "ann", True), ("inn/mira", "bob", False)]),
        ("player", [("inn/harn", "ann", False), ("inn/mira", "bob", True)]),
        ("total", [("inn/harn", "bob", False)]),
    ],
)
def test_turns_a_minute_come_back_one_by_one(
    account: str, others: list[tuple[str, str, bool]]
) -> None:
    clock = Clock()
    kept = budgets(clock, **{account: {"turns_per_minute": 3}})
    for _ in range(3):
        assert refusal(kept) is None
        kept.turn("inn/mira", "ann")
    refused = refusal(kept)
    assert refused is not None
    assert (refused.code, refused.retry_ms) == ("over_budget", 20_000)
    for npc, player, may in others:
        assert (refusal(kept, npc, player) is None) is may
    clock.now += 19.9
    assert refusal(kept) is not None
    clock.now += 0.1
    assert refusal(kept) is None
    kept.turn("inn/mira", "ann")
    assert refusal(kept) is not None
    clock.now += 3600
    for _ in range(3):
        kept.turn("inn/mira", "ann")
    assert refusal(kept) is not None, "more than a minute's turns are never saved up"


def test_tokens_are_of_a_day() -> None:
    clock = Clock()
    kept = budgets(clock, player={"tokens_per_day": 100})
    kept.spend("inn/mira", "ann", 99)
    assert refusal(kept) is None
    kept.spend("inn/mira", "ann", 50)
    refused = refusal(kept)
    assert refused is not None
    assert (refused.limit, refused.actual, refused.retry_ms) == (100, 149, 43_200_000)
    clock.now += 43_200
    assert refusal(kept) is None
    assert kept.gauges()["budget_tokens_today"] == 0


def test_a_cooldown_runs_from_turn_to_turn() -> None:
    clock = Clock()
    kept = budgets(clock, npc={"cooldown_s": 5})
    kept.turn("inn/mira", "ann")
    clock.now += 2
    refused = refusal(kept, player="bob")
    assert refused is not None and refused.retry_ms == 3000
    clock.now += 3
    assert refusal(kept) is None


@pytest.mark.parametrize("back_s", [1.0, 3600.0, 86_400.0])
@pytest.mark.parametrize("rule", [{"cooldown_s": 5}, {"turns_per_minute": 1}])
def test_a_clock_that_is_set_back_locks_nobody_out(rule: dict[str, Any], back_s: float) -> None:
    """Nobody waits until the clock shows again what it showed; rules hold from the next turn on."""
    clock = Clock()
    kept = budgets(clock, player=rule)
    kept.turn("inn/mira", "ann")
    assert refusal(kept) is not None
    clock.now -= back_s
    assert refusal(kept) is None
    kept.turn("inn/mira", "ann")
    assert refusal(kept) is not None


def test_accounts_outlive_the_process() -> None:
    clock = Clock()
    settings = {"player": {"tokens_per_day": 10}, "npc": {"turns_per_minute": 1}}
    kept = budgets(clock, **settings)
    kept.turn("inn/mira", "ann")
    kept.spend("inn/mira", "ann", 50)
    after = budgets(clock, **settings)
    after.restore(kept.snapshot())
    assert refusal(after, "inn/harn", "ann") is not None
    assert refusal(after, "inn/mira", "bob") is not None
    assert refusal(after, "inn/harn", "bob") is None
    assert after.snapshot() == kept.snapshot()


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"npcs": 1, "players": {}, "total": {}}'])
def test_what_is_no_snapshot_changes_nothing(data: bytes) -> None:
    kept = budgets(Clock(), player={"tokens_per_day": 10})
    kept.spend("inn/mira", "ann", 50)
    with pytest.raises(ValueError, match="no snapshot"):
        kept.restore(data)
    assert refusal(kept) is not None


def test_so_many_accounts_are_kept() -> None:
    kept = budgets(Clock(), player={"tokens_per_day": 10}, accounts=2)
    for player in ("ann", "bob", "cid"):
        kept.spend("inn/mira", player, 50)
    assert refusal(kept, player="cid") is not None
    assert refusal(kept, player="bob") is not None
    assert refusal(kept, player="ann") is None


def test_what_an_npc_thinks_costs_tokens_and_is_no_turn() -> None:
    clock = Clock()
    rules = {"turns_per_minute": 1, "cooldown_s": 5, "tokens_per_day": 100}
    kept = budgets(clock, player=rules)
    kept.turn("inn/mira", "ann")
    for _ in range(4):
        assert kept.may_think("inn/mira", "ann")
        kept.spend("inn/mira", "ann", 25)
    assert not kept.may_think("inn/mira", "ann")
    assert kept.may_think("inn/mira", "bob")
    clock.now += 86_400
    assert kept.may_think("inn/mira", "ann")


@pytest.mark.parametrize("account", ["npc", "player", "total"])
def test_thinking_stops_with_the_tokens_of_any_account(account: str) -> None:
    kept = budgets(Clock(), **{account: {"tokens_per_day": 10}})
    kept.spend("inn/mira", "ann", 10)
    assert not kept.may_think("inn/mira", "ann")


def test_requests_to_the_api_are_booked_by_key_and_in_total() -> None:
    clock = Clock()
    settings = {"caller": {"turns_per_minute": 1}, "total": {"tokens_per_day": 100}}
    kept = budgets(clock, **settings)
    kept.call("studio")
    with pytest.raises(Refusal, match="this key"):
        kept.call("studio")
    kept.call("tools")
    kept.spend_call("tools", 100)
    assert refusal(kept) is not None, "players and callers share the total"
    after = budgets(clock, **settings)
    after.restore(kept.snapshot())
    with pytest.raises(Refusal, match="this key"):
        after.call("studio")


def test_a_snapshot_without_callers_is_as_it_was() -> None:
    kept = budgets(Clock())
    kept.turn("inn/mira", "ann")
    assert set(msgspec.json.decode(kept.snapshot())) == {"npcs", "players", "total"}


@given(
    moves=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.floats(0, 30))),
    most=st.integers(1, 5),
)
def test_no_minute_has_more_than_twice_its_turns(
    moves: list[tuple[str, str, float]], most: int
) -> None:
    """A burst and what comes back meanwhile; refusals book nothing."""
    clock = Clock()
    kept = budgets(clock, player={"turns_per_minute": most})
    begun: dict[str, list[float]] = {"a": [], "b": []}
    for player, npc, pause in moves:
        clock.now += pause
        if refusal(kept, npc, player) is None:
            kept.turn(npc, player)
            begun[player].append(clock.now)
    for times in begun.values():
        for first in times:
            assert sum(first <= other < first + 60 for other in times) <= 2 * most


async def test_a_line_over_budget_is_refused_and_nobody_hears_it(tmp_path: Path) -> None:
    spending = {"player": {"turns_per_minute": 2}, "npc": {"tokens_per_day": 10_000}}
    async with serving(tmp_path, ["Yes."], budgets=spending) as server:
        ann, bob = await Player.enter(server, "ann"), await Player.enter(server, "bob")
        for _ in range(2):
            assert (await ann.hear())["text"] == "Yes."
        refused = await ann.say("A third?")
        assert refused["t"] == "error"
        assert refused["d"]["code"] == "over_budget"
        assert 0 < refused["d"]["retry_ms"] <= 30_000
        assert not refused["d"]["fatal"]
        assert (await bob.hear())["text"] == "Yes."
        await ann.quiet()
        gauges = server.gauges()
        assert gauges["over_budget_player"] == 1
        # Scene and persona were computed before; each turn costs its own part and its reply.
        assert 3 * len("Yes.") < gauges["budget_tokens_today"] < 600
        assert sum(m["t"] == "player.said" for m in ann.log) == 3


async def test_what_npcs_think_in_all_running_scenes_of_a_pack_is_on_one_account(
    tmp_path: Path,
) -> None:
    spending = {"npc": {"tokens_per_day": 10}}
    async with serving(tmp_path, ["Yes."], pack={"id": "inn.north"}, budgets=spending) as server:
        server.purse_of("inn.north.7", "mira").pay("ann", 10)  # an instance
        assert not server.purse_of("inn.north", "mira").allows("bob")
        assert server.purse_of("inn.north", "harn").allows("ann")
        assert server.purse_of("inn.northern", "mira").allows("ann")  # a pack that is gone
        ann = await Player.enter(server, scene="inn.north")
        assert (await ann.say())["d"]["code"] == "over_budget"


async def test_what_a_reply_costs_is_over_the_budget_only_for_the_next(tmp_path: Path) -> None:
    spending = {"npc": {"tokens_per_day": 1}}
    async with serving(tmp_path, ["Yes."], budgets=spending) as server:
        ann = await Player.enter(server)
        assert (await ann.hear())["status"] == "completed"
        refused = (await ann.say())["d"]
        assert (refused["code"], refused["limit"]) == ("over_budget", 1)
        assert (await ann.hear(npc="harn"))["status"] == "completed"
