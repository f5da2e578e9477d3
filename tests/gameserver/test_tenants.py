"""Games on one server know nothing of each other: not their scenes, not their players of the same
name, and one that floods has no more than its share.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gameserver.access import Access, Pass
from gameserver.budgets import Budgets
from gameserver.commands import Auth
from gameserver.diary import read_person
from gameserver.game import GameServer
from gameserver.keys import Keys, key_line
from gameserver.protocol import Refusal
from gameserver.settings import (
    AuthSettings,
    BudgetSettings,
    JwtKey,
    JwtSettings,
    Settings,
    SettingsError,
    TenantSettings,
)
from gameserver.tally import Tally
from gameserver.tenants import Shares, Tenants, account, player_of, tenant_of
from tests.gameserver.player import Message, Player
from tests.gameserver.stage import serving, until, write_pack
from tests.gameserver.test_restart import Crashing

ACME, BOLT, HOUSE = "tr-acme", "tr-bolt", "tr-house"
#: Acme has the inn; bolt has a pack whose id an instance of the inn could have.
TENANTS: dict[str, Any] = {"acme": {"scenes": ["inn"]}, "bolt": {"scenes": ["inn.north"]}}


def key_file(folder: Path) -> str:
    file = folder / "keys"
    lines = [key_line("studio", ACME, tenant="acme"), key_line("studio", BOLT, tenant="bolt")]
    file.write_text("\n".join([*lines, key_line("studio", HOUSE)]))
    return str(file)


@asynccontextmanager
async def shared(
    folder: Path, *, step_ms: float = 1.0, **sections: Any
) -> AsyncIterator[GameServer]:
    """A server of two games and one scene of the house."""
    tenants = {name: {**TENANTS[name], **sections.pop(name, {})} for name in TENANTS}
    auth = {"keys_file": key_file(folder)}
    async with serving(
        folder, ["Yes."], step_ms=step_ms, tenants=tenants, auth=auth, **sections
    ) as server:
        for scene in ("inn.north", "hall"):
            await server._world._cast.open(write_pack(folder / scene, id=scene))
        yield server


async def come_in(server: GameServer, key: str, name: str = "ann", **wish: Any) -> Player:
    player = await Player.dial(server, name)
    await player.identify(auth={"kind": "key", "token": key}, **wish)
    return player


async def enter(server: GameServer, key: str, scene: str, name: str = "ann") -> Player:
    player = await come_in(server, key, name)
    player.stream = (await player.ask("scene.join", {"scene": scene}))["st"]
    return player


def welcome_of(player: Player) -> Message:
    found: Message = next(m["d"] for m in player.log if m["t"] == "welcome")
    return found


# Who belongs to whom


@given(st.from_regex(r"\A[A-Za-z0-9_.-]{1,64}\Z"), st.from_regex(r"\A[A-Za-z0-9_.-]{1,64}\Z"))
def test_accounts_of_two_tenants_are_never_the_same(tenant: str, player: str) -> None:
    name = account(tenant, player)
    assert (tenant_of(name), player_of(name)) == (tenant, player)
    assert account(None, player) == player and tenant_of(player) is None
    assert "/" in name and "/" not in player


def token(secret: str, **claims: Any) -> str:
    usual = {"iss": "accounts", "aud": "troupe", "sub": "ann", "exp": time.time() + 60}
    kid = claims.pop("kid", None)
    return jwt.encode({**usual, **claims}, secret, "HS256", headers={"kid": kid} if kid else None)


def test_keys_and_tokens_say_whose_they_are(tmp_path: Path) -> None:
    common, own = "0" * 32, "1" * 32
    (tmp_path / "common").write_text(common)
    (tmp_path / "own").write_text(own)
    signers = (
        JwtKey(algorithm="HS256", file=str(tmp_path / "common")),
        JwtKey(kid="bolt", algorithm="HS256", file=str(tmp_path / "own"), tenant="bolt"),
    )
    tokens = JwtSettings(issuer="accounts", audience="troupe", keys=signers, tenant_claim="game")
    access = Access(AuthSettings(keys_file=key_file(tmp_path), jwt=tokens), {"acme", "bolt"})

    def tenant(credential: str, kind: str = "jwt") -> str | None:
        return access.admit(Auth(kind, credential), None, "ann").tenant

    assert tenant(ACME, "key") == "acme" and tenant(HOUSE, "key") is None
    assert tenant(token(common, game="acme")) == "acme"
    assert tenant(token(common)) is None
    assert tenant(token(own, kid="bolt")) == tenant(token(own, kid="bolt", game="bolt")) == "bolt"
    for bad in (
        token(common, game="zeta"),
        token(common, game=7),
        token(common, game=""),
        token(own, kid="bolt", game="acme"),
    ):
        with pytest.raises(Refusal) as refused:
            tenant(bad)
        assert refused.value.code == "auth_failed"


def test_a_claim_means_nothing_unless_settings_name_it(tmp_path: Path) -> None:
    (tmp_path / "common").write_text("0" * 32)
    signer = JwtKey(algorithm="HS256", file=str(tmp_path / "common"))
    tokens = JwtSettings(issuer="accounts", audience="troupe", keys=(signer,))
    access = Access(AuthSettings(jwt=tokens), {"acme"})
    assert access.admit(Auth("jwt", token("0" * 32, tenant="acme")), None, "ann").tenant is None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{a: {scenes: [inn]}, b: {scenes: [inn]}}", "inn can belong to one"),
        ("{a: {scenes: [inn, inn]}}", "inn can belong to one"),
        ("{a: {scenes: []}}", "scenes"),
        ("{a/b: {scenes: [inn]}}", "tenants"),
        ("{house: {scenes: [inn]}}", "house is what those are called"),
        ("{a: {scenes: [inn], turns: 7}}", "turns"),
    ],
)
def test_tenants_that_cannot_be_are_told_at_the_start(
    tmp_path: Path, text: str, wrong: str
) -> None:
    file = tmp_path / "troupe.yaml"
    file.write_text(f"auth: {{keys_file: keys}}\ntenants: {text}")
    with pytest.raises(SettingsError, match=wrong):
        Settings.load(file)


def test_tenants_need_credentials_and_credentials_a_tenant_that_is_there(tmp_path: Path) -> None:
    file = tmp_path / "troupe.yaml"
    file.write_text("tenants: {acme: {scenes: [inn]}}")
    with pytest.raises(SettingsError, match="nobody belongs"):
        Settings.load(file)
    with pytest.raises(SettingsError, match="no tenant bolt"):
        Keys.load(key_file(tmp_path), None, tenants={"acme"})
    (tmp_path / "secret").write_text("0" * 32)
    signer = JwtKey(algorithm="HS256", file=str(tmp_path / "secret"), tenant="bolt")
    tokens = JwtSettings(issuer="accounts", audience="troupe", keys=(signer,))
    with pytest.raises(SettingsError, match="no tenant bolt"):
        Access(AuthSettings(jwt=tokens), {"acme"})


def test_a_scene_is_open_to_its_own_tenant_as_far_as_its_pass_goes() -> None:
    tenants = Tenants({"acme": TenantSettings(scenes=("inn", "mill"))})
    assert tenants.admit(Pass("k", tenant="acme"), "inn")
    assert not tenants.admit(Pass("k", tenant="acme", scenes=frozenset({"mill"})), "inn")
    assert not tenants.admit(Pass("k", tenant="acme"), "hall")
    assert not tenants.admit(Pass("k"), "inn") and tenants.admit(Pass("k"), "hall")
    assert not tenants.admit(Pass("k", tenant="zeta"), "inn")  # of a node with other settings


# On the wire


def test_whose_a_running_scene_is_goes_by_the_longest_pack_that_it_may_be_of() -> None:
    tenants = Tenants({name: TenantSettings(**TENANTS[name]) for name in TENANTS})
    packs = ("inn", "hall", "inn.east")  # the last is the house's
    streams = ("inn", "inn.7", "inn.north", "inn.north.7", "inn.east.7", "hall.7")

    def seen(game: str | None, **played: str) -> list[str]:
        remit = tenants.remit(game, packs, {k.replace("_", "."): v for k, v in played.items()})
        return [stream for stream in streams if remit.scene(stream)]

    assert seen("acme") == ["inn", "inn.7"]
    assert seen("bolt") == ["inn.north", "inn.north.7"]
    assert seen("house") == ["inn.east.7", "hall.7"]
    assert seen(None) == [*streams]
    # One that runs is its pack's, whatever packs there are by now.
    assert seen("acme", inn_east_7="inn") == ["inn", "inn.7", "inn.east.7"]
    remit = tenants.remit("acme", packs)
    assert remit.account("acme/ann") and not remit.account("ann")
    assert tenants.remit("house", packs).account("ann")


async def test_each_sees_its_own_scenes_only(tmp_path: Path) -> None:
    async with shared(tmp_path) as server:
        for key, scene in ((ACME, "inn"), (BOLT, "inn.north"), (HOUSE, "hall")):
            player = await come_in(server, key)
            assert [s["id"] for s in welcome_of(player)["scenes"]] == [scene]


async def test_scenes_of_others_are_like_those_that_are_not_there(tmp_path: Path) -> None:
    async with shared(tmp_path) as server:
        await enter(server, BOLT, "inn.north", "bob")
        for key in (ACME, HOUSE):
            spy = await come_in(server, key)
            for kind, body in (("scene.join", {}), ("history.get", {}), ("scene.leave", {})):
                answers = []
                for scene in ("inn.north", "inn.nowhere"):
                    answer = (await spy.ask(kind, {"scene": scene, **body}))["d"]
                    answers.append({**answer, "msg": answer["msg"].replace(scene, "X")})
                assert answers[0] == answers[1]
                assert answers[0]["code"] == "no_scene"
            for kind, body in (("say", {"text": "Hi"}), ("world.event", {"name": "thunder"})):
                answer = await spy.ask(kind, body, st="inn.north")
                assert answer["d"]["code"] == "no_scene"


async def test_an_instance_is_no_way_into_another_pack(tmp_path: Path) -> None:
    """`inn` with the instance `north` is a name of the pack `inn.north`."""
    async with shared(tmp_path) as server:
        acme = await come_in(server, ACME)
        for north in ("north", "north.7"):
            answer = await acme.ask("scene.join", {"scene": "inn", "instance": north})
            assert answer["d"]["code"] == "no_scene"
        await enter(server, BOLT, "inn.north", "bob")
        answer = await acme.ask("scene.join", {"scene": "inn", "instance": "north"})
        assert answer["d"]["code"] == "no_scene"
        joined = await acme.ask("scene.join", {"scene": "inn", "instance": "south"})
        assert joined["t"] == "scene.joined"


async def test_nor_into_one_that_is_in_no_folder_just_now(tmp_path: Path) -> None:
    """Its NPCs' memories are kept by that name."""
    auth = {"keys_file": key_file(tmp_path)}
    async with serving(tmp_path, ["Yes."], tenants=TENANTS, auth=auth) as server:
        acme = await come_in(server, ACME)
        answer = await acme.ask("scene.join", {"scene": "inn", "instance": "north"})
        assert answer["d"]["code"] == "no_scene"


