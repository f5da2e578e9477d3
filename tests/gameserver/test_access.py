"""Who may play is said by keys and signed tokens; nobody gets further than theirs allow."""

import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from websockets.asyncio.client import connect

from gameserver.access import Access, encryption
from gameserver.commands import Auth
from gameserver.game import GameServer
from gameserver.keys import key_line, new_key
from gameserver.protocol import Refusal
from gameserver.settings import AuthSettings, JwtKey, JwtSettings, SettingsError, TlsSettings
from gameserver.visitor import TalkError, Visitor
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE, serving

SECRET = "0123456789abcdef0123456789abcdef"
KEY, TOOL = new_key(), new_key()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    lines = [key_line("studio", KEY), key_line("director", TOOL, {"play", "events"})]
    lines.append(key_line("bookkeeper", "tr-only-for-the-api", {"api"}))
    (tmp_path / "keys").write_text("# who may play\n" + "\n".join(lines) + "\n")
    return tmp_path


def settings(files: Path, **changes: Any) -> AuthSettings:
    key = JwtKey(algorithm="HS256", file=str(files / "secret"))
    tokens = JwtSettings(issuer="studio", audience="troupe", keys=(key,))
    return AuthSettings(**{"keys_file": str(files / "keys"), "jwt": tokens, **changes})


@pytest.fixture
async def guarded(files: Path) -> AsyncIterator[GameServer]:
    auth = {
        "keys_file": str(files / "keys"),
        "jwt": {
            "issuer": "studio",
            "audience": "troupe",
            "keys": [{"algorithm": "HS256", "file": str(files / "secret")}],
        },
        "refresh_s": 0.0,
    }
    sweep = {"ping_interval_s": 0.2, "ping_timeout_s": 20.0}
    async with serving(files, ["Welcome."], auth=auth, guards=sweep) as server:
        yield server


def token(secret: str = SECRET, algorithm: str = "HS256", **changes: Any) -> str:
    """A good token of Ann's, changed as asked; None leaves a claim out."""
    claims = {"iss": "studio", "aud": "troupe", "sub": "ann", "exp": time.time() + 600, **changes}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, secret, algorithm)


def refused(access: Access, auth: Auth | None, header: str | None = None, who: str = "ann") -> str:
    with pytest.raises(Refusal) as caught:
        access.admit(auth, header, who)
    assert caught.value.close is not None
    return f"{caught.value.code}: {caught.value.msg}"


def test_without_settings_everybody_is_admitted_and_keys_mean_nothing() -> None:
    access = Access(AuthSettings())
    assert access.open
    assert access.admit(None, None, "ann").scenes is None
    assert "knows no keys" in refused(access, Auth("key", KEY))


def test_keys_say_who_holds_them_and_may_play_anybody(files: Path) -> None:
    access = Access(settings(files))
    for auth, header in ((Auth("key", KEY), None), (None, f"Bearer {KEY}")):
        admitted = access.admit(auth, header, "anybody")
        assert (admitted.holder, admitted.player, admitted.any_event) == ("studio", None, False)
    assert access.admit(Auth("key", TOOL), None, "ann").any_event
    assert "not for playing" in refused(access, Auth("key", "tr-only-for-the-api"))
    assert "auth_failed" in refused(access, Auth("key", new_key()))
    assert "wants a key" in refused(access, Auth("none"))
    assert "wants a key" in refused(access, None, "Basic YW5uOmFubg==")


def test_a_token_is_for_its_player_and_its_scenes(files: Path) -> None:
    access = Access(settings(files))
    found = access.admit(Auth("jwt", token(scenes=["tavern"])), None, "ann")
    assert found.player == "ann" and found.scenes == {"tavern"} and found.expires
    assert access.admit(None, f"Bearer {token()}", "ann").scenes is None
    assert refused(access, Auth("jwt", token()), who="bob").startswith("forbidden")


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "somebody"},
        {"aud": "elsewhere"},
        {"exp": 1.0},
        {"exp": None},
        {"sub": None},
        {"sub": 7},
        {"iss": None},
        {"aud": None},
        {"exp": "soon"},
        {"scenes": "tavern"},
        {"nbf": 4e9},
        {"exp": time.time() + 1e7},
        {"secret": "f" * 32},
        {"algorithm": "HS512", "secret": SECRET * 2},
    ],
)
def test_tokens_that_lack_anything_are_refused(files: Path, changes: dict[str, Any]) -> None:
    try:
        made = token(**changes)
    except (TypeError, jwt.PyJWTError):
        pytest.skip("this library does not even sign that")
    assert "auth_failed" in refused(Access(settings(files)), Auth("jwt", made))


def test_unsigned_and_broken_tokens_are_refused(files: Path) -> None:
    access = Access(settings(files))
    good = token()
    unsigned = jwt.encode({"sub": "ann"}, None, "none")  # type: ignore[arg-type]
    for bad in (unsigned, good[:-2], good.replace(".", "", 1), "a.b.c", "..", "\ud800", "x" * 9999):
        assert "auth_failed" in refused(access, Auth("jwt", bad))


def test_keys_are_chosen_by_name_and_have_one_algorithm(files: Path) -> None:
    other = files / "other"
    other.write_text("g" * 64)
    keys = (
        JwtKey(kid="old", algorithm="HS256", file=str(files / "secret")),
        JwtKey(kid="new", algorithm="HS512", file=str(other)),
    )
    access = Access(settings(files, jwt=JwtSettings(issuer="studio", audience="troupe", keys=keys)))
    claims = {"iss": "studio", "aud": "troupe", "sub": "ann", "exp": time.time() + 60}
    for kid, secret, algorithm, good in (
        ("old", SECRET, "HS256", True),
        ("new", "g" * 64, "HS512", True),
        ("new", "g" * 64, "HS256", False),
        ("gone", SECRET, "HS256", False),
    ):
        made = jwt.encode(claims, secret, algorithm, headers={"kid": kid})
        if good:
            assert access.admit(Auth("jwt", made), None, "ann").holder == "ann"
        else:
            assert "auth_failed" in refused(access, Auth("jwt", made))


