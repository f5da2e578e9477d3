"""Many guests in a process of their own, and the parent's hand on it.

Run as a module it is that process: it takes commands as lines of JSON and answers each with one.
"""

import asyncio
import contextlib
import json
import socket
import sys
import time
from array import array
from collections import Counter, defaultdict
from typing import Any, Self

from benchmarks.load.guest import Guest, Room, thinned
from gameserver.http.patience import open_many_files

#: Connections of one process that are being opened at a time; the server lets 256 in at once.
_OPENING = 60
_BEAT_S = 20.0


class Crowd:
    """The guests of this process, and what they saw since it was last asked."""

    def __init__(self) -> None:
        self.guests: list[Guest] = []
        self.npcs = ["mira", "harn"]
        self.port = self._receives = 0
        self.talking = self.returning = self.each = False
        self._rooms: dict[str, Room] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._door = asyncio.Semaphore(_OPENING)
        self._forget()

    def _forget(self) -> None:
        self.deltas = self.turned_away = self.drops = 0
        self.late, self.gaps = array("d"), array("d")
        self.firsts: dict[str, array[float]] = defaultdict(lambda: array("d"))
        self.returns = array("d")
        self.resumed = self.anew = self.turns = 0
        self.errors: Counter[str] = Counter()
        self.closes: Counter[int] = Counter()
        self.since = time.monotonic()
        self.cpu = time.process_time()

    # What guests tell it

    def first(self, guest: Guest, ms: float) -> None:
        """A guest heard the first word of an answer."""
        self.firsts[guest.npc].append(ms)

    def ended(self, guest: Guest, *, own: bool) -> None:
        """A guest heard a turn end, perhaps its own: the next line, once for each turn."""
        room = guest.room
        if self.talking and room is not None and (own if self.each else guest is room.guests[0]):
            self.turns += 1
            self._go_on(guest)

    def _go_on(self, guest: Guest) -> None:
        if self.each:
            guest.say()
        elif guest.room is not None:
            guest.room.go_on()

    def refused(self, guest: Guest, retry_ms: int) -> None:
        """A guest's line was refused: another one is said a while later."""
        if self.talking:
            asyncio.get_running_loop().call_later(retry_ms / 1000, self._go_on, guest)

    def lost(self, guest: Guest, was_ready: bool) -> None:
        """A guest's connection is gone."""
        self.drops += was_ready
        if self.returning:
            self._start(self._come_back(guest))

    def returned(self, seconds: float, resumed: bool) -> None:
        """A guest is back."""
        self.returns.append(seconds)
        self.resumed += resumed
        self.anew += not resumed

    async def _come_back(self, guest: Guest) -> None:
        await asyncio.sleep(guest.again())
        if self.returning and guest.transport is None:
            await self._dial(guest)

    async def _dial(self, guest: Guest) -> None:
        loop, sock = asyncio.get_running_loop(), socket.socket()
        if self._receives:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receives)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, ("127.0.0.1", self.port))
            await loop.create_connection(lambda: guest, sock=sock)
        except OSError:
            sock.close()
            self.lost(guest, False)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Commands

    async def open(
        self,
        port: int,
        count: int,
        prefix: str,
        scene: str = "",
        per_room: int = 1,
        rude: int = 0,
        rooms: str = "",
        npcs: list[str] | None = None,
        receives: int = 0,
    ) -> dict[str, Any]:
        """Let so many guests in, into rooms of `per_room` (their names begin with `rooms`, or as
        the guests'), or nowhere without a scene. Their kernels keep `receives` bytes for them;
        0: as many as they like."""
        self.port, self._receives = port, receives
        self.npcs = npcs or self.npcs
        new = []
        for number in range(count):
            room = None
            if scene:
                name = f"{scene}.{rooms or prefix}{number // per_room}"
                room = self._rooms.setdefault(name, Room(name))
            npc = self.npcs[number % len(self.npcs)]
            guest = Guest(self, f"{prefix}{number}", npc, room, polite=number >= rude)
            if room is not None:
                room.guests.append(guest)
            new.append(guest)
        self.guests += new
        await asyncio.gather(*map(self._enter, new))
        return self._state()

    async def _enter(self, guest: Guest) -> None:
        async with self._door:
            deadline = time.monotonic() + 90
            while not guest.ready and time.monotonic() < deadline:
                if guest.transport is None:
                    await self._dial(guest)
                await asyncio.sleep(0.02)

    def _state(self) -> dict[str, Any]:
        return {
            "ready": sum(guest.ready for guest in self.guests),
            "back": self.resumed + self.anew,
            "resumed": self.resumed,
            "anew": self.anew,
            "turned_away": self.turned_away,
        }

    async def talk(self, *, each: bool = False) -> dict[str, Any]:
        """Begin to talk: in every room one after another, or each whenever it was answered."""
        self.talking, self.each = True, each
        for guest in self.guests if each else [room.guests[0] for room in self._rooms.values()]:
            self._go_on(guest)
        return {}

    async def report(self) -> dict[str, Any]:
        """What was seen since the last report."""
        seconds = time.monotonic() - self.since
        found = {
            **self._state(),
            "seconds": seconds,
            "cpu_s": time.process_time() - self.cpu,
            "deltas": self.deltas,
            "turns": self.turns,
            "late": thinned(self.late),
            "gaps": thinned(self.gaps),
            "firsts": {npc: list(values) for npc, values in self.firsts.items()},
            "returns": list(self.returns),
            "drops": self.drops,
            "errors": dict(self.errors),
            "closes": {str(code): count for code, count in self.closes.items()},
        }
        self._forget()
        return found

    async def state(self) -> dict[str, Any]:
        """How many are where they wanted to be."""
        return self._state()

    async def come_back(self) -> dict[str, Any]:
        """From now on, whoever loses its connection comes back."""
        self.returning = True
        return {}

    async def stop_reading(self, sip_bytes: int = 0, sip_s: float = 1.0) -> dict[str, Any]:
        """All stop reading; or read so many bytes every so many seconds."""
        for guest in self.guests:
            transport = guest.transport
            if transport is None:
                continue
            if not sip_bytes:
                transport.pause_reading()
            else:
                transport.max_size = sip_bytes  # type: ignore[attr-defined]
                transport.pause_reading()
                self._start(self._sip(guest, sip_s))
        return {}

    async def _sip(self, guest: Guest, every_s: float) -> None:
        while guest.transport is not None:
            guest.transport.resume_reading()
            await asyncio.sleep(0)  # one look at the socket, one piece of what is there
            await asyncio.sleep(0)
            if guest.transport is not None:
                guest.transport.pause_reading()
            await asyncio.sleep(every_s)

    async def close(self) -> dict[str, Any]:
        """All say goodbye."""
        self.talking = self.returning = False
        leaving, self.guests, self._rooms = self.guests, [], {}
        for number, guest in enumerate(leaving):
            guest.send("bye", {}, numbered=False)
            if number % 100 == 99:
                await asyncio.sleep(0.05)
        return {}

    async def beat(self) -> None:
        """Keep all alive: each speaks up every 20 s, evenly spread."""
        number = 0.0
        while True:
            await asyncio.sleep(0.1)
            number += len(self.guests) * 0.1 / _BEAT_S
            while number >= 1:
                number -= 1
                guest = self.guests.pop(0)
                self.guests.append(guest)
                guest.beat()


