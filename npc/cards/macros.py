"""Macros of cards, resolved once, when a card is imported. What is left is plain text for ever.

    {{char}} <CHAR> <BOT>       the character's name
    {{user}} <USER>             "the guest", or "stranger" where it is called: an NPC of ours speaks
                                with many players, and the server tells it who says what
    {{random:a,b}} {{pick:…}}   the first choice
    {{reverse:abc}} {{newline}} what they make
    {{// …}} {{comment:…}} {{hidden_key:…}} {{trim}} {{noop}} {{original}}
                                nothing
    {{time}} {{date}} {{roll:…}} {{getvar::…}} and others that depend on a run
                                nothing, and a note

Any other text in braces, Jinja's too, stays as it is: it means nothing to us.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

#: Whoever is spoken to.
USER = "the guest"
#: The same where it is called: "Welcome, {{user}}!"
CALLED = "stranger"
_CALLED = re.compile(r"(,|\bhi|\bhello|\bhey|\bwelcome|\bgreetings) \0[.,!?…]", re.IGNORECASE)
#: Macros in macros; deeper ones stay text.
_PASSES = 4
_BRACES = re.compile(r"\{\{([^{}]{0,2000})\}\}")
_ANGLES = re.compile(r"<(user|char|bot)>", re.IGNORECASE)
_SENTENCE_START = re.compile(r"(?:^|[.!?…\n]['\"”’*]*\s*)\W*$")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SILENT = ("//", "comment", "hidden_key", "trim", "noop", "original")
_OF_A_RUN = re.compile(
    "time|date|weekday|isotime|isodate|datetimeformat|idle_duration|timediff|roll|group|input|model"
    "|(get|set|add|inc|dec)(global)?var|last(user|char)?message(id)?|maxprompt|groupnotmuted|bias"
    "|charifnotgroup|persona|description|personality|scenario|mesexamples(raw)?|charversion|slot"
    "|position|outlet|banned"
)


@dataclass(slots=True)
class Macros:
    """Resolves the macros of one card.

    Attributes:
        char: the character's name.
        dropped: how often each macro of a run was left out.
    """

    char: str
    dropped: Counter[str] = field(default_factory=Counter)

    def resolve(self, text: str) -> str:
        """A text without macros, trimmed, without control characters."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = _ANGLES.sub(lambda m: "{{" + m[1].lower().replace("bot", "char") + "}}", text)
        for _ in range(_PASSES):
            resolved = _BRACES.sub(self._one, text)
            if resolved == text:
                break
            text = resolved
        return _CONTROL.sub("", text).strip()

    def _one(self, match: re.Match[str]) -> str:
        inner = match[1].strip()
        name, _, argument = inner.partition(":")
        name = name.strip().lower()
        if name == "char":
            return self.char
        if name == "user":
            before = match.string[max(match.start() - 12, 0) : match.start()]
            if _CALLED.search(f"{before}\0{match.string[match.end() : match.end() + 1]}"):
                return CALLED
            return USER.capitalize() if _SENTENCE_START.search(before) else USER
        if name in ("random", "pick"):
            choices = argument.removeprefix(":")
            separator = "::" if "::" in choices else ","
            return choices.split(separator)[0].strip()
        if name == "reverse":
            return argument.removeprefix(":")[::-1]
        if name == "newline":
            return "\n"
        if inner.startswith("//") or name in _SILENT:
            return ""
        first = re.split(r"[:_ ]", name)[0]
        if _OF_A_RUN.fullmatch(name) or _OF_A_RUN.fullmatch(first):
            self.dropped[name[:40]] += 1
            return ""
        return match[0]
