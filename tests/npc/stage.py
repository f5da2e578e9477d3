"""A recording engine and a vocabulary in which prompts can be read.

One byte is one token, and the frames around turns are tokens of their own, so that a prompt can be
written down as text in which `<user>` is a frame and `‹user›` would be what somebody typed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from engine.api import AsyncEngine
from engine.chat import ChatFormat, Frame
from engine.outputs import RequestOutput
from engine.params import SamplingParams
from engine.prefixes import Prefix
from engine.ticket import Ticket
from engine.tokenizer import Tokenizer
from npc.dialogue import Dialogue
from npc.persona import Example, Persona
from npc.prompt import PromptWriter
from npc.settings import ReplySettings
from npc.transcript import Audience, Line

FRAMES = ["<begin>", "<system>", "</system>", "<user>", "</user>", "<npc>", "</npc>"]
#: A model with a system role, and one without.
CHATML = ChatFormat((256,), Frame((257,), (258,)), Frame((259,), (260,)), Frame((261,), (262,)))
NO_SYSTEM = ChatFormat((256,), None, Frame((259,), (260,)), Frame((261,), (262,)))
MIRA = Persona(
    id="mira",
    name="Mira",
    kind="host",
    role="the innkeeper",
    voice="Warm.",
    knows=("The stew is hot.",),
    greeting="Come in.",
    examples=(Example("Who are you?", "I'm Mira."),),
)


class ByteTokenizer:
    """One token a byte; there is no text that encodes to a frame."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")


def readable(ids: Sequence[int]) -> str:
    """A prompt as text; what looks like a frame but was typed shows with other brackets."""
    parts: list[str] = []
    data = bytearray()
    for index in [*ids, None]:
        if index is not None and index < 256:
            data.append(index)
            continue
        parts.append(data.decode().replace("<", "‹").replace(">", "›"))
        data.clear()
        if index is not None:
            parts.append(FRAMES[index - 256])
    return "".join(parts)


@dataclass
class Submitted:
    """One call of `submit`."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    prefix: Prefix
    priority: int
    salt: str
    shares: tuple[str, ...]
    on_output: Callable[[RequestOutput], None]

    @property
    def text(self) -> str:
        return readable(self.prompt_ids)


@dataclass
class RecordingEngine:
    """Takes requests and computes nothing."""

    chat: ChatFormat = CHATML
    max_model_len: int = 8192
    scripted: bool = False
    scripted_length: int = 0
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    submitted: list[Submitted] = field(default_factory=list)
    refuse: Exception | None = None

    def submit(self, prompt_ids: Sequence[int], params: SamplingParams, **rest: Any) -> Ticket:
        if self.refuse is not None:
            raise self.refuse
        self.submitted.append(Submitted(tuple(prompt_ids), params, **rest))
        return cast(Ticket, len(self.submitted))


def line(
    text: str,
    who: str = "anna",
    *,
    id: str | None = None,
    audience: Audience = None,
    kind: Any = "player",
    name: str | None = None,
) -> Line:
    """A line of a player, whose id is its text unless given."""
    return Line(id or text, kind, who, name or who.title(), "mira", text, 0, audience)


def dialogue(
    engine: RecordingEngine,
    persona: Persona = MIRA,
    settings: ReplySettings | None = None,
    others: tuple[str, ...] = ("Captain Harn",),
) -> Dialogue:
    """A fresh dialogue on the recording engine, whose prefix is as long as the real one."""
    writer = PromptWriter(cast(Tokenizer, engine.tokenizer), engine.chat)
    prefix = Prefix(0, None, tuple(writer.persona(persona)))
    return Dialogue(
        persona,
        prefix,
        "inn",
        cast(AsyncEngine, engine),
        writer,
        settings or ReplySettings(),
        others,
    )


class CountingPurse:
    """A purse that is counted, and may be empty."""

    def __init__(self, *, empty: bool = False) -> None:
        self.empty = empty
        self.paid: list[tuple[str, int]] = []

    def allows(self, player: str) -> bool:
        return not self.empty

    def pay(self, player: str, tokens: int) -> None:
        self.paid.append((player, tokens))

    def payer(self, player: str) -> str:
        return f"acme/{player}"
