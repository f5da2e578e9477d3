"""The state of a scene without a server: beats come when a test says so."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from gameserver.ledger import Ledger
from gameserver.settings import Settings
from gameserver.state.scene_state import SceneState
from gameserver.stores.journal import Book, Journal
from gameserver.stores.memory import MemoryStore
from gameserver.stores.store import Holding
from gameserver.tally import Tally
from scenes.entities import Surroundings
from scenes.space import Position

PLAYERS = ("ann", "bob", "cid")
KEYS = ("pos", "pose", "owner")


class NoPulse:
    """A beat comes when a test says so."""

    def ask(self, after_s: float = 0.0) -> None:
        """Nothing."""


def pack_of(surroundings: Surroundings, **npcs: Position | None) -> Any:
    """A pack, as far as state goes."""
    people = {npc: SimpleNamespace(at=at) for npc, at in npcs.items()}
    return SimpleNamespace(
        id="inn", surroundings=surroundings, npcs=people, noticed=surroundings.names()
    )


def state_of(
    surroundings: Surroundings,
    book: Book | None = None,
    node: str = "troupe",
    pack: Any = None,
    **settings: int,
) -> SceneState:
    """The state of a scene with three players, by default kept in memory."""
    book = book or Book("scene.inn", Journal(MemoryStore(), Tally()), Holding(1, {}, []))
    attendance = SimpleNamespace(states=dict.fromkeys(PLAYERS, "present"))
    chosen = msgspec.convert({"node": node, "state": {"far_ms": 0, **settings}}, Settings)
    stream = SimpleNamespace(id="inn", ep=book.epoch, wake=lambda: None)
    state = SceneState(
        cast(Any, stream),
        pack or pack_of(surroundings),
        cast(Any, attendance),
        Ledger(book, 500),
        chosen,
        cast(Any, None),
    )
    state._pulse = cast(Any, NoPulse())
    return state


def truth(state: SceneState) -> dict[tuple[str, str], Any]:
    """What is so."""
    items = [register.item for register in state.registers.since(0)]
    return {(item.e, item.k): item.v for item in items if item.v is not None}
