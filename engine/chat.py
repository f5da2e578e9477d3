"""Who says what, as the model was trained to read it: fixed token frames around each turn.

The model's own template is a program. It runs once, at load, in a sandbox and over words of ours,
to find the frames; what players write never meets it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ModelError
from engine.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant"]

#: Words no template contains or treats in a special way.
_SYSTEM, _USER, _REPLY, _AGAIN = "Qsystemq", "Quserq", "Qreplyq", "Qagainq"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: who speaks, and the text, which is data."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Token ids before and after what one role says."""

    open: tuple[int, ...]
    close: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The frames of one model.

    Attributes:
        begin: starts every prompt (BOS, or nothing).
        system: None when the model has no such role; then system text belongs at the head of the
            first user turn.
        user: a player's turn.
        assistant: a reply; its `open` also asks for one.
    """

    begin: tuple[int, ...]
    system: Frame | None
    user: Frame
    assistant: Frame

    @classmethod
    def from_template(
        cls, template: str | None, tokenizer: Tokenizer, *, bos: str = "", eos: str = ""
    ) -> "ChatFormat":
        """Find the frames of a Jinja chat template; without one, plain "User:" and "Assistant:"
        lines.

        Raises:
            ModelError: the template fails, or does not wrap turns in fixed frames.
        """
        if template is None:
            pieces = _Pieces(bos, ("", "\n\n"), ("User: ", "\n"), ("Assistant:", "\n"))
        else:
            pieces = _find_frames(template, bos, eos)

        def frame(sides: tuple[str, str]) -> Frame:
            return Frame(tuple(tokenizer.control(sides[0])), tuple(tokenizer.control(sides[1])))

        return cls(
            begin=tuple(tokenizer.control(pieces.begin)),
            system=frame(pieces.system) if pieces.system else None,
            user=frame(pieces.user),
            assistant=frame(pieces.assistant),
        )

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        open_reply: bool = True,
        prefill: str = "",
    ) -> list[int]:
        """Token ids of a dialogue, ready for the model to answer.

        System messages are merged into one at the start, neighbours of one role into one turn. A
        model without a system role gets that text at the head of the first user turn; as such
        models insist on alternation, a dialogue that a reply opens gets a user turn before it.

        Args:
            messages: oldest first.
            tokenizer: of the same model.
            open_reply: end with the opening of a reply.
            prefill: first words of that reply.
        """
        preface = "\n\n".join(m.content for m in messages if m.role == "system" and m.content)
        turns: list[tuple[Role, str]] = []
        for message in messages:
            if message.role == "system":
                continue
            if turns and turns[-1][0] == message.role:
                turns[-1] = (message.role, f"{turns[-1][1]}\n{message.content}")
            else:
                turns.append((message.role, message.content))
        ids = list(self.begin)
        if self.system is None:
            if preface or not turns or turns[0][0] != "user":
                if not turns or turns[0][0] != "user":
                    turns.insert(0, ("user", preface))
                else:
                    turns[0] = ("user", f"{preface}\n\n{turns[0][1]}")
        elif preface:
            ids += [*self.system.open, *tokenizer.encode(preface), *self.system.close]
        for role, content in turns:
            frame = self.user if role == "user" else self.assistant
            ids += [*frame.open, *tokenizer.encode(content), *frame.close]
        if open_reply:
            ids += [*self.assistant.open, *tokenizer.encode(prefill)]
        return ids


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The frames as text: (before, after) of each role."""

    begin: str
    system: tuple[str, str] | None
    user: tuple[str, str]
    assistant: tuple[str, str]


def _find_frames(template: str, bos: str, eos: str) -> _Pieces:
    """Take the frames out of what the template makes of marked words."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        program = environment.from_string(template)
    except TemplateError as error:
        raise ModelError(f"the model's chat template does not compile: {error}") from error

    def render(*turns: tuple[str, str], ask: bool = False) -> str:
        # Templates test `tools is none`, which an undefined name is not. Thinking aloud is not
        # speech.
        return program.render(
            messages=[{"role": role, "content": text} for role, text in turns],
            add_generation_prompt=ask,
            bos_token=bos,
            eos_token=eos,
            tools=None,
            documents=None,
            enable_thinking=False,
        )

    user, reply, again = ("user", _USER), ("assistant", _REPLY), ("user", _AGAIN)
    try:
        user_close = _after(render(user), _USER)
        reply_open = _after(render(user, ask=True), _USER).removeprefix(user_close)
        reply_close = _after(render(user, reply), _REPLY)
        user_open = _between(render(user, reply, again), _REPLY, _AGAIN).removeprefix(reply_close)
    except Exception as error:  # a template is a program of somebody else: it may fail in any way
        raise ModelError(f"the model's chat template cannot be used: {error}") from error
    system: tuple[str, str] | None = None
    head = ""
    try:
        text = render(("system", _SYSTEM), user)
        head, gap = text[: text.index(_SYSTEM)], _between(text, _SYSTEM, _USER)
        # A gap that does not open a user turn means the text was put inside that turn.
        if gap.endswith(user_open):
            system = (head, gap.removesuffix(user_open))
    except Exception:  # refuses the role, each template in its own words
        system = None
    if system is None:
        text = render(user)
        head = text[: text.index(_USER)].removesuffix(user_open)
        return _Pieces(
            bos if bos and head.startswith(bos) else "",
            None,
            (user_open, user_close),
            (reply_open, reply_close),
        )
    # Where BOS is the mark that opens a turn, it is no separate beginning.
    begin = bos if bos and head.startswith(bos) and not user_open.startswith(bos) else ""
    return _Pieces(
        begin,
        (head.removeprefix(begin), system[1]),
        (user_open, user_close),
        (reply_open, reply_close),
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _after(text: str, mark: str) -> str:
    return text[text.index(mark) + len(mark) :]


def _between(text: str, left: str, right: str) -> str:
    return _after(text, left)[: _after(text, left).index(right)]
