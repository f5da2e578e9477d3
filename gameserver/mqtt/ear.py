"""The bridge's place in one scene.

It listens to the scene's stream as a client does, so it hears what everybody in the scene may, and
no whisper. What it has to pass on and is promised (quality 1) lies in the scene's book, written
together with the event itself, until the broker has it: neither a broker that is away nor the end
of this process loses it, and whoever runs the scene next goes on with it.

In the same book are the ids of what came in lately, each written together with what became of it.
So a message that is delivered again, after a crash and to whichever node, is known.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import msgspec

from gameserver.mqtt.outgoing import Parcel
from gameserver.mqtt.topics import Topics
from gameserver.protocol import now_ms
from gameserver.scene_actor import SceneActor
from gameserver.settings import MqttSettings
from gameserver.stores.journal import Journal
from gameserver.streams import Event, Latest


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """A parcel as it is written down. `at` is the wall clock, in ms."""

    topic: str
    payload: bytes
    eid: str
    answers: str
    about: str
    at: int


class Ear:
    """See above.

    Attributes:
        actor: the scene.
        over: whether the scene's book is not ours any more.
    """

    __slots__ = (
        "_add",
        "_came",
        "_came_shelf",
        "_journal",
        "_mark",
        "_s",
        "_settings",
        "_shelf",
        "_stirred",
        "_topics",
        "actor",
        "over",
    )

    def __init__(
        self,
        actor: SceneActor,
        topics: Topics,
        settings: MqttSettings,
        journal: Journal,
        *,
        add: Callable[[Parcel], None],
        mark: Callable[[Latest], None],
        stirred: Callable[["Ear"], None],
    ) -> None:
        """
        Args:
            add: takes what is to go out; that of an earlier process first.
            mark: is told of an NPC that is something else than before.
            stirred: is told that the world state may have changed.
        """
        self.actor = actor
        self.over = False
        self._topics = topics
        self._settings = settings
        self._journal = journal
        self._add, self._mark, self._stirred = add, mark, stirred
        self._shelf = actor.ledger.outbox()
        self._s = actor.stream.last
        for key, value in self._shelf.take().items():
            kept = msgspec.msgpack.decode(value, type=_Kept)
            done = partial(self._let_go, key)
            add(
                Parcel(
                    kept.topic,
                    kept.payload,
                    eid=kept.eid,
                    answers=kept.answers,
                    about=kept.about,
                    scene=actor.stream.id,
                    since=_since(kept.at),
                    done=done,
                )
            )
        self._came_shelf = actor.ledger.came()
        came = {key: int(at) for key, at in self._came_shelf.take().items()}
        self._came = OrderedDict(
            (key, _since(at)) for key, at in sorted(came.items(), key=lambda one: one[1])
        )
        actor.stream.listeners.add(self)

    def wake(self) -> None:
        """There is something new; most often a word of a turn, which is not for us."""
        stream = self.actor.stream
        if self._s != stream.last:
            events, self._s = stream.after(self._s), stream.last
            for event in events or ():
                if (parcel := self._parcel(event)) is not None:
                    self._add(parcel)
        self._stirred(self)

    def mark(self, latest: Latest) -> None:
        """Something has another state."""
        if latest.t == "npc.state":
            self._mark(latest)

    def mark_all(self) -> None:
        """The broker may have forgotten all states."""
        for latest in self.actor.stream.latest:
            self.mark(latest)

    def came(self, known_as: str) -> bool:
        """Whether a message came here lately that is known so; if not, it has now."""
        now = time.monotonic()
        while self._came and (
            len(self._came) >= self._settings.dedupe_ids
            or now - next(iter(self._came.values())) > self._settings.dedupe_s
        ):
            self._came_shelf.drop(self._came.popitem(last=False)[0])
        if known_as in self._came:
            return True
        self._came[known_as] = now
        self._came_shelf.put(known_as, str(now_ms()).encode())
        return False

    def close(self) -> None:
        """The scene is not ours any more. What it told goes out all the same, or is told by whoever
        has the scene."""
        self.over = True
        self.actor.stream.listeners.discard(self)

    def _parcel(self, event: Event) -> Parcel | None:
        """What an event is to those outside; None for most. Written down if it is promised."""
        if event.t not in ("npc.turn.end", "npc.action"):
            return None
        payload = event.message.json
        about = msgspec.json.decode(payload, type=About)
        d, since, said = about.d, time.monotonic(), event.t == "npc.turn.end"
        if said and not d.text:
            return None
        eid = f"{about.st}:{about.ep}:{event.s}"
        topic = self._topics.npc(about.st, d.npc, "said" if said else "action")
        if said and not self._settings.said_qos:
            return Parcel(topic, payload, 0, eid=eid, scene=about.st, unit=event.unit, since=since)
        answers = "" if said else self._topics.result(about.st, d.action)
        key = f"{event.s:016}"
        kept = _Kept(topic, payload, eid, answers, d.action, now_ms())
        self._shelf.put(key, msgspec.msgpack.encode(kept))
        done, unit = partial(self._let_go, key), self._journal.written
        return Parcel(
            topic,
            payload,
            eid=eid,
            answers=answers,
            about=d.action,
            scene=about.st,
            unit=unit,
            since=since,
            done=done,
        )

    def _let_go(self, key: str) -> None:
        if not self.over:
            self._shelf.drop(key)


def _since(at: int) -> float:
    """The monotonic time of a wall clock time of another process, in ms. That clock may have been
    set since: nothing is from the future."""
    return time.monotonic() - max(now_ms() - at, 0) / 1000


class Whose(msgspec.Struct):
    """Who did what."""

    npc: str
    text: str = ""
    action: str = ""


class About(msgspec.Struct):
    """What a scene's message says of where it belongs."""

    st: str
    d: Whose
    ep: int = 0
