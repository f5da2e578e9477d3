"""What one NPC of a running scene can do, to whom it has done what, and what became of it.

Which actions are open is decided before a turn begins. What was done waits for the game to say what
became of it; the NPC is told at the next line.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from npc.actions.offer import Act, Offer, Open
from npc.notes import Moment, Note, NoteSource
from npc.transcript import Audience
from scenes.actions import Action, Argument
from scenes.conditions import WorldState

#: Actions that are remembered, those that wait for the game included.
_REMEMBERED = 64
#: Latest of them that a note tells.
_TOLD = 3
_TOKENS = 160
#: Characters of what a game says about a result.
_REASON = 80
#: Entries of a context that an argument may choose from.
_CHOICES = 64

Outcome = Literal["waiting", "done", "refused", "timed_out"]
_WORDS: Mapping[Outcome, str] = {
    "waiting": "It is not done yet.",
    "done": "It is done.",
    "refused": "It did not work.",
    "timed_out": "Nothing came of it.",
}
#: What a game has told of a player, by key.
Context = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deed:
    """An action that was sent to the game.

    Attributes:
        id: of this one action.
        act: what it is.
        player, name: whom it was done for: the one who was answered.
        audience: who may know of it; None: everybody in the scene.
        due: when the game must have said what became of it; seconds.
        outcome: what became of it.
        reason: the game's own words for that.
    """

    id: str
    act: Act
    player: str
    name: str
    audience: Audience
    due: float
    outcome: Outcome = "waiting"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who is about to be answered.

    Attributes:
        player: who asked.
        hearers: ids of players who will hear the answer.
        state: of the world, for this NPC and player.
        context: what the game has told of the player.
        now: seconds.
    """

    player: str
    hearers: Sequence[str]
    state: WorldState
    context: Context = field(default_factory=dict)
    now: float = 0.0


