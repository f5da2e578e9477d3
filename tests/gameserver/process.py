"""A node in a process of its own, which a test may kill, stop and start again.

Its imports take longer than most tests. One process makes them, the first time a node is wanted,
and every node is a fork of that one.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self
from unittest import mock

import msgspec

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["gameserver.app", "gameserver.logs", "tests.gameserver.node"])


class Process:
    """A node on a script of byte replies.

    Attributes:
        port: of the game; the same after a restart.
        console: port of the console.
    """

    def __init__(self, folder: Path, replies: list[str], step_ms: float, **settings: Any) -> None:
        """`settings` as in a settings file."""
        from tests.gameserver.stage import byte_tokenizer

        self._script = folder / f"script-{settings.get('node', 'node')}.json"
        self._script.write_text(json.dumps([byte_tokenizer().encode(reply) for reply in replies]))
        self.port = self.console = 0
        self._settings: dict[str, Any] = {
            "console_port": 0,
            "model": f"script:{self._script}",
            "engine": {"script_step_ms": step_ms},
            **settings,
        }
        self._process: ForkServerProcess | None = None
        self._ports: Connection

    def change(self, **settings: Any) -> None:
        """Other settings from the next start on."""
        self._settings |= settings

    async def start(self) -> Self:
        """Start, and wait until players may come."""
        self.spawn()
        await self.ready()
        return self

    def spawn(self) -> None:
        """Start; see `ready`."""
        wish = {**self._settings, "port": self.port}
        self._ports, told = _forks.Pipe(duplex=False)
        self._process = _forks.Process(target=_be_a_node, args=(wish, told), daemon=True)
        self._process.start()
        told.close()  # its end of the pipe alone is left: a node that dies is heard of

    async def ready(self) -> None:
        """Wait until players may come.

        Raises:
            EOFError: the node ended instead.
        """
        self.port, self.console = await asyncio.to_thread(self._ports.recv)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it without a word. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._ports.close()
            self._process = None

    async def terminate(self) -> int:
        """Let it end in good order; returns its status."""
        assert self._process is not None
        self._process.terminate()
        await asyncio.to_thread(self._process.join, 30)
        status = self._process.exitcode
        assert status is not None, "it does not end"
        self.kill()
        return status


def _be_a_node(wish: dict[str, Any], ports: Connection) -> None:
    """What the process does: tell its ports, and serve until a signal comes."""
    from gameserver import logs
    from gameserver.app import Application
    from gameserver.packs import find_packs
    from gameserver.settings import Settings
    from tests.gameserver.node import VOCABULARY

    logs.configure("error")
    settings = msgspec.convert(wish, Settings)
    node = Application(
        settings, data_dir=Path(settings.data or "."), packs=find_packs(settings.scenes)
    )

    def tell() -> None:
        ports.send((node.game_port, node.console_port))

    with mock.patch("gameserver.app.load_vocabulary", return_value=VOCABULARY):
        asyncio.run(node.run(on_ready=tell))


if __name__ == "__main__":  # as `benchmarks.load` starts it, which names the ports itself
    told, ports = multiprocessing.Pipe()
    _be_a_node(json.loads(sys.argv[1]), ports)
