"""Cases 14 and 17 to 20: who is who, and for how long."""

import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from gameserver.access import Access
from gameserver.commands import Auth
from gameserver.game import GameServer
from gameserver.settings import AuthSettings, JwtKey, JwtSettings
from tests.gameserver.cases.oracle import unharmed
from tests.gameserver.player import Player
from tests.gameserver.raw import RawClient, upgrade_request
from tests.gameserver.stage import serving, until
from tests.gameserver.test_access import SECRET, refused, token
from tests.gameserver.wanderer import Wanderer


async def test_whoever_breaks_the_rules_of_identify_leaves_no_session_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closes = {f"closes_{code}": 1 for code in (4400, 4401, 4408, 4426)}
    guards = {"identify_timeout_s": 0.3}
    async with (
        serving(tmp_path, ["The bridge is gone."], guards=guards) as server,
        unharmed(server, moved=closes, caplog=caplog, bad_clients=0),
    ):
        for wish, code in (
            ({"need": ["telepathy"]}, 4426),
            ({"proto": {"major": 2}}, 4426),
            ({"auth": {"kind": "ticket", "token": "x"}}, 4401),
        ):
            player = await Player.dial(server, "eve")
            await player.send("identify", {"player": "eve", **wish})
            assert (await player.get("error"))["d"]["fatal"] is True
            assert await player.closed() == code
            assert server.gauges()["sessions"] == 1
        twice = await Player.enter(server, "eve")
        for _ in range(2):
            await twice.send("identify", {"player": "eve"})
        assert await twice.closed() == 4400
        silent = await Player.dial(server, "eve")
        assert await silent.closed() == 4408
        assert server.gauges()["sessions"] == 1


@pytest.fixture
def access(tmp_path: Path) -> Access:
    """A server's view of tokens signed with `SECRET`."""
    (tmp_path / "secret").write_text(SECRET)
    key = JwtKey(algorithm="HS256", file=str(tmp_path / "secret"))
    return Access(AuthSettings(jwt=JwtSettings(issuer="studio", audience="troupe", keys=(key,))))


@pytest.mark.parametrize(
    ("offsets", "admitted"),
    [
        ({"exp": -20}, True),
        ({"exp": -40}, False),
        ({"exp": -300}, False),
        ({"nbf": 20}, True),
        ({"nbf": 40}, False),
        # The server's clock was set back by an hour after the token had been issued.
        ({"iat": 3600, "exp": 4200}, False),
        ({"nbf": 3600, "exp": 4200}, False),
    ],
)
def test_clocks_may_be_half_a_minute_apart(
    access: Access, offsets: dict[str, int], admitted: bool
) -> None:
    auth = Auth("jwt", token(**{name: time.time() + by for name, by in offsets.items()}))
    if admitted:
        assert access.admit(auth, None, "ann").player == "ann"
    else:
        assert refused(access, auth).startswith("auth_failed")


def test_a_public_key_does_not_pass_for_a_shared_secret(tmp_path: Path) -> None:
    """Signed with HS256, and as its secret what everybody may know: the key that checks RS256."""
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    private = rsa.generate_private_key(65537, 2048)
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(public)
    key = JwtKey(algorithm="RS256", file=str(tmp_path / "public.pem"))
    access = Access(AuthSettings(jwt=JwtSettings(issuer="studio", audience="troupe", keys=(key,))))
    claims = {"iss": "studio", "aud": "troupe", "sub": "ann", "exp": time.time() + 60}
    right = jwt.encode(claims, private, "RS256")
    assert access.admit(Auth("jwt", right), None, "ann").player == "ann"
    forged = _signed_with(public, claims)
    assert refused(access, Auth("jwt", forged)).startswith("auth_failed")


def _signed_with(secret: bytes, claims: dict[str, Any]) -> str:
    """A token as an attacker makes it; libraries refuse to sign with what looks like a key."""
    import hashlib
    import hmac
    import json
    from base64 import urlsafe_b64encode

    parts = [
        urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "typ": "JWT"}, claims)
    ]
    mac = hmac.new(secret, b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, urlsafe_b64encode(mac).rstrip(b"=")]).decode()


async def test_tokens_of_any_length_are_refused_and_harm_nobody(
    server: GameServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with unharmed(server, moved={"closes_1009": 1}, caplog=caplog, bad_clients=0):
        for size, code in ((30_000, "too_large"), (5_000, "auth_failed"), (60_000, "too_large")):
            player = await Player.dial(server, "eve")
            await player.send(
                "identify", {"player": "eve", "auth": {"kind": "jwt", "token": "x" * size}}
            )
            assert (await player.get("error"))["d"]["code"] == code
            await player.socket.close()
        client = await RawClient.connect(server)
        client.writer.write(upgrade_request(f"Authorization: Bearer {'x' * 60_000}\r\n"))
        assert (await client.head()).startswith("HTTP/1.1 431")
        client.drop()


async def test_a_hundred_guesses_cost_the_guesser_its_way_in_and_the_owner_nothing(
    server: GameServer, caplog: pytest.LogCaptureFixture
) -> None:
    moved = {"resumes_refused": 100, "closes_4429": 95}
    ann = Wanderer(server, "ann")
    await ann.connect()
    wish = ann.resume_wish()
    ann.drop()
    await until(lambda: server.gauges()["sessions_away"] == 1)
    seat = server._sessions._seats[wish["session"]]
    ends = seat.end
    async with unharmed(server, moved=moved, caplog=caplog, bad_clients=0):
        for number in range(100):
            eve = await Player.dial(server, "eve")
            guess = {**wish, "token": f"guess-{number}"}
            await eve.send("identify", {"player": "eve", "resume": guess})
            if number < 5:
                assert (await eve.get("welcome"))["d"]["resumed"] is False
                await eve.socket.close()
            else:
                assert await eve.closed() == 4429
        assert seat.end is ends, "no attempt touched the timer of the seat"
    await ann.connect()
    assert ann.welcome["resumed"] is True
    ann.drop()
