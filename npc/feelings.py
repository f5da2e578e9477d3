"""What one NPC of a running scene feels: its mood, what it thinks of each player, and so what it
tells whom.

Feelings are moved by rules of the pack (`scenes.reactions`) and, where that is switched on, by
judgements of a model (`npc.judgement`), never by what a player claims.

What is whispered changes nothing for those who did not hear it. So a mood, which everybody sees, is
moved only by what everybody could see; and relations are kept twice: as they are, and as others
could know them. The prompt tells what the NPC thinks of the player it answers, and of nobody else:
alone with this player as it is, before others as they could know it.

The same calls with the same times give the same feelings: nothing here looks at a clock.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from npc.judgement import Verdict
from npc.lore import Said, Trigger
from npc.mood import FAINT, Feeling, Mood
from npc.notes import Moment, Note, NoteSource
from npc.persona import Persona
from npc.prompt import speaker
from npc.relations import AXES, Kept, Relation, Relations
from npc.secrets import Secret
from npc.settings import FeelingSettings
from npc.transcript import Line
from scenes.conditions import PUBLIC, WorldState
from scenes.lore import LoreEntry
from scenes.reactions import Cause, Happening, Reaction, Shift

#: How things are for one player.
StateOf = Callable[[str], WorldState]

_PRIVATE = "something to tell {} when nobody else listens"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that one NPC feels.

    Attributes:
        levels, at: of its mood, see `Mood`.
        players: its relations as they are.
        seen: as others could know them.
        happened: reactions that everybody could see the cause of.
    """

    levels: dict[str, float] = {}
    at: int = 0
    players: dict[str, Kept] = {}
    seen: dict[str, Kept] = {}
    happened: tuple[str, ...] = ()


