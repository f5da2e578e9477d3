"""Text as ids without a vocabulary, for models whose tokenizer nobody has.

An id holds up to four bytes of UTF-8, which is about what a token of English is, and a character is
never divided between two: so the number of ids is a fair guess of the number of tokens, and what is
said by ids is said by text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.chat import ChatFormat, Frame, Message, Role
from engine.tokenizer import Tokenizer

_MOST_BYTES = 4
#: Ids below are packed bytes: a leading 1 and up to four bytes behind it.
_CONTROL = 2 << (8 * _MOST_BYTES)
#: Control ids in the order of their numbers: what opens a turn of each role, and what closes it.
MARKS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "user")


class PackedTokenizer(Tokenizer):
    """Packs text into ids, and back; see `Tokenizer` for the attributes."""

    def __init__(self) -> None:
        self.vocab_size = _CONTROL + len(MARKS)
        self.special_ids = frozenset(range(_CONTROL, self.vocab_size))
        self.eos_ids = frozenset({self.vocab_size - 1})
        self.bos_id = None
        self.opening = ()
        self.concatenates = True

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`; no text yields a control id."""
        ids: list[int] = []
        packed = 1
        for character in text.encode("utf-8", "replace").decode("utf-8"):
            raw = character.encode()
            if packed.bit_length() + 8 * len(raw) > 8 * _MOST_BYTES + 1:
                ids.append(packed)
                packed = 1
            packed = packed << (8 * len(raw)) | int.from_bytes(raw)
        return ids if packed == 1 else [*ids, packed]

    def control(self, text: str) -> list[int]:
        """See `Tokenizer.control`."""
        return [_CONTROL + MARKS.index(text)] if text in MARKS else self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        raw = b"".join(_bytes(token) for token in ids if token < _CONTROL)
        return raw.decode("utf-8", "replace")

    def spell(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.spell`."""
        raw = b"".join(
            _bytes(token) if token < _CONTROL else MARKS[token - _CONTROL].encode() for token in ids
        )
        return raw.decode("utf-8", "replace")

    def token(self, index: int | None) -> str:
        """See `Tokenizer.token`."""
        return "" if index is None else self.spell([index])

    def serialized(self) -> str:
        """There is no vocabulary; raises `NotImplementedError`."""
        raise NotImplementedError("packed text has no vocabulary")


def _bytes(token: int) -> bytes:
    """The bytes behind an id's leading 1."""
    return token.to_bytes(_MOST_BYTES + 1).lstrip(b"\0")[1:]


def marked_chat() -> ChatFormat:
    """Turns between control ids of a `PackedTokenizer`, from which messages can be read again."""
    system, user, assistant, end = ((_CONTROL + number,) for number in range(len(MARKS)))
    return ChatFormat((), Frame(system, end), Frame(user, end), Frame(assistant, end))


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt as messages.

    Attributes:
        messages: oldest first, none of them empty.
        begun: whether the last one is the beginning of the reply that is asked for.
    """

    messages: tuple[Message, ...]
    begun: bool

    @classmethod
    def read(cls, ids: Iterable[int]) -> "Conversation":
        """What a prompt in `marked_chat` says; text outside of turns is taken as a user's."""
        turns: list[tuple[Role, list[int]]] = [("user", [])]
        for token in ids:
            if token < _CONTROL:
                turns[-1][1].append(token)
            else:
                turns.append((_ROLES[token - _CONTROL], []))
        decode = PackedTokenizer().decode
        said = [Message(role, decode(own)) for role, own in turns]
        begun = said[-1].role == "assistant" and said[-1].content != ""
        return cls(tuple(message for message in said if message.content), begun)
