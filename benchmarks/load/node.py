"""The node under load: a process of its own, watched from outside."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

import psutil

from tests.gameserver.stage import byte_tokenizer, write_pack

#: Nobody is refused for coming from this machine, and nobody for talking a lot.
OPEN_DOORS: dict[str, Any] = {
    "limits": {
        "sessions": 20_000,
        "says_per_s": 1000.0,
        "says_burst": 1000,
        "messages_per_s": 1000.0,
        "messages_burst": 1000,
    }
}


class Node:
    """A server with one scene, the inn, whose NPCs speak from a script; or the real thing.

    Attributes:
        port: of the game; the same after a restart.
    """

    def __init__(self, folder: Path, replies: list[str], step_ms: float, **settings: Any) -> None:
        """`settings` as in a settings file, beside those of an open door."""
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / "script.json"
        script.write_text(json.dumps([byte_tokenizer().encode(reply) for reply in replies]))
        engine = {"script_step_ms": step_ms, **settings.pop("engine", {})}
        self._settings: dict[str, Any] = {
            "port": free_port(),
            "console_port": free_port(),
            "scenes": [str(write_pack(folder / "pack"))],
            "model": f"script:{script}",
            "engine": engine,
            **OPEN_DOORS,
            **settings,
        }
        self._command = [sys.executable, "-m", "tests.gameserver.process"]
        self._log = folder / "errors.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: psutil.Process | None = None

    @classmethod
    def of_the_default_model(cls, folder: Path, models: Path, **settings: Any) -> Self:
        """A server with the demo scene and the model that `make serve` fetches."""
        node = cls(folder, [""], 0.0, **settings)
        for name in ("scenes", "model", "engine"):
            node._settings.pop(name)
        config = folder / "troupe.json"  # JSON is YAML
        config.write_text(json.dumps(node._settings))
        serve = ["gameserver.cli", "serve", "--config", str(config), "--models", str(models)]
        node._command = [sys.executable, "-m", *serve]
        return node

    @property
    def port(self) -> int:
        return int(self._settings["port"])

    async def start(self) -> Self:
        """Start, and wait until players may come."""
        self._process = await asyncio.to_thread(self._spawn)
        self._seen = psutil.Process(self._process.pid)
        while not await asyncio.to_thread(self._ready):
            if self._process.poll() is not None:
                raise RuntimeError(f"the node did not start:\n{self.errors()[-2000:]}")
            await asyncio.sleep(0.1)
        return self

    def _spawn(self) -> "subprocess.Popen[bytes]":
        wish = [] if "gameserver.cli" in self._command else [json.dumps(self._settings)]
        with self._log.open("ab") as log:
            return subprocess.Popen([*self._command, *wish], stdout=subprocess.DEVNULL, stderr=log)

    def _ready(self) -> bool:
        try:
            self._get("readyz")
        except OSError:  # nobody there yet, or 503
            return False
        return True

    def _get(self, path: str) -> bytes:
        url = f"http://127.0.0.1:{self._settings['console_port']}/{path}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return bytes(answer.read())

    async def gauges(self) -> dict[str, float]:
        """All figures that the node has of itself."""
        found: dict[str, float] = json.loads(await asyncio.to_thread(self._get, "debug/gauges"))
        return found

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def rss_mb(self) -> float:
        """Resident memory."""
        assert self._seen is not None
        return float(self._seen.memory_info().rss) / 1024**2

    def cpu_s(self) -> float:
        """Processor time so far."""
        assert self._seen is not None
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    def errors(self) -> str:
        """What it wrote to its error log."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def end(self, how: signal.Signals) -> None:
        """Send it a signal, and wait until it is gone. Idempotent."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def kill(self) -> None:
        """End it without a word. Idempotent."""
        self.end(signal.SIGKILL)


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
