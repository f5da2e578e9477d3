"""How a character may be read: what counts as the same letter when words are looked for."""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

# What is written instead of a letter, to be read by people and not by filters.
_LOOKS = {
    "0": "o",
    "1": "il",
    "2": "z",
    "3": "e",
    "4": "a",
    "5": "s",
    "6": "g",
    "7": "t",
    "8": "b",
    "9": "g",
    "@": "a",
    "$": "s",
    "!": "i",
    "|": "il",
    "+": "t",
    "(": "c",
    "€": "e",
    "¡": "i",
    # Cyrillic and Greek
    **dict(zip("аеорсхуіѕкмтнвԁ", "aeopcxyiskmthbd", strict=True)),
    **dict(zip("αοεικνρτυχ", "aoeikvptux", strict=True)),
}
_TYPOGRAPHY = str.maketrans("’‘‛“”„–—‐‑", "'''\"\"\"----")


@dataclass(frozen=True, slots=True)
class Reading:
    """What makes no difference.

    Attributes:
        case: upper and lower case.
        diacritics: accents, compatible forms (full width, ligatures) and the kind of quotation
            marks and dashes; marks and invisible characters between letters are passed over.
        leet: digits, signs and letters of other alphabets that look like the letter.
    """

    case: bool = True
    diacritics: bool = True
    leet: bool = False

    def fold(self, text: str) -> str:
        """The one spelling that stands for all that make no difference, look-alikes apart."""
        if self.diacritics:
            decomposed = unicodedata.normalize("NFKD", text.translate(_TYPOGRAPHY))
            text = "".join(char for char in decomposed if not _passed_over(char))
        if self.case:
            text = text.casefold()
        return "".join(" " if char.isspace() else char for char in text)


@lru_cache(maxsize=8192)
def readings(char: str, reading: Reading) -> tuple[str, ...]:
    """All that one character of a text may stand for; "" if it may be passed over."""
    folded = reading.fold(char)
    looks = _LOOKS.get(folded, "") if reading.leet else ""
    return (folded, *looks)


@lru_cache(maxsize=8192)
def is_letter(char: str) -> bool:
    """Whether a character continues a word: a letter, a digit, or a mark on one."""
    return char.isalnum() or char == "_" or unicodedata.category(char) in ("Mn", "Mc", "Cf")


def _passed_over(char: str) -> bool:
    return unicodedata.category(char) in ("Mn", "Me", "Cf")