async def test_one_name_in_two_games_is_two_people(tmp_path: Path) -> None:
    limits, spending = {"sessions_per_player": 1}, {"player": {"turns_per_minute": 1}}
    async with shared(tmp_path, limits=limits, budgets=spending) as server:
        acme, bolt = await enter(server, ACME, "inn"), await enter(server, BOLT, "inn.north")
        assert (await acme.hear())["status"] == "completed"
        assert (await acme.say())["d"]["code"] == "over_budget"
        assert (await bolt.hear())["status"] == "completed"
        assert welcome_of(acme)["player"] == welcome_of(bolt)["player"] == "ann"
        assert [m for m in bolt.log if "st" in m and m["st"] == "inn"] == []


async def test_a_session_is_not_resumed_with_another_games_credential(tmp_path: Path) -> None:
    async with shared(tmp_path) as server:
        acme = await enter(server, ACME, "inn")
        mine = welcome_of(acme)
        wish = {"session": mine["session"], "token": mine["resume_token"], "cursors": []}
        acme.socket.transport.abort()
        await until(lambda: server.gauges()["sessions_away"] == 1)
        for key in (BOLT, HOUSE):
            thief = await come_in(server, key, resume=wish)
            assert not welcome_of(thief)["resumed"]
            assert [s["id"] for s in welcome_of(thief)["scenes"]] != ["inn"]
        back = await come_in(server, ACME, resume=wish)
        assert welcome_of(back)["resumed"]