@pytest.mark.parametrize(
    ("algorithm", "content", "reason"),
    [("HS256", "short", "fewer than 32 bytes"), ("RS256", "no key at all", "no key for RS256")],
)
def test_weak_and_wrong_keys_are_refused_at_the_start(
    tmp_path: Path, algorithm: Any, content: str, reason: str
) -> None:
    file = tmp_path / "k"
    file.write_text(content)
    key = JwtKey(algorithm=algorithm, file=str(file))
    with pytest.raises(SettingsError, match=reason):
        Access(AuthSettings(jwt=JwtSettings(issuer="i", audience="a", keys=(key,))))


def test_lines_of_a_key_file_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(key_line("ann", KEY) + " fly\n")
    with pytest.raises(SettingsError, match=r"line 1: .*scopes of api, events, play"):
        Access(AuthSettings(keys_file=str(file)))


async def test_who_has_no_credential_is_turned_away(guarded: GameServer) -> None:
    player = await Player.dial(guarded)
    await player.send("identify", {"player": "ann"})
    assert await player.closed() == 4401
    other = await Player.dial(guarded, "bob")
    await other.send("identify", {"player": "bob", "auth": {"kind": "jwt", "token": token()}})
    assert await other.closed() == 4403


async def test_a_stolen_resume_token_alone_is_useless(guarded: GameServer) -> None:
    ann = await Player.dial(guarded)
    welcome = (await ann.identify(auth={"kind": "jwt", "token": token()}))["d"]
    resume = {"session": welcome["session"], "token": welcome["resume_token"]}
    thief = await Player.dial(guarded)
    await thief.send("identify", {"player": "ann", "resume": resume})
    assert await thief.closed() == 4401
    # The rightful player's session and its token are as they were.
    back = await Player.dial(guarded)
    again = await back.identify(auth={"kind": "jwt", "token": token()}, resume=resume)
    assert again["d"]["resumed"] is True


async def test_scenes_of_a_token_are_the_only_ones(guarded: GameServer) -> None:
    ann = await Player.dial(guarded)
    welcome = await ann.identify(auth={"kind": "jwt", "token": token(scenes=["elsewhere"])})
    assert welcome["d"]["scenes"] == []
    answer = await ann.ask("scene.join", {"scene": SCENE})
    assert (answer["t"], answer["d"]["code"]) == ("error", "forbidden")


async def test_tools_raise_any_event_and_players_only_those_of_the_scene(
    guarded: GameServer,
) -> None:
    for key, kind in ((TOOL, "ack"), (KEY, "error")):
        player = await Player.dial(guarded)
        await player.identify(auth={"kind": "key", "token": key})
        player.stream = (await player.ask("scene.join", {"scene": SCENE}))["st"]
        assert (await player.ask("world.event", {"name": "dragon.lands"}))["t"] == kind


async def test_a_token_that_expires_is_asked_for_again(guarded: GameServer) -> None:
    ann = await Player.dial(guarded)
    # Within the leeway for clocks that differ, and yet past.
    await ann.identify(auth={"kind": "jwt", "token": token(exp=time.time() - 5)})
    assert await ann.closed() == 4401


async def test_a_new_token_lets_a_player_go_on(files: Path) -> None:
    auth = {
        "jwt": {
            "issuer": "studio",
            "audience": "troupe",
            "keys": [{"algorithm": "HS256", "file": str(files / "secret")}],
        }
    }
    quick = {"ping_interval_s": 0.2, "ping_timeout_s": 20.0}
    async with serving(files, ["Welcome."], auth=auth, guards=quick) as server:
        ann = await Player.dial(server)
        await ann.identify(auth={"kind": "jwt", "token": token(exp=time.time() - 5)})
        notice = await ann.get("notice", code="auth_expired")
        assert notice["d"]["data"] == {"refresh_ms": 60_000}
        fresh = {"auth": {"kind": "jwt", "token": token()}}
        assert (await ann.ask("auth.refresh", fresh))["t"] == "ack"
        assert (await ann.ask("heartbeat"))["t"] == "heartbeat.ack"
        await ann.send("auth.refresh", {"auth": {"kind": "jwt", "token": token(sub="bob")}})
        assert await ann.closed() == 4403


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
        f"-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    )
    try:
        subprocess.run(command.split(), capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl makes no certificate here")
    return certificate, key


async def test_the_game_port_can_be_encrypted(files: Path, pair: tuple[Path, Path]) -> None:
    certificate, key = pair
    tls = {"certificate": str(certificate), "key": str(key)}
    async with serving(files, ["Welcome."], tls=tls) as server:
        trusting = ssl.create_default_context(cafile=str(certificate))
        url = f"wss://localhost:{server.port}/v1/ws"
        async with connect(url, ssl=trusting, subprotocols=["npc.v1.json"]) as socket:  # type: ignore[list-item]
            assert '"t":"hello"' in str(await socket.recv())
    with pytest.raises(SettingsError, match="tls: cannot use"):
        encryption(TlsSettings(certificate=str(key), key=str(certificate)))


async def test_a_terminal_shows_its_key(guarded: GameServer) -> None:
    url = f"ws://127.0.0.1:{guarded.port}"
    async with Visitor.connected(url, "Ann", KEY) as visitor:
        assert visitor.scenes
    with pytest.raises(TalkError, match="wants a key"):
        async with Visitor.connected(url, "Ann"):
            pass
