"""A whole server but for its sockets, on a simulated device and clock, with as many lines as asked.

Scenes, floors, sessions, outboxes, admission and levels are the real ones, as are prompts and the
engine's scheduler. A step costs what it was measured to cost on two cores; prompts are spelled in
bytes, of which four cost what a token does.
"""

import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import yaml
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from benchmarks.simulated import DEVICES
from benchmarks.simulated_loop import LoopEngine
from engine.chat import ChatFormat, Frame
from engine.tokenizer import Tokenizer
from gameserver.budgets import Budgets
from gameserver.inbound import Message
from gameserver.messages import Notice
from gameserver.outbox import Outbox
from gameserver.overload.overload import Overload
from gameserver.protocol import Close, Encoded, Refusal
from gameserver.safety import Safety
from gameserver.session import Session
from gameserver.sessions import Sessions
from gameserver.settings import Settings
from gameserver.stores.journal import Journal
from gameserver.stores.memory import MemoryStore
from gameserver.tally import Tally
from gameserver.world import World
from npc.cast import Cast

#: Scenes, all of one pack; so many that lines wait for the engine, and not for each other.
ROOMS = 120
#: NPCs of the pack by kind: whom players talk to, and who speaks of what happens.
QUEST_GIVERS, HOSTS, AMBIENT = 2, 6, 2
#: Share of all turns.
QUEST_SHARE, AMBIENT_SHARE = 0.15, 0.15
#: Bytes that cost what a token does, and the mean length of a sentence in tokens.
BYTES, SENTENCE = 4, 9
#: The first seconds of a run teach the engine, and do not count.
LEARNING_S = 10.0

_EVENT = "noise"


@dataclass
class Answers:
    """What became of the lines to one class of NPCs.

    Attributes:
        asked, refused, barked: how many.
        waits: seconds to the first word of the others, and `free_waits`: of those among them whose
            NPC had nobody else to answer.
    """

    asked: int = 0
    refused: int = 0
    barked: int = 0
    waits: list[float] = field(default_factory=list)
    free_waits: list[float] = field(default_factory=list)

    @property
    def refused_share(self) -> float:
        """Of all lines."""
        return self.refused / max(self.asked, 1)


@dataclass
class Outcome:
    """One run.

    Attributes:
        classes: "quest", "player" and "ambient"; the last one's turns are asked for by events.
        seconds: at each level.
        levels: when which one was entered.
        turns_per_s: that the engine was through with.
        ambient_per_s: those among them that nobody had asked for.
        silence_s: the longest time in which none of these began.
    """

    classes: dict[str, Answers]
    seconds: dict[int, float]
    levels: list[tuple[float, int]]
    turns_per_s: float
    ambient_per_s: float
    silence_s: float

    @property
    def usual_level(self) -> int:
        """The level that most of the time was spent at."""
        return max(self.seconds, key=lambda level: self.seconds[level])


def settings_of(**overload: Any) -> Settings:
    """The defaults of two cores, in bytes, but for rates of single players."""
    return msgspec.convert(
        {
            "limits": {"says_per_s": 1e9, "says_burst": 10**9, "sessions_per_ip": 10**6},
            "engine": {
                "device": "cpu",
                "max_num_batched_tokens": BYTES * 512,
                "min_prefill_tokens": BYTES * 16,
                "urgent_prefill_tokens": BYTES * 256,
            },
            "replies": {"history_tokens": BYTES * 1024, "line_tokens": BYTES * 1500},
            "overload": overload,
        },
        Settings,
    )