async def serve() -> None:
    """Obey until the input ends."""
    open_many_files()
    crowd = Crowd()
    loop = asyncio.get_running_loop()
    beating = loop.create_task(crowd.beat())
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        wish = json.loads(line)
        answer = await getattr(crowd, wish.pop("do"))(**wish)
        print(json.dumps(answer), flush=True)
    beating.cancel()


class Bus:
    """A crowd in another process."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.load.crowd",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=64 * 1024**2,
        )
        return self

    async def do(self, command: str, **wish: Any) -> dict[str, Any]:
        """Let the crowd do something; returns what it says."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": command, **wish}).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer

    async def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def everybody(buses: list[Bus], command: str, **wish: Any) -> dict[str, Any]:
    """The same command for all, and what they say together: sums, and lists put together."""
    answers = await asyncio.gather(*(bus.do(command, **wish) for bus in buses))
    return merged(answers)


def merged(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of numbers and lists; `seconds` is the longest."""
    total: dict[str, Any] = {}
    for answer in answers:
        for name, value in answer.items():
            if isinstance(value, dict):
                total[name] = merged([total.get(name, {}), value])
            elif name == "seconds":
                total[name] = max(total.get(name, 0.0), value)
            else:
                total[name] = total[name] + value if name in total else value
    return total


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
