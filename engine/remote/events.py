"""Server-sent events of OpenAI's API, from bytes to pieces of a reply. No I/O.

Bytes may come in any cut. A line ends with LF, CRLF or CR, none of which can stand within a
character or a JSON string, so nothing is decoded before it is whole.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

#: Longest event; one that is longer is no piece of a reply.
MAX_EVENT_BYTES = 1 << 20
#: Of what a server says for people, so much is shown.
_SAID_CHARACTERS = 300
#: What servers call the end of a reply, and what it means here; all else is a failure.
_ENDS: dict[str, Literal["stop", "length"]] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "content_filter": "stop",
}


class Nonsense(ValueError):
    """What came is not what a server of this API sends."""


class SaidNo(Exception):
    """The server ended the reply with an error of its own."""


class EventReader:
    """Takes bytes apart into the data of events."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def push(self, piece: bytes) -> list[bytes]:
        """Take in bytes; return the data of the events they complete.

        Raises:
            Nonsense: an event is longer than `MAX_EVENT_BYTES`.
        """
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        if not piece:
            return []
        self._after_cr = piece.endswith(b"\r")
        *ended, rest = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events: list[bytes] = []
        for end in ended:
            self._grow(end)
            events += self._take_line()
        self._grow(rest)
        return events

    def flush(self) -> list[bytes]:
        """The stream has ended: what was not closed by an empty line counts, too."""
        return [*self._take_line(), *self._take_line()]

    def _grow(self, part: bytes) -> None:
        self._line += part
        if len(self._line) + self._size > MAX_EVENT_BYTES:
            raise Nonsense(f"an event is longer than {MAX_EVENT_BYTES:,} bytes")

    def _take_line(self) -> Iterator[bytes]:
        line, self._line = bytes(self._line), bytearray()
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._size += len(line)
        elif not line and self._data:
            yield b"\n".join(self._data)
            self._data.clear()
            self._size = 0


@dataclass(frozen=True, slots=True)
class Bill:
    """What a server has counted, in tokens."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event says.

    Attributes:
        text: new text, perhaps with half a surrogate pair at either end, see `WholeCharacters`.
        finish: how the reply has ended, in its last event.
        bill: what it took, where the server counts.
        done: whether nothing follows.
    """

    text: str = ""
    finish: Literal["stop", "length"] | None = None
    bill: Bill | None = None
    done: bool = False


def read_piece(data: bytes) -> Piece:
    """Read the data of one event, of chat or of completions.

    Raises:
        Nonsense: it is no JSON, or not of this API.
        SaidNo: it tells of an error.
    """
    if data.strip() == b"[DONE]":
        return Piece(done=True)
    try:
        chunk: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Nonsense(f"an event is no JSON: {type(error).__name__}") from error
    if not isinstance(chunk, dict):
        raise Nonsense("an event is no JSON object")
    if chunk.get("error") is not None:
        raise SaidNo(error_text(chunk))
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        raise Nonsense("an event has no choices")
    bill = _bill(chunk.get("usage"))
    if not choices:
        return Piece(bill=bill)
    choice = choices[0]
    if not isinstance(choice, dict):
        raise Nonsense("a choice is no JSON object")
    text = choice.get("text") if "text" in choice else _content(choice.get("delta"))
    if not isinstance(text, str | None):
        raise Nonsense("the text of a choice is no text")
    reason = choice.get("finish_reason")
    if reason is None:
        return Piece(text or "", None, bill)
    end = _ENDS.get(reason) if isinstance(reason, str) else None
    if end is None:
        raise SaidNo(f"the reply ended with {legible(reason)!r}")
    return Piece(text or "", end, bill)


def error_text(answer: Any) -> str:
    """What an error object says, in one short line."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    said = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return legible(said or error)


def legible(said: Any) -> str:
    """What a server says, as one short line for a log or a terminal."""
    try:
        text = said if isinstance(said, str) else json.dumps(said)
    except RecursionError:
        text = "something without bottom"
    line = " ".join(text[:_SAID_CHARACTERS].split())
    return "".join(each if each.isprintable() else "\ufffd" for each in line)


def _content(delta: Any) -> Any:
    if delta is None:
        return ""
    if not isinstance(delta, dict):
        raise Nonsense("a delta is no JSON object")
    return delta.get("content")


def _bill(usage: Any) -> Bill | None:
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    counts: list[Any] = [usage.get("prompt_tokens"), cached or 0, usage.get("completion_tokens")]
    if not all(type(count) is int and count >= 0 for count in counts):
        return None
    return Bill(*counts)


class WholeCharacters:
    """Joins what a server has cut within a character: JSON may escape one as two surrogates, and a
    server that thinks in UTF-16 may send them in two events. Half a character is never released.
    """

    def __init__(self) -> None:
        self._half = ""

    def push(self, text: str) -> str:
        """Take in text; return the whole characters, those that can never become whole left out."""
        if not self._half and text.isascii():
            return text
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
