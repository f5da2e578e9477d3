"""Clients of one address have limits together; one of them that floods uses up no more than its
own, and other addresses do not notice.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gameserver.game import GameServer
from gameserver.households import _MOST, UNLIMITED, Households
from gameserver.settings import Guards, Limits
from tests.gameserver.player import Player
from tests.gameserver.stage import serving

HERE, THERE = "203.0.113.9", "198.51.100.1"


def at(monkeypatch: pytest.MonkeyPatch, moment: float) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: moment)


def test_an_address_has_its_own_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 100.0)
    limits = Limits(says_per_s_per_ip=1.0, says_burst_per_ip=2)
    known = Households(limits, Guards())
    assert [known.of(HERE).say() for _ in range(2)] == [0.0, 0.0]
    assert known.of(HERE).say() == pytest.approx(1.0)
    assert known.of(THERE).say() == 0.0
    assert known.of(HERE).identify() == known.of(HERE).message(100) == 0.0
    at(monkeypatch, 101.0)
    assert known.of(HERE).say() == 0.0


def test_a_message_costs_its_bytes_too() -> None:
    one = Households(Limits(bytes_burst_per_ip=1000, bytes_per_s_per_ip=1.0), Guards()).of(HERE)
    assert one.message(900) == 0.0
    assert one.message(200) > 50


def test_an_ipv6_host_is_one_whatever_address_it_takes() -> None:
    known = Households(Limits(), Guards())
    assert known.of("2001:db8::1") is known.of("2001:db8::2")
    assert known.of("2001:db8::1") is not known.of("2001:db8:0:1::1")


def test_shared_networks_have_no_limits_together() -> None:
    known = Households(Limits(says_burst_per_ip=1), Guards(shared_networks=("198.51.100.0/24",)))
    assert known.of(THERE) is UNLIMITED and known.of("") is UNLIMITED
    assert [known.of(THERE).say() for _ in range(100)] == [0.0] * 100
    assert known.of(THERE).message(10**9) == known.of(THERE).identify() == 0.0
    assert known.of("127.0.0.1") is not UNLIMITED


def test_so_many_addresses_are_known() -> None:
    known = Households(Limits(), Guards())
    first, second = known.of(HERE), known.of(THERE)
    for n in range(_MOST - 2):
        known.of(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
    assert known.of(HERE) is first
    known.of("192.0.2.1")
    assert known.of(HERE) is first
    assert known.of(THERE) is not second


@asynccontextmanager
async def behind_a_proxy(folder: Path, **limits: Any) -> AsyncIterator[GameServer]:
    guards = {"trusted_proxies": ["127.0.0.1/32"]}
    async with serving(folder, ["Yes."], guards=guards, limits=limits) as server:
        yield server


async def come_in(server: GameServer, name: str, address: str = HERE) -> Player:
    player = await Player.dial(server, name, additional_headers={"X-Forwarded-For": address})
    await player.identify()
    player.stream = (await player.ask("scene.join", {"scene": "inn"}))["st"]
    return player


async def test_lines_of_many_names_from_one_address_share_a_bucket(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path, says_burst_per_ip=2, says_per_s_per_ip=0.001) as server:
        ann, bob = await come_in(server, "ann"), await come_in(server, "bob")
        assert (await ann.say(npc=""))["t"] == (await bob.say(npc=""))["t"] == "say.accepted"
        refused = (await bob.say(npc=""))["d"]
        assert (refused["code"], refused["fatal"]) == ("rate_limited", False)
        assert refused["retry_ms"] > 1000
        assert (await ann.say(npc=""))["d"]["code"] == "rate_limited"
        cid = await come_in(server, "cid", THERE)
        assert (await cid.say(npc=""))["t"] == "say.accepted"


async def test_one_that_floods_uses_up_its_own_only(tmp_path: Path) -> None:
    limits = {"messages_per_s": 0.001, "messages_burst": 6, "messages_burst_per_ip": 20}
    async with behind_a_proxy(tmp_path, messages_per_s_per_ip=0.001, **limits) as server:
        flood, quiet = await come_in(server, "ann"), await come_in(server, "bob")
        codes = [(await flood.ask("observe", {"text": "x"})).get("t") for _ in range(50)]
        assert codes.count("ack") == 4 and codes.count("error") == 46
        # 20 less 6 of the one and 2 of the other are left.
        assert (await quiet.ask("observe", {"text": "x"}))["t"] == "ack"


async def test_messages_of_one_address_are_limited_together(tmp_path: Path) -> None:
    limits = {"messages_burst_per_ip": 6, "messages_per_s_per_ip": 0.001}
    async with behind_a_proxy(tmp_path, **limits) as server:
        ann, bob = await come_in(server, "ann"), await come_in(server, "bob")
        assert (await ann.ask("observe", {"text": "x"}))["t"] == "ack"
        assert (await ann.ask("observe", {"text": "x"}))["t"] == "ack"
        assert (await bob.ask("observe", {"text": "x"}))["d"]["code"] == "rate_limited"


async def test_who_comes_too_often_from_one_address_is_kept_waiting(tmp_path: Path) -> None:
    limits = {"identifies_burst_per_ip": 2, "identifies_per_s_per_ip": 0.001}
    async with behind_a_proxy(tmp_path, **limits) as server:
        await come_in(server, "ann")
        await come_in(server, "bob")
        third = await Player.dial(server, "cid", additional_headers={"X-Forwarded-For": HERE})
        await third.send("identify", {"player": "cid", "auth": {"kind": "none"}})
        refused = (await third.get("error"))["d"]
        assert (refused["code"], refused["fatal"]) == ("rate_limited", True)
        assert refused["retry_ms"] > 1000
        assert await third.closed() == 4429
        await come_in(server, "dee", THERE)
