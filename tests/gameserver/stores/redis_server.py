"""A real Redis of our own, for tests: it can be killed, stopped and started again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAM = shutil.which("redis-server")


class RedisServer:
    """A redis-server on a free port, with its data in a folder.

    Attributes:
        port: that it listens on, the same after a restart.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        """`options` as on its command line."""
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> "RedisServer":
        """Start, and wait until it answers."""
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [
                *(PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", str(self.folder), "--save", "", "--appendonly", "yes"),
                *("--appendfsync", "always", *self._options),
            ],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while self.command("PING") != b"+PONG\r\n":
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)
        return self

    def command(self, *words: str) -> bytes:
        """Send one command, by hand: b"" if nobody listens."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2.0) as line:
                line.sendall((" ".join(words) + "\r\n").encode())
                return line.recv(1 << 16)
        except OSError:
            return b""

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it at once. Idempotent."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class Sentinel(RedisServer):
    """A sentinel that watches a primary, which it calls `world`, and its replicas."""

    def __init__(self, folder: Path, primary: RedisServer) -> None:
        """`primary` has its replicas already."""
        super().__init__(folder)
        self._watched = primary.port

    def start(self) -> "Sentinel":
        """Start, and wait until it knows a replica."""
        assert PROGRAM is not None
        config = self.folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor world 127.0.0.1 {self._watched} 1\n"
            "sentinel down-after-milliseconds world 300\nsentinel failover-timeout world 2000\n"
        )
        self._process = subprocess.Popen(
            [PROGRAM, str(config), "--sentinel"], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while b"127.0.0.1" not in self.command("SENTINEL", "replicas", "world"):
            assert time.monotonic() < deadline, "the sentinel sees no replica"
            time.sleep(0.02)
        return self
