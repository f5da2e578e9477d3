"""Players who talk, lose their connection, come back, and check whatever they are told."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

from tests.gameserver.stage import SCENE
from tests.gameserver.wanderer import Lost, Message, Wanderer

#: Seconds without a message after which a command's connection is given up.
_ZOMBIE_S = 15.0


class Talker(Wanderer):
    """A wanderer who keeps talking to one NPC, and comes back whenever its connection is lost.

    Attributes:
        accepted: message ids of its lines that were accepted.
        servers: where it may connect, anything with a port.
        deaf_to: servers that would not answer it.
        zombies: connections it gave up because nothing came.
    """

    def __init__(self, servers: Sequence[Any], name: str, seed: int) -> None:
        super().__init__(servers[0], name)
        self.servers = servers
        self.accepted: list[str] = []
        self.forgiving = True
        self.deaf_to: list[Any] = []
        self.dice = random.Random(f"{seed}-{name}")
        self.zombies = 0
        self._silent_s = 0.0

    async def live(self, stop: asyncio.Event) -> None:
        """Talk until told to stop, and then hear what is still to come."""
        talking = asyncio.create_task(self._talk(stop))
        try:
            while not talking.done() or self._open:
                await self._come_back(stop)
                with contextlib.suppress(Lost):
                    while not talking.done() or self._open:
                        await self._listen()
            await talking
        finally:
            talking.cancel()

    async def _listen(self) -> None:
        try:
            async with asyncio.timeout(0.2):
                # A frame is read in two steps: only what is waited for may be given up.
                await self._arrives()
        except TimeoutError:
            self._silent_s += 0.2
            if self._silent_s > _ZOMBIE_S and self._open:  # as a client without an answer does
                self.zombies += 1
                self.drop()
        else:
            self._silent_s = 0.0
            with contextlib.suppress(TimeoutError):
                await self.receive()

    async def _arrives(self) -> None:
        raw = self._raw
        if raw is None:
            raise Lost
        reader = raw.reader
        # A connection that was reset has an exception, and no end.
        while not (reader._buffer or reader.at_eof() or reader.exception()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def _come_back(self, stop: asyncio.Event) -> None:
        while self._raw is None:
            self.server = self.dice.choice(self.servers)
            if self.server in self.deaf_to:
                await asyncio.sleep(0.05)
                continue
            try:
                async with asyncio.timeout(5):
                    await self.connect()
            except (Lost, OSError, TimeoutError, asyncio.IncompleteReadError):
                self.drop()
                await asyncio.sleep(self.dice.uniform(0.02, 0.2))

    async def _talk(self, stop: asyncio.Event) -> None:
        self.command("scene.join", {"scene": SCENE})
        while not stop.is_set():
            await asyncio.sleep(self.dice.uniform(0.0, 0.1))
            if len(self._open) < 3:
                self.command("say", {"npc": "mira", "text": f"{self.name} {self._last_id}?"})

    def _keep(self, message: Message) -> None:
        super()._keep(message)
        if message["t"] == "say.accepted" and message["d"]["msg"] not in self.accepted:
            self.accepted.append(message["d"]["msg"])
        if message["t"] == "welcome" and not message["d"]["resumed"] and self.cursors:
            self._begin_anew(message["d"]["resume_miss"])

        if message["t"] == "scene.moved" and message.get("re") is not None:
            self.drop()  # a session of its own at the node that has the scene
            self.welcome = {}
            self._begin_anew("the token is not the session's")

    def _begin_anew(self, reason: str) -> None:
        """The session is gone, which may only be because its last `welcome` was lost."""
        assert reason == "the token is not the session's", reason
        for kept in (self.cursors, self.texts, self._open, self.answers):
            kept.clear()
        self.events = {where: m for where, m in self.events.items() if where[0] == SCENE}
        self.command("scene.join", {"scene": SCENE})


async def all_were_heard(talkers: Sequence[Talker], lines: int) -> None:
    """Wait until so many lines of each of them were accepted."""
    async with asyncio.timeout(60):
        while any(len(talker.accepted) < lines for talker in talkers):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def agree(talkers: Sequence[Talker]) -> None:
    """Whatever several of them were told, was the same; each turn had one start and one end; and
    every line that was accepted was answered."""
    told: dict[tuple[str, int], Message] = {}
    for talker in talkers:
        for where, message in talker.events.items():
            if where[0] == SCENE:
                known = told.setdefault(where, message)
                assert {**known, "ep": 0} == {**message, "ep": 0}, "one number, two events"
    starts = [m["d"] for m in told.values() if m["t"] == "npc.turn.start"]
    ends = [m["d"] for m in told.values() if m["t"] == "npc.turn.end"]
    for turns in (starts, ends):
        assert len({turn["turn"] for turn in turns}) == len(turns)
    answered: dict[str, list[str]] = {}
    statuses = {end["turn"]: end for end in ends}
    for start in starts:
        end = statuses.get(start["turn"])
        assert end is not None, "every turn ends"
        answered.setdefault(start["cause"][0], []).append(end["status"])
    said = {m["d"]["msg"] for m in told.values() if m["t"] == "player.said"}
    for talker in talkers:
        for line in talker.accepted:
            assert line in said, "what was accepted is there"
            assert line in answered, "and it was answered"
            spoken = [s for s in answered[line] if s != "abandoned"]
            assert len(spoken) <= 1, "nothing is answered twice"
