"""Payloads of messages to clients, named and shaped as on the wire.

Fields with a default are left out of a message that does not need them; all others always appear.
"""

from typing import Any, Literal

import msgspec

from gameserver.state.registers import Item

Activity = Literal["idle", "listening", "thinking", "speaking", "busy"]
Status = Literal["completed", "interrupted", "cancelled", "failed", "truncated", "abandoned"]
Role = Literal["player", "observer"]
Change = Literal["join", "leave", "away", "back", "update"]


class Ack(msgspec.Struct, frozen=True):
    """`ack`, `scene.left`: done, and nothing to add."""


class Version(msgspec.Struct, frozen=True):
    """Version of the protocol."""

    major: int
    minor: int


class Hello(msgspec.Struct, frozen=True):
    """`hello`: what a client learns before it sends anything."""

    proto: Version
    node: str
    hb_ms: int
    identify_timeout_ms: int
    limits: dict[str, Any]
    features: tuple[str, ...]
    now: int


class SceneTitle(msgspec.Struct, frozen=True):
    """A scene that can be joined."""

    id: str
    title: str


class Welcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """`welcome`: the session has begun."""

    session: str
    resume_token: str
    resume_ms: int
    caps: list[str]
    limits: dict[str, Any]
    player: str
    scenes: list[SceneTitle]
    resumed: bool
    resume_miss: str | None = None


class HeartbeatAck(msgspec.Struct, frozen=True):
    """`heartbeat.ack`: the client's number and the server's clock in ms."""

    n: int
    now: int


class SayAccepted(msgspec.Struct, frozen=True):
    """`say.accepted`: `queue_pos` turns of the NPC come before the answer; 0 = next to speak."""

    msg: str
    queue_pos: int


class PlayerView(msgspec.Struct, frozen=True):
    """Somebody who is in a scene."""

    id: str
    name: str
    state: str
    role: Role


class NpcView(msgspec.Struct, frozen=True):
    """An NPC of a scene; `activity` and `mood` as in `npc.state`."""

    id: str
    name: str
    role: str
    quest_giver: bool
    activity: Activity
    mood: str


class TurnSync(msgspec.Struct, frozen=True):
    """`npc.turn.sync`: `n` chunks of a running turn from chunk `i` on, in one text."""

    turn: str
    npc: str
    i: int
    n: int
    text: str


class Gap(msgspec.Struct, frozen=True, rename={"first": "from", "last": "to"}):
    """Events a client missed for good, inclusive."""

    first: int
    last: int


class QuestView(msgspec.Struct, frozen=True):
    """Where a quest is; `ending` is "" until it has ended."""

    quest: str
    title: str
    stage: str
    journal: str
    ending: str


class SceneView(msgspec.Struct, frozen=True, omit_defaults=True):
    """`scene.joined`, `scene.snapshot`: the scene as it is now."""

    players: list[PlayerView]
    npcs: list[NpcView]
    turns: list[TurnSync]
    meta: dict[str, Any]
    gap: Gap | None = None
    quests: list[QuestView] = []


class SceneMoved(msgspec.Struct, frozen=True, omit_defaults=True):
    """`scene.moved`: another node has the scene; connect there after `delay_ms`. The url is empty
    if it is not known yet. The ticket lets the player in there, once and soon; if it is empty, a
    client shows its own credentials.
    """

    url: str
    ticket: str
    delay_ms: int
    node: str = ""


class PresenceMeta(msgspec.Struct, frozen=True):
    """How to show somebody who came or went."""

    name: str
    role: Role


class PresenceChange(msgspec.Struct, frozen=True):
    """Who came or went."""

    player: str
    what: Change
    meta: PresenceMeta


class Presence(msgspec.Struct, frozen=True):
    """`presence`."""

    changes: list[PresenceChange]


class PlayerSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """`player.said`; `scene` stands where the stream is `me`: in whispers, and with `near` in lines
    that only those in earshot hear.
    """

    msg: str
    player: str
    text: str
    npc: str | None = None
    scene: str | None = None
    near: bool = False


class TurnStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """`npc.turn.start`; `to` names the players who hear a whisper, and is empty otherwise."""

    turn: str
    npc: str
    cause: list[str]
    to: list[str]
    scene: str | None = None


class Delta(msgspec.Struct, frozen=True):
    """`npc.delta`: `n` chunks from chunk `i` on, merged."""

    turn: str
    i: int
    n: int
    text: str


class TurnUsage(msgspec.Struct, frozen=True):
    """The bill of a turn: tokens, and ms since the `say` was received; null = never got there."""

    prompt: int
    cached: int
    completion: int
    queue_ms: int | None
    ttft_ms: int | None
    total_ms: int


class TurnError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a turn failed; `retry_ms` where the same line may be answered later."""

    code: str
    msg: str
    retry_ms: int | None = None


class Emotion(msgspec.Struct, frozen=True):
    """How an NPC feels: a mood, and how strongly, from 0 to 1."""

    name: str
    intensity: float


class TurnAction(msgspec.Struct, frozen=True):
    """An action within a turn: `at_i` chunks of the turn come before it."""

    action: str
    name: str
    args: dict[str, Any]
    at_i: int


class NpcAction(msgspec.Struct, frozen=True):
    """`npc.action`: an NPC does something, and the game says what becomes of it
    (`action.result`). `player` is whom it is for; null: everybody. The id of a turn that begins
    with "q-" belongs to no words: a quest told the NPC to act.
    """

    turn: str
    action: str
    name: str
    args: dict[str, Any]
    at_i: int
    npc: str
    player: str | None


class NpcAside(msgspec.Struct, frozen=True):
    """`npc.aside`: what is not said but shown, like a smile; `at_i` as in `npc.action`."""

    turn: str
    npc: str
    kind: str
    text: str
    at_i: int


class QuestReward(msgspec.Struct, frozen=True):
    """What a game should give to the players of a quest."""

    item: str
    count: int


class QuestUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """`quest.update`: a stage of a quest has begun; `scene` stands in those of one player, whose
    stream is `me`.
    """

    quest: str
    title: str
    stage: str
    journal: str
    ending: str
    rewards: list[QuestReward]
    scene: str | None = None


class TurnEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """`npc.turn.end`: how a turn ended and all of its text; `kept` chunks of it are remembered.
    `emotion` is left out while the NPC is in its resting mood.
    """

    turn: str
    npc: str
    status: Status
    reason: str
    n: int
    text: str
    kept: int
    actions: tuple[TurnAction, ...]
    usage: TurnUsage
    err: TurnError | None = None
    emotion: Emotion | None = None


class NpcState(msgspec.Struct, frozen=True):
    """`npc.state`: what an NPC is doing; `attention` is the player it attends to."""

    npc: str
    rev: int
    activity: Activity
    mood: str
    attention: str | None


class NpcRelation(msgspec.Struct, frozen=True):
    """`npc.relation`, on `me`: what an NPC of a scene thinks of this player now: trust and
    affection from -100 to 100, fear from 0 to 100.
    """

    scene: str
    npc: str
    trust: int
    affection: int
    fear: int


class WorldEvent(msgspec.Struct, frozen=True):
    """`world.event`."""

    name: str
    data: Any
    src: str
    state: bool


class StateDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """`state.delta`: what has changed of a scene's state, up to change `rev`. With `full`, what was
    known before counts no more.
    """

    rev: int
    items: list[Item]
    full: bool = False


class HistoryItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a dialogue, as this player may see it; `heard` is null for all but turns."""

    id: str
    kind: str
    who: str
    name: str
    text: str
    heard: int | None
    ts: int
    npc: str | None = None
    status: str | None = None


class History(msgspec.Struct, frozen=True):
    """`history`: oldest first; `next` is the `before` of the page before this one."""

    items: list[HistoryItem]
    next: str | None


class Notice(msgspec.Struct, frozen=True):
    """`notice`."""

    code: str
    data: dict[str, Any]


class Reconnect(msgspec.Struct, frozen=True):
    """`reconnect`: come back after this long."""

    delay_ms: int
    reason: str
