"""A client is where its socket ends, or where a trusted proxy says: nobody else is believed, and
nothing that a client writes changes what the proxy has written behind it.
"""

import asyncio
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gameserver.addresses import Networks, Proxies, contains, neighbourhood
from gameserver.game import GameServer
from gameserver.settings import Settings, SettingsError
from tests.gameserver.player import Player
from tests.gameserver.stage import serving

PROXY, CLIENT = "10.0.0.1", "203.0.113.9"
PROXIES = Proxies(["10.0.0.0/8", "fd00::/8"])
#: What the proxy writes at the end, whatever came before it.
words = st.lists(st.text(st.characters(codec="latin-1"), max_size=60), max_size=8)
addresses = st.ip_addresses().map(str)


@given(st.one_of(addresses, st.text(max_size=20)), st.one_of(words, st.lists(addresses)))
def test_who_is_no_trusted_proxy_is_where_the_socket_ends(peer: str, said: list[str]) -> None:
    for proxies in (Proxies([]), Proxies(["192.0.2.7/32"])):
        if peer in ("192.0.2.7", "::ffff:192.0.2.7"):
            continue
        assert proxies.client(peer, said) == proxies.client(peer, [])


@given(words, st.ip_addresses())
def test_what_a_client_writes_changes_nothing(spoofed: list[str], client: Any) -> None:
    """The proxy appends; whatever stands before that is the client's own."""
    plain = PROXIES.client(PROXY, [str(client)])
    if ip_address(plain) in Networks(["10.0.0.0/8", "fd00::/8"]):
        return  # one that is believed itself
    assert PROXIES.client(PROXY, [", ".join([*spoofed, str(client)])]) == plain
    assert PROXIES.client(PROXY, [*spoofed, str(client)]) == plain


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([], PROXY),
        ([""], PROXY),
        ([CLIENT], CLIENT),
        ([f"198.51.100.1, {CLIENT}"], CLIENT),
        (["198.51.100.1", CLIENT], CLIENT),
        ([f"198.51.100.1,{CLIENT} , 10.7.7.7,10.8.8.8"], CLIENT),
        (["10.7.7.7, 10.8.8.8"], "10.7.7.7"),
        ([f"{CLIENT}:4711"], CLIENT),
        (["2001:db8::1"], "2001:db8::1"),
        (["[2001:db8::1]"], "2001:db8::1"),
        (["[2001:DB8:0::1]:4711"], "2001:db8::1"),
        ([f"{CLIENT}, fd00::5"], CLIENT),
        ([f"::ffff:{CLIENT}"], CLIENT),
        ([f"[::ffff:{CLIENT}]:80"], CLIENT),
        ([f"{CLIENT}, ::ffff:10.0.0.9"], CLIENT),
        (["fe80::1%eth0"], "fe80::1"),
        # What the proxy wrote is no address: then its own is all that is known.
        (["unknown"], PROXY),
        ([f"{CLIENT}, unknown, 10.0.0.2"], PROXY),
        ([f"{CLIENT},"], PROXY),
        ([f"{CLIENT}:"], PROXY),
        ([f"{CLIENT}:80:90"], PROXY),
        ([f"{CLIENT}:123456"], PROXY),
        ([f"{CLIENT}:\u0661"], PROXY),
        (["203.0.113.009"], PROXY),
        (["203.0.113.9/32"], PROXY),
        (["[2001:db8::1"], PROXY),
        (["[2001:db8::1]4711"], PROXY),
        (["[203.0.113.9]:80"], PROXY),
        (["2001:db8::1]:80"], PROXY),
        (['"203.0.113.9"'], PROXY),
        (["3405803785"], PROXY),
        (["localhost"], PROXY),
    ],
)
def test_hops_are_read_from_the_end(said: list[str], found: str) -> None:
    assert PROXIES.client(PROXY, said) == found
    assert PROXIES.client(f"::ffff:{PROXY}", said) == found
    assert Proxies([]).client(PROXY, said) == PROXY


def test_thousands_of_hops_are_not_read() -> None:
    flood = ",".join(["198.51.100.1"] * 50_000)
    assert PROXIES.client(PROXY, [f"{flood}, {CLIENT}"]) == CLIENT
    assert PROXIES.client(PROXY, [flood + "9" * 5000, CLIENT]) == CLIENT
    assert PROXIES.client(PROXY, ["9" * 5000]) == PROXY
    trusted = ",".join(["10.0.0.2"] * 50_000)
    assert PROXIES.client(PROXY, [trusted]) == PROXY  # nobody reads to its beginning


def test_a_host_with_a_whole_network_counts_as_one() -> None:
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff:1") == "2001:db8::/64"
    assert neighbourhood("2001:db8:0:1::1") != neighbourhood("2001:db8::1")
    assert neighbourhood(CLIENT) == CLIENT
    assert neighbourhood("") == ""
    local = Networks(["127.0.0.0/8", "::1/128"])
    assert contains(local, "127.3.4.5") and contains(local, "::1") and contains(local, "")
    assert contains(local, "::ffff:127.0.0.1")
    assert not contains(local, CLIENT) and not contains(local, "2001:db8::1")


@pytest.mark.parametrize("field", ["trusted_proxies", "shared_networks"])
@pytest.mark.parametrize("network", ["10.0.0.1/8", "proxy", "", "10.0.0.0/33"])
def test_what_is_no_network_is_told_at_the_start(tmp_path: Path, field: str, network: str) -> None:
    file = tmp_path / "troupe.yaml"
    file.write_text(f"guards: {{{field}: ['{network}']}}")
    with pytest.raises(SettingsError, match=rf"troupe\.yaml: guards\.{field}: "):
        Settings.load(file)


async def come_from(server: GameServer, header: str, name: str) -> int | None:
    """Begin a session as a proxy passes it on; the close code if it is refused."""
    player = await Player.dial(server, name, additional_headers={"X-Forwarded-For": header})
    welcome = asyncio.create_task(player.identify())
    closed = asyncio.create_task(player.socket.wait_closed())
    await asyncio.wait({welcome, closed}, return_when=asyncio.FIRST_COMPLETED)
    for task in (welcome, closed):
        task.cancel()
    await asyncio.gather(welcome, closed, return_exceptions=True)
    return player.socket.close_code


async def test_limits_count_the_clients_behind_a_proxy(tmp_path: Path) -> None:
    guards = {"trusted_proxies": ["127.0.0.1/32"]}
    async with serving(tmp_path, ["x"], guards=guards, limits={"sessions_per_ip": 1}) as server:
        assert await come_from(server, CLIENT, "ann") is None
        assert await come_from(server, f"198.51.100.1, {CLIENT}", "bob") == 4429
        assert await come_from(server, "198.51.100.1", "cid") is None
        assert await come_from(server, "2001:db8::1", "dee") is None
        assert await come_from(server, "[2001:db8::2]:99", "eve") == 4429


async def test_without_trusted_proxies_the_header_is_nothing(tmp_path: Path) -> None:
    guards = {"shared_networks": []}
    async with serving(tmp_path, ["x"], guards=guards, limits={"sessions_per_ip": 1}) as server:
        assert await come_from(server, CLIENT, "ann") is None
        assert await come_from(server, "198.51.100.1", "bob") == 4429
