"""What settings only name and a server needs from the start: made once, before anything that takes
long, so that a mistake in it is told at once and what was checked is what serves."""

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gameserver.access import Access, encryption
from gameserver.addresses import Proxies
from gameserver.mqtt.choose import choose_broker
from gameserver.settings import Settings

if TYPE_CHECKING:
    from gameserver.mqtt.broker import Broker


@dataclass(frozen=True, slots=True)
class Equipment:
    """See above.

    Attributes:
        access: who may play.
        proxies: who is believed about addresses.
        tls: how the game port is encrypted; None if it is not.
        broker: of world events; None if there is none.
    """

    access: Access
    proxies: Proxies
    tls: ssl.SSLContext | None
    broker: "Broker | None"

    @classmethod
    def of(cls, settings: Settings) -> "Equipment":
        """Read keys, certificates and logins.

        Raises:
            SettingsError: one of them is missing, or cannot be used.
        """
        return cls(
            Access(settings.auth, settings.tenants),
            Proxies(settings.guards.trusted_proxies),
            None if settings.tls is None else encryption(settings.tls),
            None if settings.mqtt is None else choose_broker(settings),
        )