class OverloadStage:
    """Open it in a `SimulatedLoop`; `play` can be called again.

    Args:
        settings: of the server.
        seed: of arrivals and of replies' lengths.
    """

    def __init__(self, settings: Settings, seed: int = 0) -> None:
        self._settings = settings
        self._chance = random.Random(seed)
        self._seed = seed
        self._players: list[_Player] = []
        self._events = asyncio.get_running_loop()

    async def open(self) -> None:
        """Warm everything, and let players in."""
        settings, tally = self._settings, Tally()
        tokenizer = _bytes()
        self.engine = engine = LoopEngine(
            replace(DEVICES["cpu"], token=DEVICES["cpu"].token / BYTES),
            settings.engine,
            tokenizer,
            _chat(tokenizer),
            _Words(tokenizer, self._seed).token,
        )
        await engine.start()
        cast = Cast(engine, settings.replies)
        with tempfile.TemporaryDirectory() as folder:
            await cast.open(_write_pack(Path(folder)))
        self.overload = Overload(
            settings.overload, settings.flow, settings.replies.priorities, engine, tally
        )
        journal = Journal(MemoryStore(), tally)
        self._world = World(
            cast,
            settings,
            tally,
            Safety(settings.safety, tally, scripted=False),
            Budgets(settings.budgets, tally),
            self.overload,
            journal,
            cancel=engine.cancel,
            on_prompt=None,
        )
        sessions = Sessions(self._world, settings, tally)
        for room in range(ROOMS):
            await self._world.open("inn", f"r{room}")
            for n in range(4):
                player = _Player(f"p{room}-{n}", f"r{room}")
                player.enter(sessions, Outbox(player, settings, tally, journal))
                self._players.append(player)

    async def play(self, rate: float, seconds: float) -> Outcome:
        """So many turns a second are asked for, at random, for so long."""
        chance, loop, engine = self._chance, self._events, self.engine
        changes: list[tuple[float, int]] = []
        began = loop.time()

        def changed(notice: Notice) -> None:
            changes.append((loop.time() - began, notice.data["level"]))

        self.overload.on_change = changed
        first_level = self.overload.level
        self.overload.start()
        outcome = {name: Answers() for name in ("quest", "player", "ambient")}
        lines: list[_Line] = []
        due, counted = began, Counter[int]()
        while due - began < seconds:
            due += chance.expovariate(rate)
            await asyncio.sleep(due - loop.time())
            if due - began < LEARNING_S:
                counted = Counter({p: len(w) for p, w in engine.waits.items()})
            lines.append(self._ask(chance))
        begun = sum(len(w) - counted[p] for p, w in engine.waits.items())
        played_s = loop.time() - began
        ambient = engine.waits.get(2, [])[counted[2] :]
        firsts = engine.firsts.get(2, [])[counted[2] :]
        moments = [began + LEARNING_S, *firsts, loop.time()]
        self.overload.stop()
        await asyncio.sleep(60)  # what was accepted is answered
        for line in lines:
            if line.at - began >= LEARNING_S:
                line.count(outcome[line.kind])
        outcome["ambient"].waits = ambient
        return Outcome(
            outcome,
            _seconds(first_level, changes, played_s),
            changes,
            begun / (played_s - LEARNING_S),
            len(ambient) / (played_s - LEARNING_S),
            max(later - earlier for earlier, later in pairwise(moments)),
        )

    def _ask(self, chance: random.Random) -> "_Line":
        player, now = chance.choice(self._players), self._events.time()
        draw = chance.random()
        if draw < AMBIENT_SHARE:
            before = self.engine.submitted
            name = f"{_EVENT}{chance.randrange(AMBIENT)}"
            self._world.actors[f"inn.{player.room}"].happenings.happen(name, None)
            return _Line("ambient", now, refused=self.engine.submitted == before)
        if draw < AMBIENT_SHARE + QUEST_SHARE:
            kind, npc = "quest", f"quest_giver{chance.randrange(QUEST_GIVERS)}"
        else:
            kind, npc = "player", f"host{chance.randrange(HOSTS)}"
        text = "".join(chance.choice("abcdefgh ") for _ in range(chance.randrange(20, 120)))
        floor = self._world.actors[f"inn.{player.room}"].floors.get(npc)
        free = floor is None or floor.quiet  # one that nobody has spoken to yet has no floor
        line = player.say(kind, npc, text.strip() or "well", now)
        line.free = free
        return line


@dataclass(eq=False)
class _Line:
    """A line of a player, or an event that makes an NPC speak."""

    kind: str
    at: float
    refused: bool = False
    barked: bool = False
    free: bool = False
    first: float | None = None

    def count(self, answers: Answers) -> None:
        answers.asked += 1
        answers.refused += self.refused
        answers.barked += self.barked
        if self.first is not None and not self.barked:
            answers.waits.append(self.first - self.at)
            if self.free:
                answers.free_waits.append(self.first - self.at)


