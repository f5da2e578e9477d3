"""A node in a process of its own, which a test may kill, stop and start again.

Run as a module it is that process: settings come as JSON, and the ports are printed as JSON.
"""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self
from unittest import mock

import msgspec


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
        self._process: subprocess.Popen[str] | None = None

    async def start(self) -> Self:
        """Start, and wait until players may come."""
        self.spawn()
        await self.ready()
        return self

    def spawn(self) -> None:
        """Start; see `ready`."""
        wish = {**self._settings, "port": self.port}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.gameserver.process", json.dumps(wish)],
            stdout=subprocess.PIPE,
            text=True,
        )

    async def ready(self) -> None:
        """Wait until players may come."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        ports = json.loads(line)
        self.port, self.console = ports["game"], ports["console"]

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it without a word. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    async def terminate(self) -> int:
        """Let it end in good order; returns its status."""
        assert self._process is not None
        self._process.terminate()
        status = await asyncio.to_thread(self._process.wait, 30)
        self.kill()
        return status


def main(wish: str) -> None:
    """Be a node."""
    from gameserver import logs
    from gameserver.app import Application
    from gameserver.packs import find_packs
    from gameserver.settings import Settings
    from tests.gameserver.node import VOCABULARY

    logs.configure("error")
    settings = msgspec.json.decode(wish, type=Settings)
    node = Application(
        settings, data_dir=Path(settings.data or "."), packs=find_packs(settings.scenes)
    )

    def tell() -> None:
        print(json.dumps({"game": node.game_port, "console": node.console_port}), flush=True)

    with mock.patch("gameserver.app.load_vocabulary", return_value=VOCABULARY):
        asyncio.run(node.run(on_ready=tell))


if __name__ == "__main__":
    main(sys.argv[1])
