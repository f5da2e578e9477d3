"""The one place where words become a prompt.

A prompt is read in this order, most lasting first, so that the engine finds as much of it as
possible in its cache:

    scene     what is true in the place                  one prefix for everybody in it
    persona   who the NPC is, and examples of its talk   one prefix for each NPC
    own part  what was said, examples that fit, notes (see `npc.notes`), the newest line, and the
              opening of the reply

Lore that always holds is part of the first two. What comes and goes stands as late as it can: the
next prompt differs from this one from there on.

All text is data. It is encoded with control tokens off and joined by concatenation; no template
engine ever sees it. A line of a player stays one line that begins with that player's name, so that
nobody can write a line for somebody else.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.chat import ChatFormat, Frame
from engine.tokenizer import Tokenizer
from npc.persona import Persona
from scenes.actions import sketch
from scenes.lore import LoreEntry
from scenes.pack import ScenePack

#: Who speaks in the examples of a persona.
STRANGER = "Guest"
#: Opens a talk in which the NPC spoke first, for models that must hear somebody else before.
ARRIVAL = "(Somebody comes in.)"
#: Display names longer than this are cut.
MAX_SPEAKER = 32
_BREAKS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_NOT_IN_NAMES = re.compile(r"[:\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")

_WORD = re.compile(r"\w+(?:['’-]\w+)*")

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Utterance:
    """One line as the model reads it, without the frame around its turn.

    Attributes:
        role: "assistant" for the NPC's own words, "user" for everything it hears.
        ids: tokens of the line.
    """

    role: Role
    ids: tuple[int, ...]


class Present(Protocol):
    """Somebody who is in a scene, as others know them."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def role(self) -> str: ...  # noqa: D102


