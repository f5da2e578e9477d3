"""What comes to an NPC's mind at a line: lore that waits for words and for the state of the world.

Only what the listeners of the answer have heard is searched, so that nobody learns from an answer
what was said elsewhere.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from npc.notes import Moment, Note, NoteSource
from npc.persona import Persona
from scenes.conditions import WorldState
from scenes.lore import LoreEntry
from scenes.patterns import compile_pattern

#: Scripts that are written without spaces, or hang particles on to words (Korean): in these the
#: neighbour of a key says nothing about where the word ends.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
_SPACED_LETTER = re.compile(rf"[^\W{_UNSPACED}]")


class Trigger:
    """One entry, ready to be looked for.

    Attributes:
        entry: what it is of.
    """

    def __init__(self, entry: LoreEntry) -> None:
        self.entry = entry
        self._keys = [_normal(key, case=entry.case) for key in entry.keys]
        self._also = [_normal(key, case=entry.case) for key in entry.also]
        self._patterns = [compile_pattern(p, case=entry.case) for p in entry.patterns]

    def fires(self, said: "Said", state: WorldState) -> bool:
        """Whether it comes to mind."""
        entry = self.entry
        if not all(condition.holds(state) for condition in entry.when):
            return False
        if entry.constant:
            return True
        text = said.exact if entry.case else said.folded
        named = any(self._in(text, key) for key in self._keys)
        if not named and not any(pattern.search(said.exact) for pattern in self._patterns):
            return False
        if not self._also:
            return True
        found = (self._in(text, key) for key in self._also)
        match entry.also_needs:
            case "any":
                return any(found)
            case "all":
                return all(found)
            case "not_any":
                return not any(found)
            case "not_all":
                return not all(found)

    def _in(self, text: str, key: str) -> bool:
        return _has_word(text, key) if self.entry.whole_words else key in text


class Said:
    """Some lines, as keys are compared with them.

    Attributes:
        exact: the lines; folded: without the difference of upper and lower case.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.exact = _normal("\n".join(lines), case=True)
        self.folded = _normal(self.exact, case=False)


class Lorebook:
    """All that one NPC may be reminded of."""

    def __init__(self, triggers: Iterable[Trigger] = ()) -> None:
        self._triggers = tuple(triggers)

    def __bool__(self) -> bool:
        return bool(self._triggers)

    def told(self, lines: Sequence[str], state: WorldState) -> list[LoreEntry]:
        """What comes to mind when `lines` were said last, in the order in which it is told."""
        said = Said(lines)
        fired = [t.entry for t in self._triggers if t.fires(said, state)]
        return sorted(fired, key=lambda entry: entry.order)


class LoreSource(NoteSource):
    """What the last lines bring to an NPC's mind.

    Attributes:
        tokens: most of it in one turn.
    """

    def __init__(self, lorebook: Lorebook, tokens: int, lines: int) -> None:
        """`lines` is how many of the last lines are searched, the newest included."""
        self.tokens = tokens if lorebook else 0
        self._lorebook = lorebook
        self._lines = lines

    def notes(self, moment: Moment) -> list[Note]:
        """See `NoteSource`."""
        earlier = moment.told[max(len(moment.told) - self._lines + 1, 0) :]
        said = [*(line.text for line in earlier), moment.line.text]
        entries = self._lorebook.told(said, moment.state)
        return [Note(entry.text, priority=entry.priority) for entry in entries]


def triggers(lore: Iterable[LoreEntry]) -> tuple[Trigger, ...]:
    """Those entries that wait; the others stand in the prompt's beginning."""
    return tuple(Trigger(entry) for entry in lore if not entry.lasting)


def lorebook(persona: Persona, scene: Iterable[Trigger]) -> Lorebook:
    """What one NPC knows of a scene's lore, and its own."""
    known = [t for t in scene if t.entry.known_to(persona.id, persona.factions)]
    return Lorebook([*known, *triggers(persona.lore)])


def _normal(text: str, *, case: bool) -> str:
    """Text in which what looks the same is the same; valid Unicode in any case."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return unicodedata.normalize("NFKC", whole if case else whole.casefold())


def _has_word(text: str, key: str) -> bool:
    at = text.find(key)
    while at >= 0:
        end = at + len(key)
        if not _joined(text[at - 1 : at], key[:1]) and not _joined(key[-1:], text[end : end + 1]):
            return True
        at = text.find(key, at + 1)
    return False


def _joined(left: str, right: str) -> bool:
    """Whether two neighbours are part of one word."""
    return bool(_SPACED_LETTER.fullmatch(left) and _SPACED_LETTER.fullmatch(right))
