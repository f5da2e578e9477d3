"""Tickets: what lets a player into another node that this one sends it to, once and soon.

A ticket is 256 random bits. Redis has what it allows under a hash of it, of whose it is, and of
what it is for: whoever steals or guesses at one with another name, or for another purpose, finds
nothing, and takes nothing from its owner. It is taken out as it is shown, so it is good once.
"""

import hashlib
import secrets
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import msgspec

from gameserver.access import Pass
from gameserver.commands import Auth, Resume
from gameserver.protocol import Close, Code, Refusal
from gameserver.stores.store import SharedStore, StoreDown
from gameserver.tally import Tally

#: Longest text that is looked at; ours have 43 characters.
_MOST_CHARS = 128


def ticket_of(auth: Auth | None, target: str) -> str | None:
    """The ticket that a client shows: in `identify`, or else in the address it came to; None if it
    shows none, or has another credential.

    Args:
        target: of the upgrade request, with its query.
    """
    if auth is not None and auth.kind not in (None, "none"):
        return (auth.token or "") if auth.kind == "ticket" else None
    shown = parse_qs(urlsplit(target).query, keep_blank_values=True).get("ticket")
    return None if shown is None else shown[-1]


class Tickets:
    """Issues tickets and takes them in."""

    def __init__(self, store: SharedStore, life_s: float, tally: Tally) -> None:
        self._store = store
        self._life_s = life_s
        self._tally = tally

    async def for_scene(self, player: str, scene: str, grant: Pass) -> str:
        """A ticket with which `player` may begin a session for one scene elsewhere, with no other
        rights than those it has here; "" if none can be kept just now.
        """
        scenes = frozenset({scene}) if grant.may_enter(scene) else frozenset[str]()
        return await self._issue(player, "scene", replace(grant, scenes=scenes))

    async def for_session(self, player: str, session: str, grant: Pass) -> str:
        """The same to go on with a session."""
        return await self._issue(player, f"session {session}", grant)

    async def redeem(self, shown: str, player: str, resume: Resume | None) -> Pass:
        """What a ticket allows; it is worth nothing afterwards.

        Raises:
            Refusal: `auth_failed`, fatal, whatever is wrong with it; or `busy`, fatal: it cannot be
                looked at just now.
        """
        purpose = "scene" if resume is None else f"session {resume.session}"
        try:
            found = None
            if len(shown) <= _MOST_CHARS:
                found = await self._store.take(_name(player, purpose, shown))
        except StoreDown as down:
            msg = "tickets cannot be read just now"
            raise Refusal(Code.BUSY, msg, retry_ms=1000, close=Close.OVERLOADED) from down
        if found is None:
            self._tally.count("tickets_refused")
            raise no_such_ticket()
        self._tally.count("tickets_taken")
        return msgspec.msgpack.decode(found, type=Pass)

    async def _issue(self, player: str, purpose: str, grant: Pass) -> str:
        ticket = secrets.token_urlsafe(32)
        rights = msgspec.msgpack.encode(replace(grant, player=player))
        try:
            await self._store.leave(_name(player, purpose, ticket), rights, self._life_s)
        except StoreDown:  # who comes without one shows its own credential
            return ""
        self._tally.count("tickets_issued")
        return ticket


def no_such_ticket() -> Refusal:
    """The one answer to all that is wrong with a ticket."""
    return Refusal(Code.AUTH_FAILED, "this ticket is not good", close=Close.AUTH_FAILED)


def _name(player: str, purpose: str, ticket: str) -> str:
    return hashlib.sha256(f"{player}\n{purpose}\n{ticket}".encode()).hexdigest()