class Feelings(NoteSource):
    """The feelings of one NPC. Times are wall clock in ms.

    Attributes:
        mood: how it feels.
        relations: what it thinks of whom.
        seen: the same, moved only by what happened before everybody.
        tokens: most of its notes in one turn.
        revision: grows with every change that a snapshot would tell.
        states: how things are for a player, whoever runs the scene knows; without it a secret that
            asks for more than feelings is not told to a circle.
    """

    def __init__(self, settings: FeelingSettings) -> None:
        self._settings = settings
        self.mood = Mood()
        self.relations = Relations(settings.players)
        self.seen = Relations(settings.players)
        self.tokens = 0
        self._npc = ""
        self._secrets: tuple[Secret, ...] = ()
        self._reactions: dict[tuple[Cause, str], list[Reaction]] = {}
        self._words: list[tuple[Trigger, Reaction]] = []
        self._happened: dict[str, None] = {}
        self._moved: set[str] = set()
        self.revision = 0
        self._latest = ""  # the line that was heard last
        self.states: StateOf | None = None

    def recast(self, persona: Persona, reactions: Iterable[Reaction] = ()) -> None:
        """Follow a version of the NPC and of its scene's reactions; what is felt stays."""
        self._npc = persona.id
        self._secrets = persona.secrets
        self.mood.temper = persona.temper
        self.relations.stranger = self.seen.stranger = persona.stranger
        self._reactions, self._words = {}, []
        every = [*persona.reactions, *reactions]
        for reaction in every:
            if reaction.cause == "said":
                entry = LoreEntry(reaction.id, "", keys=reaction.names)
                self._words.append((Trigger(entry), reaction))
            else:
                key = (reaction.cause, reaction.names[0])
                self._reactions.setdefault(key, []).append(reaction)
        feels = every or persona.secrets or self._settings.judge or persona.stranger != Relation()
        self.tokens = self._settings.tokens if feels else 0

    def notes(self, moment: Moment) -> list[Note]:
        """See `NoteSource`. The line that is answered counts already."""
        line, name = moment.line, speaker(moment.line.name)
        if line.kind != "player":
            return []
        alone = moment.audience == frozenset({line.who})
        book = self.relations if alone else self.seen
        fired = book.open(line.who, self._words_in(line, alone=alone), line.ts)
        words = book.of(line.who).moved(_together(fired)).told(name)
        mood = self._mood_after([] if moment.audience else fired, line.ts)
        if mood.level >= FAINT:
            words = [mood.name, *words]
        notes = [Note(", ".join(words), verb="feels")] if words else []
        return notes + self._confided(moment, name)

    def heard(self, line: Line, present: frozenset[str]) -> None:
        """See `NoteSource`: words of a player move feelings."""
        words = self._words_in(line, alone=True)
        self._react(words, line.who, line.ts, private=line.audience is not None)
        self._latest = line.id

    def happened(
        self,
        what: Happening,
        player: str | None,
        now: int,
        *,
        private: bool = False,
        state: WorldState | None = None,
    ) -> None:
        """The game tells of something that this NPC may react to.

        Args:
            player: who caused it; None for the world.
            private: not everybody could see it.
            state: how things were for that player then, for who hears of it later; None: as they
                are.
        """
        if what.details.get("npc", self._npc) != self._npc:
            return  # it happened to another one
        named = self._reactions.get((what.cause, what.name), ())
        fired = [reaction for reaction in named if reaction.fits(what.details)]
        fired = self._that_hold(fired, player or "", state)
        self._react(fired, player, now, private=private)

    def judged(self, player: str, verdict: Verdict, now: int, *, private: bool) -> None:
        """A model thinks that a turn has changed something; it is believed within bounds.

        Args:
            private: the turn was a whisper.
        """
        self.revision += 1
        settings = self._settings
        shift = Shift(*(settings.judge_step * getattr(verdict.shift, axis) for axis in AXES))
        if self.relations.judge(player, shift, settings.judge_per_day, now):
            self._moved.add(player)
        if private:
            return
        self.seen.judge(player, shift, settings.judge_per_day, now)
        if verdict.mood:
            self.mood.stir(verdict.mood, settings.judge_mood, now)

    def confides(self, player: str) -> list[Secret]:
        """The secrets that a player who is alone with the NPC would be told."""
        state = self.states(player) if self.states is not None else WorldState()
        known = _as_felt(state, self.relations.of(player))
        caused = self.relations.caused(player)
        return [each for each in self._secrets if each.open_to(known, caused, self._happened)]

    def take_moved(self) -> Collection[str]:
        """The players who mean something else to the NPC than when this was last asked."""
        moved, self._moved = self._moved, set()
        return moved

    def forget(self, player: str) -> None:
        """A player becomes a stranger again."""
        self.revision += 1
        self.relations.forget(player)
        self.seen.forget(player)
        self._moved.discard(player)

    def snapshot(self) -> dict[str, Any]:
        """Everything there is to keep, as plain data for JSON."""
        levels, at = self.mood.snapshot()
        kept = Snapshot(
            levels=levels,
            at=at,
            players=self.relations.snapshot(),
            seen=self.seen.snapshot(),
            happened=tuple(self._happened),
        )
        built: dict[str, Any] = msgspec.to_builtins(kept)
        return built

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from a snapshot, in place of what is felt now. Numbers out of bounds are bounded.

        Raises:
            ValueError: it is no snapshot; nothing has changed.
        """
        snapshot = msgspec.convert(kept, Snapshot)
        self.mood.restore(snapshot.levels, snapshot.at)
        self.relations.restore(snapshot.players)
        self.seen.restore(snapshot.seen)
        self._happened = dict.fromkeys(snapshot.happened)
        self.revision += 1

    def _words_in(self, line: Line, *, alone: bool) -> list[Reaction]:
        """Reactions to the words of a line, if a player says it to this NPC. Those of a line that
        was heard already, and is answered once more, have done their work.

        Args:
            alone: also those that others must not know of.
        """
        said_to_it = line.kind == "player" and line.npc == self._npc
        if not self._words or not said_to_it or line.id == self._latest:
            return []
        said, world = Said([line.text]), WorldState()
        fired = [reaction for trigger, reaction in self._words if trigger.fires(said, world)]
        fired = self._that_hold(fired, line.who, None)
        return fired if alone else [reaction for reaction in fired if not reaction.personal]

    def _that_hold(
        self, fired: list[Reaction], player: str, state: WorldState | None
    ) -> list[Reaction]:
        """Those whose conditions hold for a player; "" for nobody in particular."""
        if not any(reaction.when for reaction in fired):
            return fired
        if state is None:
            state = self.states(player) if self.states is not None else WorldState()
        state = _as_felt(state, self.relations.of(player))
        return [each for each in fired if all(asked.holds(state) for asked in each.when)]

    def _react(self, fired: list[Reaction], player: str | None, now: int, *, private: bool) -> None:
        if not fired:
            return
        self.revision += 1
        if player is not None and self.relations.react(
            player, self.relations.open(player, fired, now), now
        ):
            self._moved.add(player)
        if private:
            return
        seen = [reaction for reaction in fired if not reaction.personal]
        if player is not None:
            seen = self.seen.open(player, seen, now)
            self.seen.react(player, seen, now)
        _stir(self.mood, seen, now)
        self._happened.update((reaction.id, None) for reaction in seen)

    def _mood_after(self, fired: list[Reaction], now: int) -> Feeling:
        mood = self.mood.copy()
        _stir(mood, fired, now)
        return mood.at(now)

    def _confided(self, moment: Moment, name: str) -> list[Note]:
        """The secrets that everybody who hears the answer may know."""
        if not self._secrets:
            return []
        line, public = moment.line, moment.audience is None
        book = self.seen if public else self.relations
        fired = book.open(line.who, self._words_in(line, alone=not public), line.ts)
        caused = {*book.caused(line.who), *(each.id for each in fired)}
        happened = {*self._happened, *(each.id for each in fired if public)}
        state = _as_felt(moment.state, book.of(line.who).moved(_together(fired)))
        others = (moment.audience or frozenset()) - {line.who}
        told, withheld = list[Note](), False
        for secret in self._secrets:
            if not secret.open_to(state, caused, happened):
                continue
            if public and secret.personal:
                withheld = True
            elif all(self._may_hear(secret, each, moment.state, happened) for each in others):
                told.append(Note(secret.text, priority=secret.priority))
        if withheld and not told:
            told.append(Note(_PRIVATE.format(name), priority=-1))
        return told

    def _may_hear(
        self, secret: Secret, player: str, state: WorldState, happened: Collection[str]
    ) -> bool:
        """Whether another player than the one who speaks, whose `state` is given, may know it."""
        if self.states is not None:
            state = self.states(player)
        elif any(
            condition.about not in {*PUBLIC, "relation"}
            or (condition.about == "relation" and condition.name not in AXES)
            for condition in secret.when
        ):
            return False
        else:
            state = WorldState(state.world, things=state.things)
        known = _as_felt(state, self.relations.of(player))
        return secret.open_to(known, self.relations.caused(player), happened)


def _together(fired: Iterable[Reaction]) -> Shift:
    return sum((reaction.shift for reaction in fired), Shift())


def _stir(mood: Mood, fired: Iterable[Reaction], now: int) -> None:
    for reaction in fired:
        if reaction.mood:
            mood.stir(reaction.mood, reaction.strength / 100, now)


def _as_felt(state: WorldState, relation: Relation) -> WorldState:
    return replace(state, relation={**state.relation, **relation.amounts()})
