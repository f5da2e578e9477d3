"""Takes out of a player's line what nobody else should ever see: passwords, card numbers, e-mail
addresses and phone numbers.

The rules are careful. "The password is swordfish" is a line of a play; "my password is swordfish"
is not. What looks like a number of gold pieces stays one.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import phonenumbers
import re2

from npc.safety.settings import Kind, RedactionSettings

Span = tuple[int, int]
#: Digits of a card number.
_CARD = range(13, 20)
_FEWEST_DIGITS = 7  # of a phone number
#: More than any line has room for: where looking for phone numbers ends.
_TRIES = 500

# RE2 for all patterns: whoever writes the line is not to decide how long it takes.
_EMAIL = re2.compile(
    r"[\pL\pN._%+'-]+"
    r"(?:@|\s?[\[(]\s?at\s?[\])]\s?)"
    r"(?:[\pL\pN-]+(?:\.|\s?[\[(]\s?dot\s?[\])]\s?))+\pL{2,}"
)
_DIGITS = re2.compile(r"\p{Nd}(?:[ \-.\x{a0}\x{2009}\x{202f}]?\p{Nd}){12,}")
# A word for a secret, whose it is, and the secret. White space may be of any kind.
_NOUN = (
    r"(?:pass\s?(?:word|code|phrase|wd)|pwd?|pin(?:[\s-]?(?:code|number|nummer))?|login|"
    r"pa(?:ss|ß)wor[td]|kennwort|mot\s+de\s+passe|contrase(?:ñ|n)a|clave|senha|parola)"
)
_MINE = r"(?:my|our|mein|meine|unser|mon|ma|mi|minha|la\s+mia)"
_IS = r"(?:\s*(?:=|:|\bis\b|\bwas\b|\bist\b|\bwar\b|\best\b|\bes\b|\bé\b|\bè\b|'s\b|’s\b)\s*)+"
_SECRET = r"(\"[^\"]+\"|'[^']+'|“[^”]+”|\S+)"
_OWN = re2.compile(
    rf"(?i)\b{_MINE}\s+(?:[\pL\pN'’-]+\s+){{0,3}}?{_NOUN}\b"
    rf"(?:\s+(?:for|to|on|at|für|pour|para)(?:\s+[\pL\pN'’.-]+){{1,4}}?)?{_IS}{_SECRET}"
)
_LABELLED = re2.compile(rf"(?i)\b{_NOUN}\s*[:=]\s*{_SECRET}")
#: What follows "my password is" in talk about passwords.
_TALK = """
a all already an as at bad being best by changed compromised correct different easy expired fine
for forgotten from gone good hard hidden if in incorrect invalid just known long longer lost my
never new no none not nothing of ok okay old on only our outdated really right safe same secret
secure short so something stolen strong stuck terrible that the this to too unknown very weak what
when where who working wrong your falsch nicht weg geheim sehr perdu pas faux très secreta muy
"""
_NO_SECRETS = frozenset(_TALK.split())


@dataclass(frozen=True, slots=True)
class Redacted:
    """A line without what was taken out of it.

    Attributes:
        counts: how much of each kind that was.
    """

    text: str
    counts: Counter[Kind]


class Redactor:
    """Finds what is to be taken out, by some settings. It keeps nothing of what it reads."""

    def __init__(self, settings: RedactionSettings) -> None:
        self._settings = settings
        finders: dict[Kind, Callable[[str], Iterator[Span]]] = {
            "password": _passwords,
            "card": _cards,
            "email": _emails,
            "phone": self._phones,
        }
        # The first kind that claims a piece of text has it.
        self._finders = {kind: find for kind, find in finders.items() if kind in settings.kinds}

    def redact(self, text: str) -> Redacted:
        """A line as it may be stored, shown and told to a model."""
        found: list[tuple[Span, Kind]] = []
        for kind, find in self._finders.items():
            for start, end in find(text):
                if all(end <= other[0] or start >= other[1] for other, _ in found):
                    found.append(((start, end), kind))
        pieces: list[str] = []
        place = 0
        for (start, end), what in sorted(found):
            pieces += [text[place:start], self._settings.replacement.replace("{kind}", what)]
            place = end
        return Redacted("".join([*pieces, text[place:]]), Counter(what for _, what in found))

    def _phones(self, text: str) -> Iterator[Span]:
        if sum(char.isdecimal() for char in text) < _FEWEST_DIGITS:
            return
        # Without a region only numbers that begin with a + are known.
        for region in self._settings.phone_regions or (None,):
            for match in phonenumbers.PhoneNumberMatcher(text, region, max_tries=_TRIES):
                yield match.start, match.end


def _passwords(text: str) -> Iterator[Span]:
    for match in _OWN.finditer(text):
        if _word(match.group(1)) not in _NO_SECRETS:
            yield match.span(1)
    for match in _LABELLED.finditer(text):
        if _looks_chosen(match.group(1)):
            yield match.span(1)


def _word(secret: str) -> str:
    return secret.strip("\"'“”.,;:!?").lower()


def _looks_chosen(secret: str) -> bool:
    """Whether somebody made this up to be hard to guess: no word of a language is like it."""
    mixed = re.search(r"[^\W\d_]", secret) and re.search(r"[\d_@#$%&*^]", secret)
    return len(_word(secret)) >= 6 and mixed is not None


def _emails(text: str) -> Iterator[Span]:
    for match in _EMAIL.finditer(text):
        yield match.span()


def _cards(text: str) -> Iterator[Span]:
    """Runs of digits that are as long as a card number, begin like one, and whose check digit is
    right; also within a longer run, between two of its spaces.
    """
    for run in _DIGITS.finditer(text):
        digits = [
            (at, int(char)) for at, char in enumerate(run.group(), run.start()) if char.isdecimal()
        ]
        yield from _cards_within(digits)


def _cards_within(digits: list[tuple[int, int]]) -> Iterator[Span]:
    sums = _LuhnSums([digit for _, digit in digits])
    first = 0
    while first < len(digits):
        place, digit = digits[first]
        found = None
        if digit in (2, 3, 4, 5, 6) and (first == 0 or digits[first - 1][0] < place - 1):
            for size in reversed(_CARD):
                end = first + size
                ends_group = end == len(digits) or (
                    end < len(digits) and digits[end][0] > digits[end - 1][0] + 1
                )
                if ends_group and sums.valid(first, end):
                    found = end
                    break
        if found is None:
            first += 1
        else:
            yield place, digits[found - 1][0] + 1
            first = found


class _LuhnSums:
    """The check of any stretch of digits in two look-ups: every second digit, from the last but
    one on backwards, counts double.
    """

    def __init__(self, digits: list[int]) -> None:
        self._sums: list[list[int]] = [[0], [0]]
        for doubled, sums in enumerate(self._sums):
            for at, digit in enumerate(digits):
                value = sum(divmod(2 * digit, 10)) if at % 2 == doubled else digit
                sums.append(sums[-1] + value)

    def valid(self, start: int, end: int) -> bool:
        sums = self._sums[end % 2]
        return (sums[end] - sums[start]) % 10 == 0
