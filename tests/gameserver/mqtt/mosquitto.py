"""A real Mosquitto of our own, for tests: it can be killed, stopped and started again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAM = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class Mosquitto:
    """A broker on a free port that forgets everything when it ends, unless it has a database.

    Attributes:
        port: that it listens on, the same after a restart.
    """

    def __init__(self, folder: Path, *, persistent: bool = False, login: str = "") -> None:
        """`login`: the USER:PASSWORD that is asked for; "" for none."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._config = folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", f"allow_anonymous {str(not login).lower()}"]
        if persistent:
            lines += ["persistence true", f"persistence_location {folder}/", "autosave_interval 1"]
        if login:
            passwords = folder / "passwords"
            user, _, password = login.partition(":")
            tool = shutil.which("mosquitto_passwd") or "mosquitto_passwd"
            subprocess.run([tool, "-b", "-c", str(passwords), user, password], check=True)
            lines.append(f"password_file {passwords}")
        if os.getuid() == 0:  # else it becomes somebody who may not read our folder
            lines.append("user root")
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> "Mosquitto":
        """Start, and wait until it listens."""
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [PROGRAM, "-c", str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return self
            except OSError:
                assert time.monotonic() < deadline, "mosquitto does not listen"
                time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it. Idempotent."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait()
            self._process = None