class PromptWriter:
    """Writes prompts for one model."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatFormat) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._break = tuple(tokenizer.encode("\n"))
        #: Tokens that open an action.
        self.brackets = frozenset(tokenizer.encode(text)[-1] for text in ("[", " ["))
        # Upper bounds, for callers who must know what fits before a prompt is written.
        self._frame_size = max(len(f.open) + len(f.close) for f in (chat.user, chat.assistant))
        #: Tokens of an own part beside the texts in it.
        self.overhead = 3 * self._frame_size + self.length(ARRIVAL)
        #: Tokens of the longest name before a line; a character takes four at most.
        self.name_size = 4 * MAX_SPEAKER + self.length(": ")

    def scene(self, pack: ScenePack, people: Iterable[Present]) -> list[int]:
        """Tokens of what everybody in a scene knows: the lore, and who is there."""
        present = "; ".join(f"{person.name}, {person.role}" for person in people)
        frame = self._chat.system or self._chat.user
        lore = _lasting(entry for entry in pack.lore if entry.for_everybody)
        text = "\n\n".join([pack.text, *lore, f"People here: {present}."])
        return [*self._chat.begin, *frame.open, *self._tokenizer.encode(text)]

    def persona(self, persona: Persona, lore: Iterable[LoreEntry] = ()) -> list[int]:
        """Tokens that follow the scene's and make the model this NPC.

        Args:
            lore: of the scene; what is for some of its people is told to those.
        """
        name = persona.name
        text = (
            f"\n\nYou are {name}, {persona.role}. {persona.voice} "
            f"{name} answers in one or two short sentences."
        )
        told = [
            entry
            for entry in lore
            if not entry.for_everybody and entry.known_to(persona.id, persona.factions)
        ]
        knows = [*persona.knows, *_lasting([*told, *persona.lore])]
        if knows:
            text += f"\n\n{name} knows:" + "".join(f"\n- {fact}" for fact in knows)
        if persona.actions:
            text += f"\n\n{name} can also act, in brackets after the words:"
            text += "".join(f"\n- {sketch(action)}" for action in persona.actions)
        ids = self._tokenizer.encode(text)
        if self._chat.system:
            ids += self._chat.system.close
        else:  # the first line heard is in the same turn
            ids += self._tokenizer.encode("\n\n")
        examples: list[Utterance] = []
        for example in persona.examples:
            examples.append(self.heard(STRANGER, example.player))
            examples.append(self.spoken(example.reply))
        return ids + self._turns(examples, opened=self._chat.system is None)

    def own(
        self,
        persona: Persona,
        history: Sequence[Utterance],
        recalled: Sequence[Utterance],
        newest: Utterance,
        prefill: str = "",
        notes: Sequence[Utterance] = (),
    ) -> list[int]:
        """Tokens that follow the persona's and ask for its next words.

        Args:
            history: earlier lines, oldest first.
            recalled: examples to tell again.
            newest: the line to answer.
            prefill: the first words of the answer.
            notes: what to have in mind.
        """
        opened = self._chat.system is None and not persona.examples
        # Lines that wait for an answer stay together.
        answered = len(history)
        while answered and history[answered - 1].role == "user":
            answered -= 1
        told = [*history[:answered], *recalled, *notes, *history[answered:], newest]
        ids = self._turns(told, opened=opened)
        return [*ids, *self._chat.assistant.open, *self._tokenizer.encode(prefill)]

    def heard(self, name: str, text: str) -> Utterance:
        """A line of somebody else."""
        line = f"{speaker(name)}: {_BREAKS.sub(' ', text)}"
        return Utterance("user", tuple(self._tokenizer.encode(line)))

    def spoken(self, text: str) -> Utterance:
        """The NPC's own words."""
        return Utterance("assistant", tuple(self._tokenizer.encode(text)))

    def known(self, name: str, text: str, verb: str = "knows") -> Utterance:
        """Something that an NPC has in mind. No line of a player looks like it: those begin with a
        name, and no name with a bracket.
        """
        line = f"({speaker(name)} {verb}: {_BREAKS.sub(' ', text)})"
        return Utterance("user", tuple(self._tokenizer.encode(line)))

    def runs(self, text: str, words: int) -> Iterator[str]:
        """All runs of so many words in a text, for a ban. The last word is only begun: banning its
        end gives a misspelt word, banning its beginning another word. A run that leads to a name
        ends before it, and has two words at least: another name would be worse than the same again.
        """
        spans = [match.span() for match in _WORD.finditer(text)]
        for number in range(len(spans) - words + 1):
            run = spans[number : number + words]
            while len(run) > 1 and text[run[-1][0]].isupper():
                run.pop()
            if len(run) == 1:
                continue
            (start, _), (last, end) = run[0], run[-1]
            first = self._tokenizer.encode(" " + text[last:end])[:1]
            begun = self._tokenizer.decode(first).strip()
            known = begun and text.startswith(begun, last)
            yield text[start:last] + (begun if known else text[last:end])

    def length(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._tokenizer.encode(text))

    def cost(self, utterance: Utterance) -> int:
        """Most tokens that an earlier line takes in a prompt."""
        return len(utterance.ids) + self._frame_size

    def _turns(self, utterances: Sequence[Utterance], *, opened: bool) -> list[int]:
        """Tokens of closed turns, which alternate and begin with a user's; `opened` if that one's
        frame is open already.
        """
        if utterances and utterances[0].role == "assistant":
            arrival = Utterance("user", tuple(self._tokenizer.encode(ARRIVAL)))
            utterances = [arrival, *utterances]
        ids: list[int] = []
        before: Role | None = None
        for utterance in utterances:
            if utterance.role == before:
                ids += self._break
            else:
                if before is not None:
                    ids += self._frame(before).close
                if before is not None or not opened:
                    ids += self._frame(utterance.role).open
            ids += utterance.ids
            before = utterance.role
        if before is not None:
            ids += self._frame(before).close
        return ids

    def _frame(self, role: Role) -> Frame:
        return self._chat.user if role == "user" else self._chat.assistant


def speaker(name: str) -> str:
    """A display name as it may stand before a line: one short line without a colon, which does not
    begin like a stage direction.
    """
    clean = " ".join(_NOT_IN_NAMES.sub(" ", name).split()).lstrip("([ ")
    return clean[:MAX_SPEAKER].strip() or "Somebody"


def _lasting(lore: Iterable[LoreEntry]) -> list[str]:
    """What always holds, in the order in which it is told."""
    lasting = [entry for entry in lore if entry.lasting]
    return [entry.text for entry in sorted(lasting, key=lambda entry: entry.order)]


def stops(names: Iterable[str]) -> tuple[str, ...]:
    """Strings at which a reply ends because the model goes on to speak for one of these."""
    return tuple(dict.fromkeys(f"\n{speaker(name)}:" for name in names))