async def test_a_credential_is_not_renewed_with_another_games(tmp_path: Path) -> None:
    async with shared(tmp_path) as server:
        acme = await come_in(server, ACME)
        same = await acme.ask("auth.refresh", {"auth": {"kind": "key", "token": ACME}})
        assert same["t"] == "ack"
        await acme.send("auth.refresh", {"auth": {"kind": "key", "token": BOLT}})
        assert await acme.closed() == 4403


async def test_whose_a_session_is_outlives_the_process(tmp_path: Path) -> None:
    auth = {"keys_file": key_file(tmp_path)}
    node = Crashing(
        tmp_path,
        ["Yes."],
        auth=auth,
        tenants={"acme": {"scenes": ["inn"]}, "bolt": {"scenes": ["den"]}},
    )
    server = await node.start()
    mine = welcome_of(await enter(server, ACME, "inn"))
    page = await node._store.peek(f"session.{mine['session']}", "person")
    assert page is not None and read_person(page).player == "acme/ann"
    await node.crash()
    server = await node.start()
    wish = {"session": mine["session"], "token": mine["resume_token"], "cursors": []}
    assert not welcome_of(await come_in(server, BOLT, resume=wish))["resumed"]
    assert welcome_of(await come_in(server, ACME, resume=wish))["resumed"]
    await node.stop()


# Limits


async def test_sessions_of_a_game_are_limited(tmp_path: Path) -> None:
    async with shared(tmp_path, acme={"sessions": 1}) as server:
        await come_in(server, ACME)
        second = await Player.dial(server, "bob")
        await second.send("identify", {"player": "bob", "auth": {"kind": "key", "token": ACME}})
        refused = (await second.get("error"))["d"]
        assert (refused["code"], refused["limit"]) == ("rate_limited", 1)
        await come_in(server, BOLT, "bob")


