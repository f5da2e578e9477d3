"""What this server does about words: those of players and those of NPCs."""

import zlib
from pathlib import Path
from typing import Any

from gameserver.tally import Tally
from npc.persona import Persona
from npc.safety.character import in_character, leaks_of, turn_rules
from npc.safety.filter import Passed, SpeechFilter
from npc.safety.redaction import Redactor
from npc.safety.rules import NO_RULES, RuleSet, load_rules
from npc.safety.settings import SafetySettings
from npc.safety.steering import inspect
from npc.transcript import Line


class Safety:
    """The rules of one server, shared by all its scenes.

    What authors wrote, greetings and lines that the game speaks, is not filtered: they are the
    words of whoever wrote the rules.
    """

    def __init__(self, settings: SafetySettings, tally: Tally, *, scripted: bool) -> None:
        """
        Args:
            scripted: whether the model is a script.

        Raises:
            RulesError: the file of rules cannot be used.
        """
        self._settings = settings
        self._tally = tally
        self._redactor = Redactor(settings.redaction)
        self._rules = NO_RULES
        chosen = settings.in_character
        self._in_character = not scripted if chosen is None else chosen
        self.reload()

    @property
    def retries(self) -> int:
        """How often an NPC looks for other words."""
        return self._settings.retries

    def reload(self) -> None:
        """Read the file of rules again. Replies that are being spoken end as they began.

        Raises:
            RulesError: it cannot be used; the rules stay as they were.
        """
        if self._settings.filter_file is not None:
            self._rules = load_rules(Path(self._settings.filter_file))

    def redact(self, text: str, scene: str = "") -> str:
        """A player's words as they may be stored, shown and told to a model.

        Args:
            scene: id of the pack they were said in, which may let all words pass.
        """
        if scene in self._settings.redaction.scenes_without:
            return text
        redacted = self._redactor.redact(text)
        for kind, count in redacted.counts.items():
            self._tally.count(f"redacted_{kind}", count)
        return redacted.text

    def redact_data(self, data: Any, scene: str) -> Any:
        """The same for all texts in the data of a message, keys included."""
        match data:
            case str():
                return self.redact(data, scene)
            case list():
                return [self.redact_data(item, scene) for item in data]
            case dict():
                return {
                    self.redact(key, scene): self.redact_data(item, scene)
                    for key, item in data.items()
                }
        return data

    def note_steering(self, text: str) -> None:
        """Count what a line tries to do with the model."""
        steering = inspect(text)
        if steering.meant_for_model:
            for kind in steering.kinds:
                self._tally.count(f"steering_{kind}")

    def listen(self, persona: Persona, line: Line, said: str = "") -> "Listener":
        """What a reply of an NPC to a line passes through; `said` is what was shown of it."""
        sets: tuple[RuleSet, ...] = (self._rules,)
        if self._in_character:
            sets = (self._rules, in_character(), leaks_of(persona), turn_rules(persona, line))
        return Listener(SpeechFilter(sets, said), self._tally)

    def deflection(self, turn: str) -> str:
        """What an NPC says in place of words that it may not say."""
        lines = self._settings.deflections
        return lines[zlib.crc32(turn.encode()) % len(lines)]


class Listener:
    """A filter that counts what it finds: by what was done, not by words, which are nobody's
    business.

    Attributes:
        touched: whether it found anything.
    """

    def __init__(self, speech: SpeechFilter, tally: Tally) -> None:
        self.touched = False
        self._speech = speech
        self._tally = tally

    def feed(self, text: str) -> Passed:
        """Take in more of the reply."""
        return self._counted(self._speech.feed(text))

    def finish(self) -> Passed:
        """The reply is at its end."""
        return self._counted(self._speech.finish())

    def _counted(self, passed: Passed) -> Passed:
        self.touched |= bool(passed.hits)
        for rule in passed.hits:
            self._tally.count(f"filtered_{rule.action}")
        return passed
