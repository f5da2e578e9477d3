"""What a model thinks that a turn has changed between an NPC and a player.

After a turn the model is asked one question under a grammar whose every answer is a verdict, so no
words of a player become anything but "falling", "the same" or "rising". The question is a request
of its own behind all others, and one at a time for each NPC: a verdict that comes late is of little
use, and one that does not come at all does no harm.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import EngineError
from engine.face import AnyEngine
from engine.grammar import Grammar
from engine.outputs import RequestOutput
from engine.params import SamplingParams
from engine.prefixes import Prefix
from npc.persona import Persona
from npc.prompt import PromptWriter, speaker
from npc.purse import Purse
from npc.relations import AXES
from npc.transcript import Line
from scenes.reactions import MOODS, Shift

_STEPS = {"falling": -1, "the same": 0, "rising": 1}
_PATTERN = ", ".join(f"{axis}: ({'|'.join(_STEPS)})" for axis in AXES)
_PATTERN += f", mood: ({'|'.join(MOODS)})"
_VERDICT = re.compile(_PATTERN)
#: All verdicts there are.
GRAMMAR = Grammar.regex(_PATTERN)
_QUESTION = (
    "after these words, are trust in {name}, affection for {name} and fear of {name} falling, the "
    "same or rising, and which mood do they leave"
)
_MAX_TOKENS = 64

_log = logging.getLogger("troupe.npc")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a turn has changed.

    Attributes:
        shift: the direction of each feeling: -1, 0 or 1.
        mood: that it leaves; "" for none in particular.
    """

    shift: Shift
    mood: str


class Judge:
    """Asks the model about the turns of one NPC.

    Attributes:
        busy: whether it waits for a verdict; turns that end meanwhile are not judged.
    """

    def __init__(self, engine: AnyEngine, writer: PromptWriter, priority: int) -> None:
        """`priority` is the class of its requests; `GRAMMAR` should be prepared."""
        self.busy = False
        self._engine = engine
        self._writer = writer
        self._priority = priority

    def ask(
        self,
        persona: Persona,
        prefix: Prefix,
        heard: Line,
        said: Line,
        salt: str,
        on_verdict: Callable[[Verdict], None],
        purse: Purse,
    ) -> None:
        """Have a turn judged.

        Args:
            prefix: scene and persona.
            heard, said: a player's line and the NPC's answer, as far as it was heard.
            salt: as for the turn itself.
            on_verdict: called in the event loop, once, if there is one.
            purse: pays, whether or not there is one.
        """
        if self.busy:
            return
        name, writer = speaker(heard.name), self._writer
        told = [writer.heard(heard.name, heard.text), writer.spoken(said.text)]
        question = writer.known(persona.name, _QUESTION.format(name=name), "considers")
        text: list[str] = []

        def on_output(output: RequestOutput) -> None:
            text.append(output.text)
            if output.finish is None:
                return
            self.busy = False
            if output.usage is not None:
                purse.pay(heard.who, output.usage.computed)
            if (verdict := read_verdict("".join(text))) is not None:
                on_verdict(verdict)

        try:
            self._engine.submit(
                writer.own(persona, told, [], question),
                SamplingParams(max_tokens=_MAX_TOKENS, temperature=0.0, grammar=GRAMMAR),
                on_output=on_output,
                prefix=prefix,
                priority=self._priority,
                salt=salt,
                shares=(f"player {purse.payer(heard.who)}",),
            )
        except EngineError as error:
            _log.debug("a turn of %s is not judged: %s", persona.id, error)
        else:
            self.busy = True


def read_verdict(text: str) -> Verdict | None:
    """The verdict that a text says; None if it was cut off."""
    match = _VERDICT.fullmatch(text)
    if match is None:
        return None
    *steps, mood = match.groups()
    return Verdict(Shift(*(_STEPS[step] for step in steps)), "" if mood == MOODS[0] else mood)
