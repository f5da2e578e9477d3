"""What all NPCs of one running scene share."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.ticket import Ticket
from gameserver.budgets import Budgets
from gameserver.ledger import Ledger
from gameserver.overload.overload import Overload
from gameserver.plot import Plot
from gameserver.safety import Safety
from gameserver.settings import Settings
from gameserver.streams import Stream
from gameserver.tally import Tally


@dataclass(frozen=True, slots=True, eq=False)
class Backstage:
    """What an NPC's floor works with.

    Attributes:
        scene: the public events.
        plot: knows what may be done.
        ledger: what the scene writes down.
        settings: of the server.
        tally: counts and measures.
        safety: filters what is said.
        budgets: what may be said; an NPC's has the id `account` before its own.
        overload: who is let in, and what is left out.
        account: id of the scene's pack.
        cancel: ends a request.
        on_prompt: is shown each turn's prompt.
    """

    scene: Stream
    plot: Plot
    ledger: Ledger
    settings: Settings
    tally: Tally
    safety: Safety
    budgets: Budgets
    overload: Overload
    account: str
    cancel: Callable[[Ticket], None]
    on_prompt: Callable[[str, Ticket], None] | None
