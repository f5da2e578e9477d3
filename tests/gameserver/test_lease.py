"""Leases are renewed whatever those who hear of it do wrong."""

from collections.abc import Mapping
from typing import cast

from gameserver.stores.journal import Journal
from gameserver.stores.lease import Leases
from gameserver.stores.memory import MemoryStore
from gameserver.stores.store import Renewal, SharedStore
from gameserver.tally import Tally
from tests.gameserver.stage import until


class Renewing:
    """As much of a shared store as leases need, counting how often they were renewed."""

    def __init__(self) -> None:
        self.times = 0

    async def renew(self, held: Mapping[str, int], card: bytes) -> Renewal:
        self.times += 1
        return Renewal(frozenset(), {})

    async def release(self, held: Mapping[str, int]) -> None: ...


async def test_one_mistake_does_not_end_all_talk() -> None:
    store, tally = Renewing(), Tally()
    leases = Leases(cast(SharedStore, store), Journal(MemoryStore(), tally), 0.05, tally)
    await leases.start()

    def stumble(cards: Mapping[str, bytes]) -> None:
        leases.on_cards = lambda cards: None
        raise KeyError("a card that nobody thought of")

    leases.on_cards = stumble
    before = store.times
    await until(lambda: store.times >= before + 3)
    assert tally.gauges()["lease_failures"] == 1
    await leases.stop()
