"""A reply as it streams, taken apart: what is said, what is done, what is only shown or thought.

    speech      everything that is nothing of the following
    stage       *smiles and looks away*
    thought     <think>…</think>, as models write that reason before they speak
    action      [give_item {"item":"lantern"}], if actions are open

Speech is released at once, but for what may still turn out to be markup and the white space before
it. Only words of the model come here: what a player types, or a game puts into an NPC's mouth,
is never read for markup.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from npc.actions.offer import MOST_PER_TURN, Act, Offer

#: Longest stage direction in characters; an asterisk that is not closed by then was none.
MAX_STAGE = 200
#: Longest action in characters.
MAX_ACTION = 4_096
#: What JSON readers of every language take.
_LARGEST = 2**53 - 1

_THINK, _THOUGHT = "<think>", "</think>"
_NAME = re.compile(r"\[([a-z][a-z0-9_]*)( \{|\])")
#: Where a sentence, and so perhaps a stage direction, begins.
_ENDED = re.compile(r"""(?:\A|[.!?…:;。！？]["'”’)\]」』]*|\n)\s*\Z""")
_UNSAYABLE = re.compile("[\x00\ud800-\udfff]")

Channel = Literal["speech", "stage", "thought"]
#: Whether a text of brackets is one of the open actions.
Check = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of one channel."""

    channel: Channel
    text: str


class Channels:
    """Takes one reply apart.

    Attributes:
        dropped: actions that were begun and are not to be carried out: the reply ended within them,
            they hold what no message can, or no grammar kept them valid and they are not.
    """

    def __init__(
        self, offer: Offer | None = None, check: Check | None = None, *, plain: bool = False
    ) -> None:
        """
        Args:
            offer: what is open; None: brackets are speech.
            check: judges actions that no grammar has kept valid.
            plain: everything is speech, and released as it comes.
        """
        self.dropped = 0
        self._open = tuple(action.name for action in offer.actions) if offer else ()
        self._acts = bool(self._open)
        self._left = MOST_PER_TURN
        self._check = check
        self._plain = plain
        self._held = ""  # not decided yet
        self._gap = ""  # white space that nothing has followed yet
        self._said = ""  # end of the speech so far
        self._marked = False  # whether markup came after it

    def push(self, text: str) -> list[Piece | Act]:
        """Take in new text; return what is decided by it, in order."""
        if self._plain:
            return [Piece("speech", text)] if text else []
        self._held += text
        return list(self._split(ended=False))

    def flush(self) -> list[Piece | Act]:
        """The rest, now that no more will come."""
        return list(self._split(ended=True))

    def _split(self, *, ended: bool) -> Iterator[Piece | Act]:
        while self._held:
            at = self._next_mark()
            yield from self._speak(self._held[:at])
            self._held = self._held[at:]
            if not self._held:
                return
            found = self._read(ended=ended)
            if found is None:
                return
            piece, length = found
            self._held = self._held[length:]
            if isinstance(piece, Piece) and piece.channel == "speech":
                yield from self._speak(piece.text)
                continue
            self._marked = True
            if piece is not None:
                yield piece

    def _next_mark(self) -> int:
        marks = "*<[" if self._acts else "*<"
        places = [self._held.find(mark) for mark in marks]
        return min((at for at in places if at >= 0), default=len(self._held))

    def _speak(self, text: str) -> Iterator[Piece]:
        """Words, without the white space at their end; around markup one gap of two is left."""
        if self._marked and (self._gap or not self._said):
            text = text.lstrip()
        if not text:
            return
        words = text.rstrip()
        if not words:
            self._gap += text
            return
        released = self._gap + words
        self._gap, self._marked = text[len(words) :], False
        self._said = (self._said + released)[-8:]
        yield Piece("speech", released)

    def _read(self, *, ended: bool) -> tuple[Piece | Act | None, int] | None:
        """What begins with the mark at the start of what is held, and its length; None if that is
        not decided. What is no markup is one character of speech.
        """
        match self._held[0]:
            case "*":
                return self._stage(ended=ended)
            case "<":
                return self._thought(ended=ended)
            case _:
                return self._action(ended=ended)

    def _stage(self, *, ended: bool) -> tuple[Piece | None, int] | None:
        held = self._held
        if len(held) == 1 and not ended:
            return None
        opens = len(held) > 1 and not held[1].isspace() and held[1] != "*"
        if not opens:
            run = len(held) - len(held.lstrip("*"))
            return Piece("speech", held[:run]), run
        ends = [at for mark in self._ends() if (at := held.find(mark, 1)) > 0]
        end = min(ends, default=len(held))
        begins = self._marked or bool(_ENDED.search(self._said + self._gap))
        inner = held[1:end]
        if end - 1 > MAX_STAGE:
            return Piece("speech", "*"), 1
        if end == len(held) and not ended:
            return None
        if end < len(held) and held[end] == "*":
            # A word in the middle of a sentence is stressed, not acted.
            acted = begins or " " in inner
            return Piece("stage" if acted else "speech", inner.strip()), end + 1
        return (Piece("stage", inner.strip()), end) if begins else (Piece("speech", "*"), 1)

    def _ends(self) -> str:
        return "*\n[" if self._acts else "*\n"

    def _thought(self, *, ended: bool) -> tuple[Piece | None, int] | None:
        held = self._held
        if not held.startswith(_THINK):
            if _THINK.startswith(held) and not ended:
                return None
            return Piece("speech", "<"), 1
        end = held.find(_THOUGHT)
        if end < 0:
            return (Piece("thought", held[len(_THINK) :].strip()), len(held)) if ended else None
        return Piece("thought", held[len(_THINK) : end].strip()), end + len(_THOUGHT)

    def _action(self, *, ended: bool) -> tuple[Piece | Act | None, int] | None:
        held, speech = self._held, (Piece("speech", "["), 1)
        if not self._left or not self._may_be_action():
            return speech
        found = self._whole_action()
        if found is None:
            if ended:
                self.dropped += 1
                return None, len(held)
            return None if len(held) <= MAX_ACTION else speech
        act, length = found
        if self._check is not None and not self._check(held[:length]):
            return speech
        self._left -= 1
        self._open = tuple(name for name in self._open if name != act.name)
        if not _sayable(act.args):
            self.dropped += 1
            return None, length
        return act, length

    def _may_be_action(self) -> bool:
        inner = self._held[1:]
        return any(
            name.startswith(inner)
            or inner.startswith((name + "]", name + " {"))
            or inner == name + " "
            for name in self._open
        )

    def _whole_action(self) -> tuple[Act, int] | None:
        opened = _NAME.match(self._held)
        if opened is None:
            return None
        if opened[2] == "]":
            return Act(opened[1]), opened.end()
        try:
            args, end = _JSON.raw_decode(self._held, opened.end() - 1)
        except (ValueError, RecursionError):
            return None
        return (Act(opened[1], args), end + 1) if self._held[end : end + 1] == "]" else None


_JSON = json.JSONDecoder()


def _sayable(value: Any) -> bool:
    """Whether a message can hold it: whole characters, and numbers that all clients can read."""
    match value:
        case str():
            return not _UNSAYABLE.search(value)
        case bool() | None:
            return True
        case int() | float():
            return abs(value) <= _LARGEST
        case list():
            return all(map(_sayable, value))
        case _:
            return all(_sayable(key) and _sayable(inner) for key, inner in value.items())