class _Player:
    """A session without a socket that hears when its lines are answered."""

    writable = True

    def __init__(self, name: str, room: str) -> None:
        self.name, self.room = name, room
        self.session: Session
        self._loop = asyncio.get_running_loop()
        self._said: dict[str, _Line] = {}
        self._turns: dict[str, _Line] = {}
        self._last_id = 0

    def enter(self, sessions: Sessions, outbox: Outbox) -> None:
        self.session = sessions.begin(
            self.name, self.name, "", outbox, lambda moved: None, make_room=False
        )
        self._command("scene.join", {"scene": "inn", "instance": self.room})

    def say(self, kind: str, npc: str, text: str, now: float) -> _Line:
        line = _Line(kind, now)
        answer, refusal = self._command("say", {"npc": npc, "text": text})
        if refusal is not None:
            line.refused = True
        else:
            assert answer is not None
            self._said[json.loads(answer.json)["d"]["msg"]] = line
        return line

    def write(self, messages: Sequence[Encoded]) -> None:
        """See `gameserver.outbox.Wire`."""
        for message in messages:
            if b'"npc.' in message.json[:40]:
                self._hear(json.loads(message.json))

    def abort(self, code: Close) -> None:
        """See `gameserver.outbox.Wire`."""
        raise AssertionError(f"a player was dropped: {code}")

    def _hear(self, message: dict[str, Any]) -> None:
        t, d = message["t"], message["d"]
        if t == "npc.turn.start" and d["cause"][0] in self._said:
            self._turns[d["turn"]] = self._said.pop(d["cause"][0])
        elif t == "npc.delta" and d["turn"] in self._turns:
            line = self._turns[d["turn"]]
            line.first = line.first or self._loop.time()
        elif t == "npc.turn.end" and d["turn"] in self._turns:
            self._turns.pop(d["turn"]).barked = d["reason"] == "bark"

    def _command(self, t: str, d: dict[str, Any]) -> tuple[Encoded | None, Refusal | None]:
        self._last_id += 1
        message = Message(t, self._last_id, f"inn.{self.room}" if t == "say" else None, d)
        return self.session.handle(message, self._loop.time(), 0.0)


class _Words:
    """Replies of sentences of random lengths, the same for each request."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        (self._letter,), (self._stop,), (self._space,) = map(tokenizer.encode, "a. ")
        self._seed = seed

    def token(self, request: int, n: int) -> int:
        chance = random.Random(self._seed * 1_000_003 + request)
        place = 0
        while True:
            length = chance.randrange(SENTENCE // 2, 3 * SENTENCE // 2 + 1)
            if n < place + length:
                left = place + length - n
                return self._stop if left == 2 else self._space if left == 1 else self._letter
            place += length


def _seconds(level: int, changes: list[tuple[float, int]], until: float) -> dict[int, float]:
    spent: dict[int, float] = {}
    at = 0.0
    for when, to in [*changes, (until, 0)]:
        spent[level] = spent.get(level, 0.0) + max(when, LEARNING_S) - max(at, LEARNING_S)
        level, at = to, when
    return spent


def _bytes() -> Tokenizer:
    """One token per byte, and an end mark."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    return Tokenizer(backend, eos_ids=[len(alphabet)], bos_id=None)


def _chat(tokenizer: Tokenizer) -> ChatFormat:
    def frame(name: str) -> Frame:
        return Frame(tuple(tokenizer.encode(f"{name}: ")), tuple(tokenizer.encode("\n")))

    return ChatFormat((), frame("system"), frame("user"), frame("assistant"))


def _write_pack(folder: Path) -> Path:
    """A house with NPCs of all kinds, and things that happen in it."""
    kinds = {"quest_giver": QUEST_GIVERS, "host": HOSTS, "ambient": AMBIENT}
    (folder / "npcs").mkdir()
    people = [f"{kind}{n}" for kind, count in kinds.items() for n in range(count)]
    scene = {
        "id": "inn",
        "title": "The Inn",
        "text": "An inn at a ford. " * 40,
        "instances": True,
        "npcs": [f"npcs/{who}.yaml" for who in people],
        "news": [
            {"event": f"{_EVENT}{n}", "text": "A noise outside.", "wakes": f"ambient{n}"}
            | {"cooldown_s": 0}
            for n in range(AMBIENT)
        ],
    }
    (folder / "scene.yaml").write_text(yaml.safe_dump(scene), "utf-8")
    for who in people:
        person = {
            "id": who,
            "name": who.replace("_", " ").title(),
            "kind": who.rstrip("0123456789"),
            "role": "one of the house",
            "voice": "Talks as people in this house do. " * 10,
            "knows": ["The bridge is gone."],
            "barks": ["Not now.", "A moment."] if who.startswith("host") else [],
        }
        (folder / "npcs" / f"{who}.yaml").write_text(yaml.safe_dump(person), "utf-8")
    return folder
