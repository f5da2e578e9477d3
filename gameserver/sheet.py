"""What the console shows of NPCs, named and shaped as in its JSON."""

import msgspec

from gameserver.budgets import Spending
from gameserver.messages import Activity


class Seen(msgspec.Struct, frozen=True):
    """A player in a running scene."""

    id: str
    name: str
    state: str


class NpcRow(msgspec.Struct, frozen=True):
    """An NPC in a few words. `waiting` lines wait for it; `awake` is whether it was ever needed."""

    id: str
    name: str
    role: str
    kind: str
    activity: Activity
    mood: str
    waiting: int
    awake: bool


class SceneRow(msgspec.Struct, frozen=True):
    """A running scene."""

    id: str
    title: str
    players: list[Seen]
    npcs: list[NpcRow]


class Overview(msgspec.Struct, frozen=True):
    """All running scenes, those with most players first; `more` are left out."""

    scenes: list[SceneRow]
    more: int


class SecretView(msgspec.Struct, frozen=True):
    """A secret and what it waits for."""

    id: str
    text: str
    conditions: list[str]
    personal: bool


class PersonaView(msgspec.Struct, frozen=True):
    """Who an NPC is, as its file says."""

    voice: str
    knows: list[str]
    greeting: str
    factions: list[str]
    actions: list[str]
    examples: int
    lore: int
    reactions: list[str]
    secrets: list[SecretView]


class MoodPoint(msgspec.Struct, frozen=True):
    """A mood as something left it, at a wall clock in ms."""

    at: int
    name: str
    level: float


class MoodView(msgspec.Struct, frozen=True):
    """How an NPC feels; `levels` are those of all moods that have not died away."""

    name: str
    level: float
    resting: str
    half_life_s: int
    levels: dict[str, float]
    history: list[MoodPoint]


class RelationPoint(msgspec.Struct, frozen=True):
    """A relation as it became, at a wall clock in ms."""

    at: int
    trust: int
    affection: int
    fear: int


class RelationView(msgspec.Struct, frozen=True):
    """What an NPC thinks of a player.

    `seen` is the part that others could know of, `told` how a prompt puts it, `caused` the
    reactions, and `confided` the secrets that the player alone would be told.
    """

    player: str
    name: str
    here: bool
    trust: int
    affection: int
    fear: int
    seen: RelationPoint
    told: list[str]
    caused: list[str]
    confided: list[str]
    history: list[RelationPoint]


class PromptPart(msgspec.Struct, frozen=True):
    """A part of a prompt: the scene's, the persona's, or the turn's own."""

    name: str
    text: str
    tokens: int


class PromptView(msgspec.Struct, frozen=True):
    """What the model was given for a turn."""

    turn: str
    tokens: int
    parts: list[PromptPart]


class LineView(msgspec.Struct, frozen=True):
    """Something that was said; `to` names the players who heard a whisper, null is everybody."""

    id: str
    kind: str
    who: str
    name: str
    text: str
    ts: int
    to: list[str] | None
    status: str | None


class QuestRow(msgspec.Struct, frozen=True):
    """A quest of the scene.

    `gives` is whether this NPC gives it; `stages` has the stage of each player in the scene, and of
    a shared quest one for all, whose player is "". `svg` is its drawing, with that one marked.
    """

    id: str
    title: str
    gives: bool
    stages: dict[str, str]
    journal: str
    svg: str


class Sheet(msgspec.Struct, frozen=True):
    """Everything about one NPC.

    `prompts` is null where the server does not keep them. `relations` are those to players in the
    scene and those that changed last; `more` are left out. `spent` is the NPC's own budget,
    `spent_by_all` the server's, or that of the one game that is looked at.
    """

    scene: str
    title: str
    now: int
    npc: NpcRow
    persona: PersonaView
    mood: MoodView
    relations: list[RelationView]
    more: int
    prompts: list[PromptView] | None
    lines: list[LineView]
    quests: list[QuestRow]
    spent: Spending
    spent_by_all: Spending
