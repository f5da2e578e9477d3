"""Who may play: keys and signed tokens at the game port.

A key is for a game's own server or a tool: whoever holds it is trusted to say who the player is. A
token is for a player: its signature says who that is, for how long, and in which scenes (RFC 7519;
what is demanded of it follows RFC 8725).
"""

import ssl
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
import msgspec
from jwt.algorithms import get_default_algorithms

from engine.libraries import how_to_install
from gameserver.commands import Auth
from gameserver.keys import Keys
from gameserver.protocol import Close, Code, Refusal
from gameserver.settings import AuthSettings, JwtKey, SettingsError, TlsSettings

#: What this machine is called by those on it.
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
#: Fewer bytes than the hash has can be found by trying (RFC 7518, 3.2).
_LEAST_HMAC_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
_REQUIRED: Final = ["iss", "aud", "exp", "sub"]
#: Longest token that is looked at.
_MOST_CHARS: Final = 4096


def encryption(settings: TlsSettings) -> ssl.SSLContext:
    """What encrypts the game port.

    Raises:
        SettingsError: the files cannot be read, or do not belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    files = [str(Path(name).expanduser()) for name in (settings.certificate, settings.key)]
    try:
        context.load_cert_chain(*files)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"tls: cannot use {' with '.join(files)}: {error}") from error
    return context


@dataclass(frozen=True, slots=True)
class Pass:
    """What a client may do.

    Attributes:
        holder: of the key or token, for logs.
        player: whom it may play; None: anybody.
        scenes: where; None: everywhere.
        any_event: whether it may raise world events that scene files do not list.
        expires: wall clock, in seconds; None: never.
        tenant: whose player it is; None: the house's.
    """

    holder: str
    player: str | None = None
    scenes: frozenset[str] | None = None
    any_event: bool = False
    expires: float | None = None
    tenant: str | None = None

    def may_enter(self, scene: str) -> bool:
        """Whether it is for that scene, if that is its tenant's."""
        return self.scenes is None or scene in self.scenes


class _Claims(msgspec.Struct, frozen=True):
    """What we read of a token whose signature is right."""

    sub: str
    exp: float
    scenes: list[str] | None = None


class Access:
    """Admits clients. Without keys and token settings everybody is admitted.

    Raises:
        SettingsError: a key cannot be read, or is too weak.
    """

    def __init__(self, settings: AuthSettings, tenants: Collection[str] = ()) -> None:
        self._keys = Keys.load(settings.keys_file, settings.keys_variable, "auth", tenants)
        self._tenants = tenants
        for key in settings.jwt.keys if settings.jwt else ():
            if key.tenant is not None and key.tenant not in tenants:
                raise SettingsError(f"auth.jwt.keys: there is no tenant {key.tenant}")
        self._jwt = settings.jwt
        self._signers: Mapping[str | None, tuple[JwtKey, Any]] = (
            {key.kid: (key, _signer(key)) for key in settings.jwt.keys} if settings.jwt else {}
        )

    @property
    def open(self) -> bool:
        """Whether nobody is asked for anything."""
        return not self._keys and self._jwt is None

    def admit(self, auth: Auth | None, authorization: str | None, player: str) -> Pass:
        """Judge the credential of who wants to be `player`.

        Args:
            auth: of the message, if it has any.
            authorization: the header of the upgrade, for clients that can set one.

        Raises:
            Refusal: `auth_failed`, fatal; or `forbidden`, a good credential for somebody else.
        """
        kind, token = _credential(auth, authorization)
        if self.open:
            if kind != "none":
                raise _failed("this server knows no keys: come without one")
            return Pass(player)
        if kind == "none" or not token:
            raise _failed("this server wants a key or a token, in identify or as a Bearer header")
        if len(token) > _MOST_CHARS or not token.isascii():
            raise _failed("no credential looks like that")
        found = self._by_token(token) if _looks_signed(kind, token) else self._by_key(token)
        if found.player not in (None, player):
            raise Refusal(Code.FORBIDDEN, "this token is for another player", close=Close.FORBIDDEN)
        return found

    def _by_key(self, key: str) -> Pass:
        known = self._keys.find(key)
        if known is None or "play" not in known.scopes:
            raise _failed("this key is not known here, or not for playing")
        return Pass(known.name, any_event="events" in known.scopes, tenant=known.tenant)

    def _by_token(self, token: str) -> Pass:
        settings = self._jwt
        if settings is None:
            raise _failed("this server knows no tokens")
        try:
            signer, key = self._signers[jwt.get_unverified_header(token).get("kid")]
            claims = jwt.decode(
                token,
                key,
                algorithms=[signer.algorithm],
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=settings.leeway_s,
                options={"require": _REQUIRED},
            )
            found = msgspec.convert(claims, _Claims)
        except KeyError:
            raise _failed("this token names no key of ours") from None
        except (jwt.PyJWTError, msgspec.ValidationError) as error:
            # What is wrong is said, what was sent is not.
            raise _failed(f"this token is not valid: {type(error).__name__}") from None
        if found.exp - time.time() > settings.longest_s + settings.leeway_s:
            raise _failed(f"this token lives longer than {settings.longest_s:.0f} s")
        scenes = None if found.scenes is None else frozenset(found.scenes)
        claimed = claims.get(settings.tenant_claim) if settings.tenant_claim else None
        tenant = self._tenant(signer, claimed)
        return Pass(found.sub, found.sub, scenes, expires=found.exp, tenant=tenant)

    def _tenant(self, signer: JwtKey, claimed: object) -> str | None:
        """Whose player a token is for, by its key or by its claim; they must not contradict."""
        tenant = signer.tenant if claimed is None else claimed
        if tenant is None:
            return None
        if not isinstance(tenant, str) or tenant not in self._tenants:
            raise _failed("this token is of no tenant here")
        if signer.tenant not in (None, tenant):
            raise _failed("this token's key is another tenant's")
        return tenant


def _credential(auth: Auth | None, authorization: str | None) -> tuple[str, str]:
    """Kind and token; those of the message win over the header."""
    if auth is not None and auth.kind not in (None, "none"):
        return auth.kind or "none", auth.token or ""
    scheme, _, token = (authorization or "").partition(" ")
    return ("bearer", token.strip()) if scheme.lower() == "bearer" else ("none", "")


def _looks_signed(kind: str, token: str) -> bool:
    return kind == "jwt" or (kind == "bearer" and token.count(".") == 2)


def _failed(why: str) -> Refusal:
    return Refusal(Code.AUTH_FAILED, why, close=Close.AUTH_FAILED)


def _signer(key: JwtKey) -> Any:
    """A key, ready to check signatures."""
    path = Path(key.file).expanduser()
    try:
        data = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"auth.jwt.keys: cannot read {path}: {error}") from error
    least = _LEAST_HMAC_BYTES.get(key.algorithm, 0)
    if len(data) < least:
        raise SettingsError(f"auth.jwt.keys: {path} has fewer than {least} bytes: take random ones")
    known = get_default_algorithms()
    if key.algorithm not in known:
        raise SettingsError(
            f"auth.jwt.keys: {key.algorithm} needs another library: "
            + how_to_install("troupe-npc[auth]")
        )
    try:
        return known[key.algorithm].prepare_key(data)
    except (ValueError, TypeError, jwt.PyJWTError) as error:
        raise SettingsError(
            f"auth.jwt.keys: {path} is no key for {key.algorithm}: {error}"
        ) from error