class Repertoire(NoteSource):
    """The actions of one NPC in one running scene. Time is handed in.

    Attributes:
        tokens: see `NoteSource`.
    """

    def __init__(self, npc: str, actions: Sequence[Action]) -> None:
        self.npc = npc
        self.tokens = _TOKENS
        self._actions = {action.name: action for action in actions}
        self._deeds: deque[Deed] = deque(maxlen=_REMEMBERED)
        self._last: dict[tuple[str, str], float] = {}  # (action, player) -> when it was done

    def relearn(self, actions: Sequence[Action]) -> None:
        """Go on as a new version of the NPC, which remembers what it has done."""
        self._actions = {action.name: action for action in actions}

    def offer(self, asking: Asking, allows: Callable[[str], bool]) -> Offer | None:
        """What is open in a turn; None for an NPC that only talks.

        Args:
            allows: whether the quests have nothing against an action, by its name.
        """
        if not self._actions:
            return None
        named = asking.context.get("allowed_actions")
        found: list[Open] = []
        for action in self._actions.values():
            if isinstance(named, list) and action.name not in named:
                continue
            if not allows(action.name) or not self._is_open(action, asking):
                continue
            schema = _schema(action, asking)
            if schema is not None:
                found.append(Open(action.name, schema))
        return Offer(tuple(found))

    def did(self, deed_id: str, act: Act, asking: Asking, name: str, audience: Audience) -> Deed:
        """Take note of an action that goes to the game now.

        Args:
            name: of the player, for people.
            audience: see `Deed`.
        """
        action = self._actions.get(act.name)
        due = asking.now + (action.timeout_s if action is not None else 0)
        deed = Deed(deed_id, act, asking.player, name, audience, due)
        self._deeds.append(deed)
        if action is not None and action.cooldown_s:
            self._last[act.name, asking.player] = asking.now
        return deed

    def find(self, deed_id: str) -> Deed | None:
        """An action that is remembered."""
        return next((deed for deed in self._deeds if deed.id == deed_id), None)

    def settle(self, deed_id: str, ok: bool, data: object) -> Deed | None:
        """What the game says became of an action; None if it is not waited for (any more)."""
        deed = self.find(deed_id)
        if deed is None or deed.outcome != "waiting":
            return None
        return self._replace(deed, "done" if ok else "refused", _reason(data))

    def expire(self, now: float) -> list[Deed]:
        """Give up waiting for those whose time is over."""
        late = [deed for deed in self._deeds if deed.outcome == "waiting" and deed.due <= now]
        cold = [key for key, at in self._last.items() if self._cooled(key[0], at, now)]
        for key in cold:
            del self._last[key]
        return [self._replace(deed, "timed_out", "") for deed in late]

    def forget(self, player: str) -> None:
        """Delete what is kept about a player."""
        for deed in [deed for deed in self._deeds if deed.player == player]:
            self._deeds.remove(deed)
        for key in [key for key in self._last if key[1] == player]:
            del self._last[key]

    def notes(self, moment: Moment) -> list[Note]:
        """What the NPC has done lately, as far as those who hear the answer know of it."""
        listeners = moment.audience
        known = [
            deed
            for deed in self._deeds
            if deed.audience is None or (listeners is not None and listeners <= deed.audience)
        ]
        return [self._note(deed, moment) for deed in known[-_TOLD:]]

    def _note(self, deed: Deed, moment: Moment) -> Note:
        action = self._actions.get(deed.act.name)
        does = action.does if action is not None else deed.act.name
        args = ", ".join(f"{key} {_told(value)}" for key, value in deed.act.args.items())
        about = f" ({args})" if args else ""
        text = f"{moment.persona.name} {does}{about} for {deed.name}. {_WORDS[deed.outcome]}"
        # The game of one player must not speak into the ears of another.
        if deed.reason and deed.player == moment.line.who:
            text += f" {deed.reason}."
        return Note(text, verb="remembers")

    def _is_open(self, action: Action, asking: Asking) -> bool:
        last = self._last.get((action.name, asking.player))
        if last is not None and not self._cooled(action.name, last, asking.now):
            return False
        waits = any(
            deed.outcome == "waiting"
            and deed.act.name == action.name
            and deed.player == asking.player
            for deed in self._deeds
        )
        return not waits and all(condition.holds(asking.state) for condition in action.when)

    def _cooled(self, name: str, last: float, now: float) -> bool:
        action = self._actions.get(name)
        return action is None or now - last >= action.cooldown_s

    def _replace(self, deed: Deed, outcome: Outcome, reason: str) -> Deed:
        settled = replace(deed, outcome=outcome, reason=reason)
        self._deeds[self._deeds.index(deed)] = settled
        return settled


def everything(actions: Sequence[Action]) -> Offer:
    """All of some actions, as if all that they may choose from were there."""
    keys = [arg.source.removeprefix("context ") for action in actions for arg in action.args]
    asking = Asking("player", ("player",), WorldState(), dict.fromkeys(keys, "thing"))
    return Offer(tuple(Open(action.name, _schema(action, asking) or "") for action in actions))


def _schema(action: Action, asking: Asking) -> str | None:
    """The schema of an action's arguments in this turn; None if one of them has no value."""
    if not action.args:
        return ""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for arg in action.args:
        schema = json.loads(arg.schema) if arg.schema else _choices(arg, asking)
        if schema is None and not arg.optional:
            return None
        if schema is not None:
            properties[arg.name] = schema
            if not arg.optional:
                required.append(arg.name)
    return json.dumps(
        {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
    )


def _choices(arg: Argument, asking: Asking) -> dict[str, Any] | None:
    if arg.source == "players":
        values: list[Any] = sorted(asking.hearers)
    else:
        told = asking.context.get(arg.source.removeprefix("context "))
        values = told if isinstance(told, list) else [] if told is None else [told]
    plain = [value for value in values if isinstance(value, (str, int)) and value != ""]
    return {"enum": plain[:_CHOICES]} if plain else None


def _reason(data: object) -> str:
    """A game's words on a result, short and on one line."""
    if isinstance(data, dict):
        data = data.get("reason")
    if not isinstance(data, str):
        return ""
    return " ".join(data.translate(_NO_BRACKETS).split())[:_REASON].rstrip(" .")


_NO_BRACKETS = str.maketrans("", "", "()[]{}")


def _told(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.translate(_NO_BRACKETS).split())[:_REASON]
