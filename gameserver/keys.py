"""Keys of which only hashes are kept: for the API, and for games and tools at the game port.

A key is long and random, so that one round of SHA-256 hides it; passwords would need more.
"""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gameserver.settings import SettingsError

#: What holders of keys may be called.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: What a key may be good for: the HTTP API; playing as anybody; raising any world event.
SCOPES: Final = frozenset({"api", "play", "events"})
#: A key whose line names no scopes.
USUAL_SCOPES: Final = frozenset({"api", "play"})
_LINE = re.compile(
    rf"(?P<name>{NAME.pattern})\s+(?P<hash>[0-9a-f]{{64}})(?:\s+(?P<scopes>[a-z,]+))?"
    rf"(?:\s+@(?P<tenant>{NAME.pattern}))?"
)
_PREFIX = "tr-"


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of a key.

    Attributes:
        name: of its holder.
        scopes: what it is good for, see `SCOPES`.
        tenant: whose it is; None: the house's.
    """

    name: str
    scopes: frozenset[str] = USUAL_SCOPES
    tenant: str | None = None


def new_key() -> str:
    """A key nobody has had before: 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(32)


def key_line(name: str, key: str, scopes: Iterable[str] = (), tenant: str | None = None) -> str:
    """The line that admits `key` when it stands in the key file."""
    more = [",".join(sorted(scopes)), f"@{tenant}" if tenant else ""]
    return " ".join([name, _digest(key).hex(), *filter(None, more)])


class Keys:
    """The keys that open something; `len()` 0 means that none are asked for.

    Args:
        hashes: what is known of keys, by their SHA-256.
    """

    def __init__(self, hashes: Mapping[bytes, Key]) -> None:
        self._hashes = dict(hashes)

    @classmethod
    def load(
        cls,
        file: str | None,
        variable: str | None,
        section: str = "api",
        tenants: Collection[str] = (),
    ) -> "Keys":
        """Read keys from a file of `NAME SHA256 [SCOPE,SCOPE] [@TENANT]` lines and from the
        environment.

        Args:
            file: path of the key file; lines that start with # are comments.
            variable: name of an environment variable, which holds one key or several with spaces
                between.
            section: of the settings that name these, for error messages.
            tenants: that a key may be of.

        Raises:
            SettingsError: a source that was named holds no usable key, or one of no tenant here.
        """
        hashes: dict[bytes, Key] = {}
        if file is not None:
            hashes |= _from_file(section, Path(file).expanduser())
        if variable is not None:
            keys = os.environ.get(variable, "").split()
            if not keys:
                raise SettingsError(f"{section}.keys_variable: the environment has no {variable}")
            hashes |= {_digest(key): Key(f"{variable}-{n}") for n, key in enumerate(keys)}
        for known in hashes.values():
            if known.tenant is not None and known.tenant not in tenants:
                msg = f"{section}.keys_file: there is no tenant {known.tenant}, of {known.name}"
                raise SettingsError(msg)
        return cls(hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, key: str) -> Key | None:
        """What is known of a key."""
        given, found = _digest(key), None
        for known, entry in self._hashes.items():  # all of them, so that time tells nothing
            if hmac.compare_digest(given, known):
                found = entry
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _from_file(section: str, path: Path) -> dict[bytes, Key]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{section}.keys_file: cannot read {path}: {error}") from error
    hashes: dict[bytes, Key] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        scopes = frozenset((match["scopes"] or "").split(",")) - {""} if match else frozenset()
        if match is None or scopes - SCOPES:
            raise SettingsError(
                f"{path}, line {number}: expected a name, the SHA-256 of a key in hex and, if you "
                f"like, scopes of {', '.join(sorted(SCOPES))} with commas between, and @TENANT; "
                "`troupe key NAME` prints such a line"
            )
        key = Key(match["name"], scopes or USUAL_SCOPES, match["tenant"])
        hashes[bytes.fromhex(match["hash"])] = key
    if not hashes:
        raise SettingsError(f"{section}.keys_file: {path} holds no keys, which would admit nobody")
    return hashes
