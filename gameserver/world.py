"""All scenes of this node: which packs can be played, and which are running."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from engine.ticket import Ticket
from gameserver.access import Pass
from gameserver.budgets import Budgets
from gameserver.forgetting import SCENES, forget_in_scene
from gameserver.messages import SceneTitle
from gameserver.nodes.card import persona_set
from gameserver.nodes.placement import Placement
from gameserver.overload.overload import Overload
from gameserver.protocol import Code, Refusal, encoded_size
from gameserver.safety import Safety
from gameserver.scene_actor import SceneActor
from gameserver.settings import Settings
from gameserver.stores.journal import Book, Journal
from gameserver.stores.lease import Leases
from gameserver.stores.store import Elsewhere, StoreDown
from gameserver.tally import Tally
from gameserver.tenants import EVERYTHING, Remit, Tenants
from npc.cast import Cast, OpenScene

if TYPE_CHECKING:
    from gameserver.session import Session

_Adopt = Callable[[str, Iterable[str]], Awaitable[Mapping[str, "Session"]]]
_LONGEST_ID = 64
#: Bytes of a title in a message beside id and words.
_TITLE_BYTES = 24


class World:
    """Starts scenes when somebody joins them and forgets those that nobody is in.

    Attributes:
        actors: the running scenes by stream id.
        journal: what everybody writes to.
        draining: whether nothing new may begin.
    """

    def __init__(
        self,
        cast: Cast,
        settings: Settings,
        tally: Tally,
        safety: Safety,
        budgets: Budgets,
        overload: Overload,
        journal: Journal,
        *,
        cancel: Callable[[Ticket], None],
        on_prompt: Callable[[str, str, Ticket], None] | None,
    ) -> None:
        """`cancel` ends a request of the engine; `on_prompt` is shown the scene, the turn and the
        prompt of each turn."""
        self.actors: dict[str, SceneActor] = {}
        self.journal = journal
        #: Sessions by id that an earlier process knew to be in a scene; those that still are.
        self.adopt_sessions: _Adopt = _nobody
        #: Told of each scene that runs here from now on, and of each that does not any more.
        self.on_open: Callable[[SceneActor], None] = lambda actor: None
        self.on_gone: Callable[[SceneActor], None] = lambda actor: None
        #: What this node holds in a store that others use, too, and where scenes begin.
        self.leases: Leases | None = None
        self.placement: Placement | None = None
        self._kept_at = time.monotonic()
        self._opening: dict[str, asyncio.Task[Elsewhere | None]] = {}
        self.draining = False
        #: Which scenes are whose.
        self.tenants = Tenants(settings.tenants)
        self._cast = cast
        self._settings = settings
        self._tally = tally
        self._safety = safety
        self._budgets = budgets
        self._overload = overload
        self._cancel = cancel
        self._on_prompt = on_prompt

    def shows(self, grant: Pass, stream_id: str) -> bool:
        """Whether there is such a scene, running or a pack's own, that who has this pass may know
        of."""
        actor = self.actors.get(stream_id)
        pack = self._cast.scenes.get(stream_id) if actor is None else actor.pack
        return pack is not None and self.tenants.owner(pack.id) == grant.tenant

    @property
    def is_speaking(self) -> bool:
        """Whether any NPC is."""
        return any(
            floor.answer is not None
            for actor in self.actors.values()
            for floor in actor.floors.values()
        )

    def titles(self, grant: Pass) -> list[SceneTitle]:
        """What can be joined with a pass, as far as it fits into a message; the rest can, too."""
        shown: list[SceneTitle] = []
        room = self._settings.limits.out_bytes // 2
        for pack in self._cast.scenes.values():
            if not self.tenants.admit(grant, pack.id):
                continue
            room -= len(pack.id) + encoded_size(pack.title) + _TITLE_BYTES
            if room < 0:
                break
            shown.append(SceneTitle(pack.id, pack.title))
        return shown

    def enter(self, scene: str, instance: str | None) -> SceneActor:
        """The running scene of a pack, or of an instance of it, once it is open.

        Raises:
            Refusal: `no_scene`, `forbidden` (no instances), `bad_field` or `busy`.
        """
        stream_id = stream_of(scene, instance)
        actor = self.actors.get(stream_id)
        if actor is not None and actor.pack.id == scene:
            return actor
        self._check(scene, instance)
        raise Refusal(Code.BUSY, f"{stream_id} cannot be opened just now", retry_ms=1000)

    async def open(
        self, scene: str, instance: str | None, *, here: bool = False
    ) -> Elsewhere | None:
        """Start a scene, or go on with one that an earlier process has left, if it does not run and
        may: `enter` then finds it, or says what is wrong. Who wants it meanwhile waits, too.

        Args:
            here: if no node has it, this one takes it, whatever the placement says.

        Returns:
            The node that has it, or is to have it, if that is another one.
        """
        stream_id = stream_of(scene, instance)
        if stream_id in self.actors or self.draining or not self._may_open(scene, instance):
            return None
        if stream_id not in self._opening:
            task = asyncio.get_running_loop().create_task(self._try(scene, stream_id, here))
            self._opening[stream_id] = task
            task.add_done_callback(lambda _: self._opening.pop(stream_id, None))
        return await asyncio.shield(self._opening[stream_id])

    async def open_kept(self, prefix: str) -> None:
        """Open the scenes in whose books something lies under keys that begin so, as far as no
        other node has them."""
        for bucket in await self.journal.store.buckets(SCENES):
            await self.reopen(bucket.removeprefix(SCENES), prefix)

    async def reopen(self, stream_id: str, prefix: str = "") -> bool:
        """Open a scene that an earlier process has left, if something lies in its book under keys
        that begin so. Returns whether another node has it.

        Raises:
            Refusal, StoreDown: the store does not answer.
        """
        pack = self.tenants.pack_of(stream_id, self._cast.scenes)
        if pack not in self._cast.scenes or stream_id in self.actors:
            return False
        keys = await self.journal.store.keys(f"{SCENES}{stream_id}")
        if not any(key.startswith(prefix) for key in keys):
            return False
        return await self.open(pack, stream_id[len(pack) + 1 :] or None, here=True) is not None

    async def place(self, scene: str, stream_id: str) -> Elsewhere | None:
        """The other node that has a scene, or is to have it; None if this one may claim it. Raises
        `StoreDown`.
        """
        pack = self._cast.scenes.get(scene)
        if self.placement is None or pack is None or stream_id in self.actors:
            return None
        return await self.placement.elsewhere(f"scene.{stream_id}", persona_set(pack.npcs))

    async def holders(self, streams: Iterable[str]) -> list[Elsewhere | None]:
        """Which other nodes have these scenes. Raises `StoreDown`."""
        if self.leases is None:
            return [None for _ in streams]
        return [await self.leases.holder(f"scene.{stream}") for stream in streams]

    async def open_all(self, session: "Session") -> None:
        """Open the scenes that an earlier process knew a session to be in. It leaves those that it
        has no seat in, that another node has, or that are not there any more.

        Raises:
            Refusal: one cannot be opened just now.
        """
        for stream_id, place in session.diary.places().items():
            elsewhere = await self.open(*place, here=True)
            actor = self.actors.get(stream_id)
            if actor is not None and actor.has(session):
                session.diary.settle(stream_id)
            elif actor is not None or elsewhere is not None or not self._exists(*place):
                session.diary.leave(stream_id)
            else:
                raise Refusal(Code.BUSY, f"{stream_id} cannot be opened just now", retry_ms=1000)

    async def _try(self, scene: str, stream_id: str, here: bool) -> Elsewhere | None:
        try:
            return await self._open(scene, stream_id, here)
        finally:
            if self.leases is not None and stream_id not in self.actors:
                self.leases.held.pop(f"scene.{stream_id}", None)  # nobody runs it: others may

    async def _open(self, scene: str, stream_id: str, here: bool) -> Elsewhere | None:
        try:
            placed = None if here else await self.place(scene, stream_id)
            if placed is not None:
                return placed
            held = await self.journal.store.claim(f"scene.{stream_id}", lease=True)
            if isinstance(held, Elsewhere):
                return held
            if self.leases is not None:
                self.leases.held[f"scene.{stream_id}"] = held.epoch
            book = Book(f"scene.{stream_id}", self.journal, held)
            sessions = await self.adopt_sessions(stream_id, SceneActor.seats(book))
            if self.leases is not None and self.leases.held.get(book.name) != held.epoch:
                raise StoreDown("it was lost while it was being read")
        except StoreDown as down:
            self._tally.count("store_failures")
            raise Refusal(
                Code.BUSY, f"{stream_id} cannot be read just now", retry_ms=1000
            ) from down
        pack = self._cast.scenes.get(scene)
        if pack is None:
            return None  # it went while we waited
        self.journal.begin()
        actor = SceneActor(
            stream_id,
            book,
            pack,
            self._settings,
            self._tally,
            self._safety,
            self._budgets.of(self.tenants.owner(pack.id)),
            self._overload,
            cancel=self._cancel,
            on_prompt=self._on_prompt and partial(self._on_prompt, stream_id),
        )
        actor.restore(sessions)
        self.actors[stream_id] = actor
        self.on_open(actor)
        if self.journal.store.survives:
            self._keep(stream_id)
        return None

    def _exists(self, scene: str, instance: str | None) -> bool:
        """Whether there is such a scene, running or not."""
        try:
            self._find(scene, instance)
        except Refusal:
            return False
        return True

    def _may_open(self, scene: str, instance: str | None) -> bool:
        try:
            self._check(scene, instance)
        except Refusal:
            return False
        return True

    def _check(self, scene: str, instance: str | None) -> None:
        """Raise `Refusal` if a scene that does not run cannot be opened; else there is room."""
        self._find(scene, instance)
        if len(self.actors) >= self._settings.flow.scenes:
            self._forget_the_longest_empty()

    def _find(self, scene: str, instance: str | None) -> None:
        """Raise `Refusal` if there is no such scene."""
        pack = self._cast.scenes.get(scene)
        if pack is None:
            raise no_scene(scene)
        stream_id = stream_of(scene, instance)
        if instance is not None and not pack.allows_instances:
            raise Refusal(Code.FORBIDDEN, f"{scene} has no instances")
        actor = self.actors.get(stream_id)
        packs = self._cast.scenes
        played = self.tenants.pack_of(stream_id, packs) if actor is None else actor.pack.id
        if played != scene:  # ids may hold dots: that is another pack's
            raise no_scene(stream_id)
        if len(stream_id) > _LONGEST_ID:
            raise Refusal(Code.BAD_FIELD, f"{stream_id} is longer than {_LONGEST_ID} characters")

    def lose(self, lost: Mapping[str, int]) -> set["Session"]:
        """Other nodes own these scenes. Returns the sessions that were in them."""
        gone: set[Session] = set()
        for stream_id, actor in list(self.actors.items()):
            if lost.get(f"scene.{stream_id}") == actor.stream.ep:
                del self.actors[stream_id]
                self.on_gone(actor)
                gone.update(actor.fence())
                if self.leases is not None:
                    self.leases.held.pop(f"scene.{stream_id}", None)
        return gone

    def freeze(self) -> None:
        """The store does not answer for so long that others may own our scenes soon."""
        for actor in self._each():
            actor.freeze()

    def keep(self, bucket: str) -> None:
        """A scene has written something that is about to be kept: add what is kept as a whole."""
        actor = self.actors.get(bucket.removeprefix("scene."))
        if actor is not None:
            actor.keep()

    def forget_idle(self) -> None:
        """Drop instances that have been empty for long, and NPCs that are no longer part of a
        scene, and let moods die away and quests run out. Call about once a second.
        """
        for actor in self._each():
            actor.ensemble.forget_gone()
            actor.plot.pass_time()
            actor.state.pass_time()
            if actor.members:
                actor.ensemble.look()
        idle_s = self._settings.flow.scene_idle_s
        if self.journal.store.survives and time.monotonic() - self._kept_at >= idle_s / 4:
            self._kept_at = time.monotonic()
            for stream_id in self.actors:
                self._keep(stream_id)
        deadline = time.monotonic() - idle_s
        for since, stream_id in self._empty_instances():
            if since < deadline:
                self._forget(stream_id)

    def adopt(self, pack: OpenScene) -> None:
        """Let the running scenes of a pack follow a new version of it."""
        for actor in self._each():
            if actor.pack.id == pack.id:
                actor.adopt(pack)

    def remit(self, game: str | None) -> Remit:
        """What a game, or the house, may see of all that is here now; None: all of it."""
        played = {stream: actor.pack.id for stream, actor in self.actors.items()}
        return self.tenants.remit(game, self._cast.scenes, played)

    def forget(self, player: str, npc: str | None, remit: Remit = EVERYTHING) -> None:
        """Let all NPCs, or those with an id, forget what a player has said."""
        for stream_id, actor in self.actors.items():
            if remit.scene(stream_id):
                actor.forget(player, npc)

    async def forget_at_rest(self, player: str, npc: str | None, remit: Remit = EVERYTHING) -> None:
        """The same in what is kept of scenes that do not run, but for those that other nodes have.
        Who wants to join one meanwhile is asked to try again. Raises `StoreDown`.
        """
        for bucket in await self.journal.store.buckets(SCENES):
            stream_id = bucket.removeprefix(SCENES)
            at_rest = stream_id not in self.actors and stream_id not in self._opening
            if at_rest and remit.scene(stream_id):
                work = forget_in_scene(self.journal, bucket, player, npc)
                task = asyncio.get_running_loop().create_task(work)
                self._opening[stream_id] = task
                try:
                    await task
                finally:
                    del self._opening[stream_id]
        await self.journal.store.scrub()

    def close(self) -> None:
        """The server goes: every turn ends."""
        for actor in self._each():
            actor.close()

    def halt(self) -> None:
        """No more words of a model: every turn ends."""
        for actor in self._each():
            actor.halt()

    def abandon(self) -> None:
        """End turns whose end the engine did not confirm."""
        for actor in self._each():
            actor.abandon()

    def _each(self) -> Iterator[SceneActor]:
        """The running scenes, each with a unit of the journal of its own: if one is somebody else's
        by now, the others are not."""
        for actor in list(self.actors.values()):
            self.journal.begin()
            yield actor

    def _empty_instances(self) -> list[tuple[float, str]]:
        """Since when each instance is empty that is. The packs' own scenes stay: there NPCs
        remember those who come back."""
        return [
            (actor.empty_since, stream_id)
            for stream_id, actor in self.actors.items()
            if actor.empty_since is not None and stream_id not in self._cast.scenes
        ]

    def _forget_the_longest_empty(self) -> None:
        empty = self._empty_instances()
        if not empty:
            raise Refusal(Code.BUSY, "too many scenes are running", retry_ms=10_000)
        self._forget(min(empty)[1])

    def _keep(self, stream_id: str) -> None:
        """Let the store forget an instance a while after this: its node may not come back. The
        packs' own scenes stay."""
        if stream_id not in self._cast.scenes:
            self.journal.begin()
            book = self.actors[stream_id].ledger.book
            book.keep(max(self._settings.flow.scene_idle_s * 1.5, 1.0))

    def _forget(self, stream_id: str) -> None:
        self.journal.begin()
        actor = self.actors.pop(stream_id)
        self.on_gone(actor)
        actor.ledger.book.erase()
        if self.leases is not None:
            self.leases.held.pop(f"scene.{stream_id}", None)

    def gauges(self) -> dict[str, float]:
        """Counts of what is running."""
        floors = [floor for actor in self.actors.values() for floor in actor.floors.values()]
        return {
            "scenes": len(self.actors),
            "members": sum(actor.members for actor in self.actors.values()),
            "turns_running": sum(floor.answer is not None for floor in floors),
            "lines_waiting": sum(floor.waiting for floor in floors),
        }


async def _nobody(stream: str, names: Iterable[str]) -> "Mapping[str, Session]":
    return {}


def no_scene(scene: str) -> Refusal:
    """There is none, as far as a client may know."""
    return Refusal(Code.NO_SCENE, f"there is no scene {scene!r}")


def stream_of(scene: str, instance: str | None) -> str:
    """The stream id of a pack's scene, or of an instance of it."""
    return scene if instance is None else f"{scene}.{instance}"
