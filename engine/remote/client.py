"""Requests to servers of OpenAI's API, and what goes wrong with them, sorted by what to do."""

import json
import os
import ssl
from collections.abc import AsyncGenerator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.request import Request

import httpx2 as httpx

from engine.errors import ModelError
from engine.remote.config import RemoteConfig
from engine.remote.events import (
    EventReader,
    Nonsense,
    Piece,
    SaidNo,
    error_text,
    legible,
    read_piece,
)
from engine.remote.grammars import Fields

#: Of a refusal so much is read, and of an answer in one piece, unless it is said to be longer.
_REFUSAL_BYTES, _ANSWER_BYTES = 16_384, 1 << 20
_TOO_MANY, _UNAVAILABLE = 429, 503
#: What breaks a connection. The library lets errors of TLS through as they are.
_BROKEN = (httpx.HTTPError, httpx.StreamError, OSError)


class Trouble(Exception):
    """A request came to nothing, or broke off. The text is for people, and may quote what was
    asked: it is for those who ask, and not for a log.

    Attributes:
        kind: of `KINDS`, for counting.
        again: whether another try may go better.
        blame: whether it speaks against the server.
        retry_s: seconds after which the server wants to be asked again, if it said so.
        status: of the HTTP answer; None without one.
    """

    KINDS = ("unreachable", "slow", "cut", "nonsense", "busy", "failed", "refused")

    def __init__(
        self,
        kind: str,
        text: str,
        *,
        again: bool = True,
        blame: bool = True,
        retry_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.again = again
        self.blame = blame
        self.retry_s = retry_s
        self.status = status

    @property
    def brief(self) -> str:
        """What happened, in a word or two."""
        return self.kind if self.status is None else f"{self.kind}, HTTP {self.status}"


def base_of(url: str) -> str:
    """The address that paths are put behind."""
    return url.rstrip("/").removesuffix("/v1") + "/v1/"


def read_key(config: RemoteConfig) -> str | None:
    """The API key that the settings name.

    Raises:
        ModelError: there is none where they say.
    """
    if config.key_file is not None:
        try:
            key = Path(config.key_file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"remote.key_file: cannot read {config.key_file}: {error}") from error
        where = f"remote.key_file: {config.key_file}"
    elif config.key_variable is not None:
        key = os.environ.get(config.key_variable, "").strip()
        where = f"remote.key_variable: {config.key_variable} in the environment"
    else:
        return None
    if not key or not key.isascii() or not key.isprintable():
        raise ModelError(f"{where} holds no API key: one line of plain ASCII is needed")
    return key


def _trust(config: RemoteConfig) -> ssl.SSLContext | bool:
    if not config.verify:
        return False
    context = ssl.create_default_context()
    if config.ca_file is not None:
        try:
            context.load_verify_locations(Path(config.ca_file).expanduser())
        except (OSError, ssl.SSLError) as error:
            raise ModelError(f"remote.ca_file: cannot use {config.ca_file}: {error}") from error
    return context


class _NoCookies(CookieJar):
    """Keeps none: what a server sets must not grow here, nor go to another."""

    def extract_cookies(self, response: Any, request: Request) -> None:
        """Take none in."""


class Client:
    """A pool of connections. Belongs to the event loop it is used in.

    Args:
        config: addresses, key, certificates.

    Raises:
        ModelError: the key or the certificates cannot be used.
    """

    def __init__(self, config: RemoteConfig) -> None:
        key = read_key(config)
        most = 2 * config.in_flight + len(config.urls)  # for speech, for vectors, for questions
        self._http = httpx.AsyncClient(
            headers={
                # What is compressed could be of any size; what is said is short.
                "accept-encoding": "identity",
                **({"authorization": f"Bearer {key}"} if key else {}),
            },
            verify=_trust(config),
            # Whoever asks knows how long to wait for what.
            timeout=httpx.Timeout(None, connect=config.connect_s, write=config.connect_s),
            limits=httpx.Limits(max_connections=most, max_keepalive_connections=most),
            # Nothing but the settings says where words of players go.
            trust_env=False,
            follow_redirects=False,
            cookies=_NoCookies(),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def stream(
        self, base: str, path: str, body: Fields, most_bytes: int
    ) -> AsyncGenerator[Piece]:
        """A reply piece by piece; closing the generator closes its connection.

        Args:
            most_bytes: of the whole stream; a server that goes on beyond sends nonsense.

        Raises:
            Trouble: it came to nothing, or broke off.
        """
        try:
            async with self._http.stream("POST", base + path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(response, await _read(response, _REFUSAL_BYTES))
                if response.headers.get("content-type", "").startswith("application/json"):
                    raise _no_stream(base, await _read(response, _REFUSAL_BYTES))
                reader = EventReader()
                async for part in response.aiter_raw():
                    most_bytes -= len(part)
                    if most_bytes < 0:
                        raise Nonsense("the stream goes on and on")
                    for data in reader.push(part):
                        yield read_piece(data)
                for data in reader.flush():
                    yield read_piece(data)
        except _BROKEN as error:
            raise _broken(base, error) from error
        except Nonsense as error:
            raise Trouble("nonsense", f"{base} sent nonsense: {error}") from error
        except SaidNo as error:
            raise Trouble("failed", f"{base}: {error}", blame=False) from error

    async def ask(
        self,
        method: str,
        base: str,
        path: str,
        body: Fields | None = None,
        most_bytes: int = _ANSWER_BYTES,
    ) -> Any:
        """An answer in one piece, read as JSON. One that is longer than `most_bytes` is none.

        Raises:
            Trouble: it came to nothing.
        """
        try:
            async with self._http.stream(method, base + path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(response, await _read(response, _REFUSAL_BYTES))
                raw = await _read(response, most_bytes)
        except _BROKEN as error:
            raise _broken(base, error) from error
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Trouble("nonsense", f"{base}{path} answers with what is no JSON") from error


async def _read(response: httpx.Response, most: int) -> bytes:
    """The body of an answer, up to so many bytes."""
    raw = bytearray()
    async for part in response.aiter_raw():
        raw += part
        if len(raw) >= most:
            break
    return bytes(raw[:most])


def _broken(base: str, error: Exception) -> Trouble:
    what = legible(str(error)) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in what:
        return Trouble("unreachable", f"{base} is not trusted ({what}): see remote.ca_file")
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return Trouble("unreachable", f"nobody answers at {base} ({what})")
    return Trouble("cut", f"the connection to {base} broke: {what}")


def _no_stream(base: str, raw: bytes) -> Trouble:
    """What it means that a whole answer came where a stream was asked for."""
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and answer.get("error") is not None:
        return Trouble("failed", f"{base}: {error_text(answer)}", blame=False)
    return Trouble("nonsense", f"{base} sends no stream of events")


def _refusal(response: httpx.Response, raw: bytes) -> Trouble:
    status = response.status_code
    try:
        said = error_text(json.loads(raw))
    except (ValueError, RecursionError):
        said = legible(raw.decode("utf-8", "replace"))
    text = f"{response.url} answers {status}: {said or legible(response.reason_phrase)}"
    if status in (_TOO_MANY, _UNAVAILABLE):
        retry_s = _seconds(response.headers.get("retry-after"))
        return Trouble("busy", text, blame=False, retry_s=retry_s, status=status)
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        return Trouble("failed", text, status=status)
    return Trouble("refused", text, again=False, blame=False, status=status)


def _seconds(retry_after: str | None) -> float | None:
    """What `Retry-After` says, if that is a number of seconds; few servers give a date."""
    said = (retry_after or "").strip()
    return float(said) if said.isascii() and said.isdigit() else None
