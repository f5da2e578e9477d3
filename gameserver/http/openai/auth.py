"""Who may use the API: keys, of which only hashes are kept.

A key is long and random, so that one round of SHA-256 hides it; passwords would need more.
"""

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from gameserver.http.openai.errors import ApiError
from gameserver.settings import SettingsError

#: What callers may be called.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LINE = re.compile(rf"(?P<name>{NAME.pattern})\s+(?P<hash>[0-9a-f]{{64}})")
_PREFIX = "tr-"
#: The caller's name where no keys are asked for.
ANYONE = "anyone"


def new_key() -> str:
    """A key nobody has had before: 256 random bits."""
    return _PREFIX + secrets.token_urlsafe(32)


def key_line(name: str, key: str) -> str:
    """The line that admits `key` when it stands in the key file."""
    return f"{name} {_digest(key).hex()}"


class Keys:
    """The keys that open the API; without any, it is open to whoever reaches the port.

    Args:
        hashes: names of callers by the SHA-256 of their key.
    """

    def __init__(self, hashes: Mapping[bytes, str]) -> None:
        self._hashes = dict(hashes)

    @classmethod
    def load(cls, file: str | None, variable: str | None) -> "Keys":
        """Read keys from a file of `NAME SHA256` lines and from an environment variable.

        Args:
            file: path of the key file; lines that start with # are comments.
            variable: name of the variable, which holds one key or several with spaces between.

        Raises:
            SettingsError: a source that was named holds no usable key.
        """
        hashes: dict[bytes, str] = {}
        if file is not None:
            hashes |= _from_file(Path(file).expanduser())
        if variable is not None:
            keys = os.environ.get(variable, "").split()
            if not keys:
                raise SettingsError(f"api.keys_variable: the environment has no {variable}")
            hashes |= {_digest(key): f"{variable}-{n}" for n, key in enumerate(keys)}
        return cls(hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def caller(self, authorization: str | None) -> str:
        """The name of who sends this `Authorization` header.

        Raises:
            ApiError: 401, there is no key in it, or one that we do not know.
        """
        if not self._hashes:
            return ANYONE
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ApiError(
                401, "send your API key as 'Authorization: Bearer KEY'", code="missing_api_key"
            )
        given, found = _digest(key.strip()), None
        for known, name in self._hashes.items():  # all of them, so that time tells nothing
            if hmac.compare_digest(given, known):
                found = name
        if found is None:
            raise ApiError(401, "this API key is not known here", code="invalid_api_key")
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _from_file(path: Path) -> dict[bytes, str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"api.keys_file: cannot read {path}: {error}") from error
    hashes: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise SettingsError(
                f"{path}, line {number}: expected a name and the SHA-256 of a key in hex; "
                "`troupe key NAME` prints such a line"
            )
        hashes[bytes.fromhex(match["hash"])] = match["name"]
    if not hashes:
        raise SettingsError(f"api.keys_file: {path} holds no keys, which would admit everybody")
    return hashes
