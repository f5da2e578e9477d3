"""What those who run a server may see of its NPCs: plain data for the console.

Nothing is hidden here, whispers and secrets included; who may look is the console's business.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from engine.ticket import Ticket
from engine.tokenizer import Tokenizer
from gameserver.budgets import Budgets, Spending
from gameserver.floor import Floor
from gameserver.messages import Activity
from gameserver.protocol import now_ms
from gameserver.scene_actor import SceneActor
from gameserver.sheet import (
    LineView,
    MoodPoint,
    MoodView,
    NpcRow,
    Overview,
    PersonaView,
    PromptPart,
    PromptView,
    QuestRow,
    RelationPoint,
    RelationView,
    SceneRow,
    SecretView,
    Seen,
    Sheet,
)
from gameserver.tenants import Remit
from gameserver.world import World
from npc.cast import OpenScene
from npc.feelings import Feelings
from npc.mood import Temper
from npc.persona import Persona
from npc.quests.graph import graph_svg
from npc.quests.quest import Quest
from npc.relations import Relation, Relations
from npc.roster import Npc
from npc.secrets import Secret
from npc.transcript import Line
from scenes.conditions import in_words

#: What one answer holds at most; the rest is counted.
_SCENES, _PLAYERS, _PROMPTS, _LINES = 100, 100, 8, 60


@dataclass(frozen=True, slots=True)
class InspectedPrompt:
    """What the model was given for one turn.

    Attributes:
        scene: that the turn belongs to, by the id it runs under.
        text: of all tokens, control tokens spelled out.
        token_ids: the whole prompt.
        borders: how many of them are the scene's, and how many the scene's and the persona's.
    """

    scene: str
    text: str
    token_ids: tuple[int, ...]
    borders: tuple[int, int]


class Inspector:
    """Looks into a world without touching it."""

    def __init__(
        self,
        world: World,
        prompts: Mapping[str, InspectedPrompt] | None,
        tokenizer: Tokenizer,
        budgets: Budgets,
    ) -> None:
        """`prompts` are those of recent turns by turn id; None where none are kept."""
        self._world = world
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._budgets = budgets

    def overview(self, remit: Remit) -> Overview:
        """The running scenes and their NPCs, as far as somebody may see them."""
        actors = [a for a in self._world.actors.values() if remit.scene(a.stream.id)]
        actors.sort(key=lambda actor: -actor.members)
        scenes = [
            SceneRow(
                actor.stream.id,
                actor.pack.title,
                _players(actor),
                [_row(npc, actor.floors.get(npc.id)) for npc in actor.pack.npcs.values()],
            )
            for actor in actors[:_SCENES]
        ]
        return Overview(scenes, len(actors) - len(scenes))

    def sheet(self, scene: str, npc: str, remit: Remit) -> Sheet | None:
        """Everything about one NPC of a running scene; None if there is no such scene or NPC that
        somebody may see.
        """
        actor = self._world.actors.get(scene)
        if actor is None or not remit.scene(scene) or npc not in actor.pack.npcs:
            return None
        floor, now = actor.floors.get(npc), now_ms()
        persona = actor.pack.npcs.persona(npc)
        feelings = floor.dialogue.feelings if floor is not None else None
        known = _known(actor, feelings)
        return Sheet(
            actor.stream.id,
            actor.pack.title,
            now,
            _row(actor.pack.npcs[npc], floor),
            _persona(persona, actor.pack),
            _mood(feelings, persona.temper, now),
            [_relation(feelings, *who) for who in known[:_PLAYERS]] if feelings else [],
            max(len(known) - _PLAYERS, 0),
            self._prompts_of(floor),
            [_line(line) for line in floor.dialogue.newest(_LINES)] if floor else [],
            [_quest(quest, npc, actor) for quest in actor.pack.quests.values()],
            self._budgets.of_npc(floor.account) if floor else Spending(0, 0, 0.0, 0),
            self._budgets.of_game(remit.game),
        )

    def _prompts_of(self, floor: Floor | None) -> list[PromptView] | None:
        if self._prompts is None:
            return None
        turns = floor.turns[::-1] if floor is not None else []
        kept = [(turn, self._prompts[turn]) for turn in turns if turn in self._prompts]
        return [self._prompt(turn, prompt) for turn, prompt in kept[:_PROMPTS]]

    def _prompt(self, turn: str, prompt: InspectedPrompt) -> PromptView:
        ids = prompt.token_ids
        edges = (0, *prompt.borders, len(ids))
        names = ("scene", "persona", "turn")
        parts = [
            PromptPart(name, self._tokenizer.spell(ids[start:end]), end - start)
            for name, (start, end) in zip(names, pairwise(edges), strict=True)
        ]
        return PromptView(turn, len(ids), parts)


def inspected(place: str, ticket: Ticket, tokenizer: Tokenizer) -> InspectedPrompt:
    """The prompt of a request from a scene, by the id that this runs under, to be kept."""
    ids, prefix = ticket.all_prompt_ids(), ticket.prefix
    persona = prefix.total if prefix is not None else 0
    scene = prefix.parent.total if prefix is not None and prefix.parent is not None else 0
    return InspectedPrompt(place, tokenizer.spell(ids), ids, (scene, persona))


def _players(actor: SceneActor) -> list[Seen]:
    return [Seen(*player) for player in actor.attendance.players()]


def _row(npc: Npc, floor: Floor | None) -> NpcRow:
    activity: Activity = "idle"
    mood, waiting = npc.mood, 0
    if floor is not None:
        activity, mood, waiting = floor.face.activity, floor.face.mood, floor.waiting
    return NpcRow(npc.id, npc.name, npc.role, npc.kind, activity, mood, waiting, floor is not None)


def _persona(persona: Persona, pack: OpenScene) -> PersonaView:
    return PersonaView(
        persona.voice,
        list(persona.knows),
        persona.greeting,
        list(persona.factions),
        [action.name for action in persona.actions],
        len(persona.examples),
        len(persona.lore),
        [reaction.id for reaction in (*persona.reactions, *pack.reactions)],
        [_secret(secret) for secret in persona.secrets],
    )


def _secret(secret: Secret) -> SecretView:
    conditions = [
        *map(in_words, secret.when),
        *(f"after {reaction}" for reaction in secret.after),
        *(f"{reaction} happened" for reaction in secret.happened),
    ]
    return SecretView(secret.id, secret.text, conditions, secret.personal)


def _mood(feelings: Feelings | None, temper: Temper, now: int) -> MoodView:
    if feelings is None:
        return MoodView(temper.resting, 0.0, temper.resting, temper.half_life_s, {}, [])
    mood = feelings.mood
    felt = mood.at(now)
    history = [MoodPoint(s.at, s.feeling.name, s.feeling.level) for s in mood.history]
    levels = mood.levels(now)
    return MoodView(felt.name, felt.level, temper.resting, temper.half_life_s, levels, history)


def _known(actor: SceneActor, feelings: Feelings | None) -> list[tuple[str, str, bool]]:
    """Whom an NPC may think something of: id, name, and whether they are in the scene."""
    here = {player: name for player, name, _ in actor.attendance.players()}
    away: Iterator[str] = reversed([*feelings.relations]) if feelings is not None else iter(())
    known = [(player, name, True) for player, name in here.items()]
    return known + [(player, player, False) for player in away if player not in here]


def _relation(feelings: Feelings, player: str, name: str, here: bool) -> RelationView:
    relations: Relations = feelings.relations
    now, seen = relations.of(player), feelings.seen.of(player)
    return RelationView(
        player,
        name,
        here,
        now.trust,
        now.affection,
        now.fear,
        _point(0, seen),
        now.told(name),
        list(relations.caused(player)),
        [secret.id for secret in feelings.confides(player)],
        [_point(change.at, change.relation) for change in relations.history(player)],
    )


def _point(at: int, relation: Relation) -> RelationPoint:
    return RelationPoint(at, relation.trust, relation.affection, relation.fear)


def _quest(quest: Quest, npc: str, actor: SceneActor) -> QuestRow:
    book, players = actor.plot.story.book, [player for player, _, _ in actor.attendance.players()]
    asked = [""] if quest.shared or not players else players
    stages = {player: book.stages(player)[quest.id] for player in asked}
    now = stages[asked[0]] if len(set(stages.values())) == 1 else ""
    journal = quest.stages[now].journal if now else ""
    gives = quest.giver == npc
    return QuestRow(quest.id, quest.title, gives, stages, journal, graph_svg(quest, now))


def _line(line: Line) -> LineView:
    to = None if line.audience is None else sorted(line.audience)
    return LineView(line.id, line.kind, line.who, line.name, line.text, line.ts, to, line.status)
