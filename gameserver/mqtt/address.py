"""Where the broker is, and who we are to it. Secrets stand in a file or the environment only."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gameserver.settings import MqttSettings, SettingsError

_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker listens."""

    host: str
    port: int
    encrypted: bool

    @classmethod
    def of(cls, url: str) -> "BrokerAddress":
        """Read mqtt://host[:port] or mqtts://host[:port].

        Raises:
            SettingsError: it is none, or holds a password.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.scheme not in _PORTS or parts.path.strip("/") or parts.query:
            raise SettingsError("mqtt.url: give mqtt://host[:port] or mqtts://host[:port]")
        if parts.username is not None:
            problem = "mqtt.url: no user or password here; use login_file or login_variable"
            raise SettingsError(problem)
        return cls(host, port or _PORTS[parts.scheme], parts.scheme == "mqtts")


@dataclass(frozen=True, slots=True)
class Login:
    """User and password, as in `USER:PASSWORD`."""

    user: str
    password: str = field(repr=False)

    @classmethod
    def load(cls, settings: MqttSettings) -> "Login | None":
        """What the settings name; None if they name nothing.

        Raises:
            SettingsError: it is not there, or is no `USER:PASSWORD`.
        """
        if settings.login_file is not None:
            source = f"mqtt.login_file: {settings.login_file}"
            try:
                text = Path(settings.login_file).expanduser().read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(f"{source}: {error}") from error
        elif settings.login_variable is not None:
            source = f"mqtt.login_variable: {settings.login_variable}"
            text = os.environ.get(settings.login_variable, "")
        else:
            return None
        user, colon, password = text.strip().partition(":")
        if not user or not colon or "\n" in password:
            raise SettingsError(f"{source} must hold one line USER:PASSWORD")
        return cls(user, password)
