"""Many clients who lose their node in one moment, and all come back at once."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.gameserver.wanderer import Lost, Wanderer

_MOST_TRIES = 500


@dataclass
class Storm:
    """What became of it.

    Attributes:
        resumed, anew: clients whose session goes on, and those that had to begin another one.
        turned_away: tries that were refused, or met nobody.
        sent_on: times that a client was sent to another node.
        epochs: of each scene, as its clients were told: two mean that it was claimed twice.
        seconds: until the last one was back.
    """

    resumed: int = 0
    anew: int = 0
    turned_away: int = 0
    sent_on: int = 0
    epochs: dict[str, set[int]] = field(default_factory=dict)
    seconds: float = 0.0


class Refugee(Wanderer):
    """A client who tries again until it is in, wherever it is sent.

    Attributes:
        wish: the scene that it wants to be in.
        home: the node it is connected to.
    """

    def __init__(self, name: str, wish: dict[str, Any]) -> None:
        super().__init__(None, name)  # type: ignore[arg-type]
        self.wish = wish
        self.home: Any = None
        self.forgiving = True

    async def come(
        self, servers: Sequence[Any], at: Callable[[str], Any], dice: random.Random, storm: Storm
    ) -> None:
        """Get in at any of the servers, or where these send it; with its session, if it has one.

        Args:
            at: the server of an address.
        """
        self.drop()
        self.home = None
        while self.home is None:
            assert storm.turned_away < _MOST_TRIES * len(servers) * 10, "nobody gets in"
            self.server = dice.choice(servers)
            while self.server is not None and self.home is None:
                self.server = await self._try(at, storm)
            if self.home is None:
                storm.turned_away += 1
                await asyncio.sleep(dice.uniform(0.01, 0.3))

    async def _try(self, at: Callable[[str], Any], storm: Storm) -> Any:
        """One try; the server where to try next, or None."""
        begins = not self._is_in()
        self.log.clear()
        try:
            async with asyncio.timeout(20):  # a slow machine lets them in late, and once
                await self.connect()
                if not begins and not self.welcome["resumed"]:
                    storm.anew += 1
                    begins = True
                    self.cursors.clear()
                if begins:  # also if it was welcome before, and then not let into the scene
                    await self.ask("scene.join", self.wish)
                else:
                    while not self._shown():
                        await self.receive()
        except (Lost, OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # refused, which the log may tell
        moved = next((m for m in self.log if m["t"] == "scene.moved"), None)
        if moved is not None:
            storm.sent_on += 1
            if moved.get("re") is not None:
                self.welcome = {}  # for a scene elsewhere, a session of its own
                self.drop()
            return at(moved["d"]["url"]) if moved["d"]["url"] else None
        if self._raw is None or not self._is_in():
            self.drop()
            return None
        self.home = self.server
        storm.resumed += not begins
        message = next(m for m in reversed(self.log) if "ep" in m and m["st"] != "me")
        storm.epochs.setdefault(message["st"], set()).add(message["ep"])
        return None

    def _is_in(self) -> bool:
        """Whether it was let into its scene, at this connection or at one before."""
        return any(stream != "me" for stream in self.cursors)

    def _shown(self) -> bool:
        """Whether it has been told how its scene stands."""
        last = self.log[-1]
        return last["t"] in ("scene.synced", "scene.snapshot") and last["st"] != "me"


async def storm(
    clients: Sequence[Refugee], servers: Sequence[Any], at: Callable[[str], Any], seed: int = 0
) -> Storm:
    """Let clients come, or come back, all at once, to servers that are up.

    Args:
        at: the server of an address that a server sends clients to.
    """
    found, loop = Storm(), asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(
        *(
            client.come(servers, at, random.Random(f"{seed}-{client.name}"), found)
            for client in clients
        )
    )
    found.seconds = loop.time() - began
    return found
