"""The story of a running scene as its clients see it: actions of NPCs go out and their results come
in; quests move, and players are told.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gameserver.answer import Answer, Cue
from gameserver.commands import ContextSet
from gameserver.messages import NpcAction, QuestReward, QuestUpdate, QuestView, TurnAction
from gameserver.protocol import Code, Refusal, new_id
from gameserver.streams import Stream
from npc.actions.offer import Act, Offer
from npc.cast import OpenScene
from npc.notes import NoteSource
from npc.quests.book import SHARED, Change
from npc.story import RelationOf, Story
from scenes.conditions import WorldState
from scenes.reactions import Happening

if TYPE_CHECKING:
    from gameserver.session import Session

#: Longest text of a context item in characters, and most entries of a list.
_TEXT = 200
_ENTRIES = 64

#: Tells NPCs' feelings of something: (what, who caused it, whether only that player saw it).
Felt = Callable[[Happening, str | None, bool], None]


@dataclass(frozen=True, slots=True)
class Brief:
    """What an NPC is told before it answers a line.

    Attributes:
        state: of the world, for this NPC and the player it answers.
        offer: what it may do; None: it only talks.
        urgent: whether the player waits for it because of a quest.
    """

    state: WorldState
    offer: Offer | None
    urgent: bool


class Plot:
    """Writes what the story has to say into a scene's streams.

    Attributes:
        story: where everything is kept.
    """

    def __init__(
        self,
        stream: Stream,
        pack: OpenScene,
        members: Collection["Session"],
        relation: RelationOf,
        felt: Felt,
    ) -> None:
        """`members` are the sessions in the scene, as they come and go."""
        self.story = Story(pack, relation)
        self._stream = stream
        self._pack = pack
        self._members = members
        self._felt = felt

    def adopt(self, pack: OpenScene) -> None:
        """Follow a new version of the pack."""
        self._pack = pack
        self._announce(self.story.adopt(pack))

    def enter(self, player: str) -> None:
        """A player has come in."""
        self._announce(self.story.enter(player))

    def sources(self, npc: str) -> tuple[NoteSource, ...]:
        """What the story puts into an NPC's mind."""
        return self.story.sources(npc)

    def brief(self, npc: str, cue: Cue) -> Brief:
        """What an NPC is told before it answers."""
        player = cue.session.player
        hearers = cue.hearers
        if hearers is None:
            hearers = frozenset(member.player for member in self._members)
        return Brief(
            self.story.state(npc, player),
            self.story.offer(npc, player, sorted(hearers)),
            self.story.urgent(npc, player),
        )

    def act(self, npc: str, answer: Answer, act: Act) -> TurnAction:
        """An NPC acts while it speaks: `npc.action`."""
        session, turn = answer.cue.session, answer.turn
        turn.publish()  # clients see the words before it first
        done = TurnAction(new_id("a"), act.name, dict(act.args), len(turn.chunks))
        self.story.did(npc, done.action, act, session.player, session.name, answer.cue.hearers)
        _send(turn.streams, _action(turn.id, npc, session.player or None, done))
        return done

    def settle(self, player: str | None, action: str, ok: bool, data: Any) -> None:
        """The game of a player, or None: another system of it, says what became of an action.

        Raises:
            Refusal: `no_turn`, no such action waits for a result of theirs.
        """
        settled = self.story.settle(action, player, ok, data)
        if settled is None:
            raise Refusal(Code.NO_TURN, "no such action waits for a result of yours")
        npc, deed, changes = settled
        what = Happening("action", deed.act.name, {**deed.act.args, "npc": npc, "ok": ok})
        self._felt(what, player or deed.player or None, deed.audience is not None)
        self._announce(changes)

    def tell(self, session: "Session", told: ContextSet) -> None:
        """A game tells of its player; raises `Refusal` for what the scene file does not list."""
        items: dict[str, Any] = {}
        for item in told.items:
            if item.k not in self._pack.context:
                problem = f"this scene takes no context {item.k[:64]!r} from players"
                raise Refusal(Code.FORBIDDEN, problem)
            if not _is_plain(item.v):
                problem = f"context {item.k}: v must be null, a number, true, false, a short text "
                raise Refusal(Code.BAD_FIELD, problem + "or a list of those")
            items[item.k] = item.v
        if told.npc and told.npc not in self._pack.npcs:
            raise Refusal(Code.NO_NPC, f"nobody here is called {told.npc[:64]!r}")
        self._announce(self.story.tell(session.player, items, told.npc or ""))

    def happened(self, what: Happening, player: str) -> None:
        """An event of the game may move quests."""
        self._announce(self.story.happened(what, player))

    def occurred(self, what: Happening) -> None:
        """Something that nobody caused may move everybody's quests, and those of who is here."""
        players = sorted({member.player for member in self._members})
        self._announce(self.story.occurred(what, players))

    def pass_time(self) -> None:
        """Give up actions that nobody answers, and end stages whose time is over. Call about once a
        second.
        """
        self._announce(self.story.tick())

    def quests(self, player: str) -> list[QuestView]:
        """Where the quests of the scene are for a player."""
        return [
            QuestView(quest.id, quest.title, stage.id, stage.journal, stage.ending)
            for quest, stage in self.story.book.of(player)
        ]

    def _announce(self, changes: Iterable[Change]) -> None:
        for change in changes:
            quest, stage, owner = change.quest, change.stage, change.owner
            if change.before:  # the first stage is seen in the scene's view
                rewards = [QuestReward(reward.item, reward.count) for reward in stage.rewards]
                scene = None if owner == SHARED else self._stream.id
                update = QuestUpdate(
                    quest.id, quest.title, stage.id, stage.journal, stage.ending, rewards, scene
                )
                for stream in self._streams(owner):
                    stream.append("quest.update", update)
                what = Happening("quest", quest.id, {"stage": stage.id})
                self._felt(what, change.player or owner or None, owner != SHARED)
            for order in stage.orders:
                self._order(change, order.npc, Act(order.action, order.args))

    def _order(self, change: Change, npc: str, act: Act) -> None:
        """An NPC acts because a quest says so: in a turn of its own, of which nothing is heard."""
        player = change.player or change.owner
        audience = None if change.owner == SHARED else frozenset([change.owner])
        names = (member.name for member in self._members if member.player == player)
        name = next(names, player) or "everybody"
        done = TurnAction(new_id("a"), act.name, dict(act.args), 0)
        self.story.did(npc, done.action, act, player, name, audience)
        _send(self._streams(change.owner), _action(new_id("q"), npc, player or None, done))

    def _streams(self, owner: str) -> list[Stream]:
        if owner == SHARED:
            return [self._stream]
        return [member.private for member in self._members if member.player == owner]


def _action(turn: str, npc: str, player: str | None, done: TurnAction) -> NpcAction:
    return NpcAction(turn, done.action, done.name, done.args, done.at_i, npc, player)


def _send(streams: Iterable[Stream], body: NpcAction) -> None:
    for stream in streams:
        stream.append("npc.action", body)


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= _ENTRIES and all(_is_word(entry) for entry in value)
    return value is None or _is_word(value)


def _is_word(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _TEXT
    return isinstance(value, (bool, int, float))