async def test_turns_and_tokens_of_a_game_are_limited(tmp_path: Path) -> None:
    async with shared(tmp_path, acme={"turns_per_minute": 1}, bolt={"tokens_per_day": 1}) as server:
        for key, scene in ((ACME, "inn"), (BOLT, "inn.north")):
            ann, bob = await enter(server, key, scene), await enter(server, key, scene, "bob")
            assert (await ann.hear())["status"] == "completed"
            refused = (await bob.say(npc="harn"))["d"]
            assert refused["code"] == "over_budget" and "this game" in refused["msg"]
        hall = await enter(server, HOUSE, "hall")
        assert (await hall.hear())["status"] == "completed"
        assert server.gauges()["over_budget_tenant"] == 2


async def test_turns_at_once_of_a_game_are_limited(tmp_path: Path) -> None:
    async with shared(tmp_path, step_ms=200.0, acme={"turns_at_once": 1}) as server:
        acme, bolt = await enter(server, ACME, "inn"), await enter(server, BOLT, "inn.north")
        assert (await acme.say())["t"] == "say.accepted"
        refused = (await acme.say(npc="harn"))["d"]
        assert (refused["code"], refused["limit"]) == ("busy", 1) and refused["retry_ms"]
        assert (await bolt.say())["t"] == "say.accepted"
        await acme.get("npc.turn.end")
        assert (await acme.say(npc="harn"))["t"] == "say.accepted"


class Turns:
    def __init__(self) -> None:
        self.under_way = 0


def admitted(shares: Shares, tenant: str | None, work: Turns) -> bool:
    try:
        shares.of(tenant).admit(work)
    except Refusal:
        return False
    work.under_way += 1
    return True


def test_a_flood_leaves_the_others_their_share() -> None:
    settings = {name: TenantSettings(scenes=(name,)) for name in ("acme", "bolt")}
    shares, flood, quiet = Shares(settings, 8), Turns(), Turns()
    assert [admitted(shares, "acme", flood) for _ in range(12)] == [True] * 8 + [False] * 4
    assert [admitted(shares, "bolt", quiet) for _ in range(6)] == [True] * 4 + [False] * 2
    flood.under_way -= 1  # one ends: it is over its share, so that is not the flood's
    assert not admitted(shares, "acme", flood)
    flood.under_way = 1
    assert admitted(shares, "acme", flood)


def test_a_game_is_alone_with_what_nobody_else_wants() -> None:
    shares, work = Shares({"acme": TenantSettings(scenes=("a",))}, 8), Turns()
    assert sum(admitted(shares, None, work) for _ in range(20)) == 8
    for _ in range(3):
        end = shares.of("acme").begin_call()
        assert shares.of("acme").under_way == 1
        end()
    assert shares.of("acme").under_way == 0
    work.under_way = 0
    assert shares.of(None).under_way == 0 and not shares.of(None)._busy


def test_without_tenants_nobody_is_counted() -> None:
    shares, work = Shares({}, 1), Turns()
    assert all(admitted(shares, None, work) for _ in range(100))
    assert not shares.of(None)._busy


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.booleans()), max_size=200))
def test_whoever_is_below_its_share_is_always_let_in(moves: list[tuple[str | None, bool]]) -> None:
    settings = {name: TenantSettings(scenes=(name,)) for name in ("a", "b")}
    shares, work = Shares(settings, 9), {name: Turns() for name in ("a", "b", None)}
    for name, begins in moves:
        mine = work[name]
        if not begins:
            mine.under_way = max(mine.under_way - 1, 0)
        elif not admitted(shares, name, mine):
            assert mine.under_way >= 3, "a third of nine is everybody's"
        assert sum(each.under_way for each in work.values()) <= 9 + 2 * 3


def test_books_of_tenants_are_apart_and_outlive_the_process() -> None:
    tenants = {name: TenantSettings(scenes=(name,), tokens_per_day=10) for name in ("acme", "bolt")}
    kept = Budgets(BudgetSettings(), Tally(), tenants=tenants)
    kept.of("acme").spend("acme/mira", "ann", 10)
    after = Budgets(BudgetSettings(), Tally(), tenants=tenants)
    acme, bolt = after.of("acme"), after.of("bolt")
    after.restore(kept.snapshot())
    assert not acme.may_think("acme/harn", "bob") and bolt.may_think("bolt/mira", "ann")
    with pytest.raises(Refusal, match="this game"):
        acme.call("studio")
    bolt.call("studio")
    assert acme.payer("ann") != bolt.payer("ann") != after.payer("ann") == "ann"
