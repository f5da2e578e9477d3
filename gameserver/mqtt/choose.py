"""The bridge that the settings ask for."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from engine.libraries import how_to_install
from gameserver.mqtt.address import BrokerAddress, Login
from gameserver.mqtt.outgoing import Parcel
from gameserver.mqtt.topics import Topics
from gameserver.settings import Settings, SettingsError
from gameserver.stores.journal import Journal
from gameserver.tally import Tally

if TYPE_CHECKING:
    from gameserver.mqtt.bridge import Bridge
    from gameserver.mqtt.broker import Broker, Mqtt5

#: What a node's status topic says.
ONLINE, OFFLINE = b'{"online":true}', b'{"online":false}'


def choose_broker(settings: Settings, client_id: str | None = None) -> "Mqtt5":
    """A way to the broker that `settings.mqtt` names. Does not connect.

    Args:
        client_id: of somebody who is not this node; None for the node itself.

    Raises:
        SettingsError: the address or the login cannot be used, or the library is not installed.
    """
    mqtt = settings.mqtt
    assert mqtt is not None
    try:
        from gameserver.mqtt.broker import Mqtt5
    except ImportError as error:
        raise SettingsError(
            f"mqtt needs a library: {how_to_install('troupe-npc[mqtt]')}"
        ) from error
    will = Parcel(Topics(mqtt.root).node(settings.node), OFFLINE, retained=True)
    name = client_id or mqtt.client_id or f"troupe-{settings.node}"
    return Mqtt5(BrokerAddress.of(mqtt.url), Login.load(mqtt), name, will, mqtt, settings.limits)


def choose_bridge(
    broker: "Broker | None",
    settings: Settings,
    journal: Journal,
    tally: Tally,
    reopen: Callable[[str], Awaitable[bool]],
) -> "Bridge | None":
    """The bridge to a broker, not started yet; None if the settings want none. For `reopen` see
    `Bridge`."""
    if settings.mqtt is None or broker is None:
        return None
    from gameserver.mqtt.bridge import Bridge

    return Bridge(broker, Topics(settings.mqtt.root), settings, journal, tally, reopen=reopen)
