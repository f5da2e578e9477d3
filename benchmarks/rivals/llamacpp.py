"""llama-server under the game's workload; a fresh server for what is to be cold.

    python -m benchmarks.rivals.llamacpp --server llama-server --model Q4_0.gguf --slots 16

Prints samples as lines of JSON. Prompts are token ids, each slot keeps its last prompt
(`cache_prompt`), replies are greedy and ignore the end of sequence.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.measuring import Column, Figures, burst_figures
from gameserver.bench.workload import PROFILES, build

_START_S = 60
#: Touches all weights and shares no beginning with the workload.
_WAKING, _WAKING_OUT = list(range(50, 90)), 4
#: Positions a slot gets; the longest prompt and its reply fit.
_SLOT_TOKENS = 1024


@contextmanager
def running(server: Path, model: Path, slots: int) -> Iterator[int]:
    """A server that is awake; gives its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [str(server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", "2", "-fa", "on", "--parallel", str(slots), "-c", str(slots * _SLOT_TOKENS)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_healthy(process, port)
            asyncio.run(burst(port, [_WAKING], _WAKING_OUT))
            yield port
        finally:
            process.terminate()


def _wait_until_healthy(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.1)
    raise SystemExit("llama-server did not become healthy; start it by hand to see why")


async def burst(port: int, prompts: list[list[int]], out: int) -> Figures:
    """All prompts at once."""
    started = time.monotonic()
    replies = await asyncio.gather(*(_speak(port, prompt, out, started) for prompt in prompts))
    wall = time.monotonic() - started
    computed = sum(read for _, _, read in replies)
    times = [(first, last) for first, last, _ in replies]
    return {**burst_figures(times, out, wall), "prefill_computed": computed}


async def _speak(
    port: int, prompt: list[int], out: int, started: float
) -> tuple[float, float, int]:
    """Seconds to the first and the last token, and the prompt tokens that were computed.

    By hand rather than by an HTTP library, which would take more of the two cores.
    """
    wish = {
        "prompt": prompt,
        "n_predict": out,
        "ignore_eos": True,
        "stream": True,
        "return_tokens": True,
        "cache_prompt": True,
        "temperature": 0,
    }
    body = json.dumps(wish).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(
        b"POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    writer.write(body)
    first = 0.0
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        now = time.monotonic() - started
        first = first or now
        event = json.loads(line[len(b"data: ") :])
        if event.get("stop"):
            writer.close()
            timings = event["timings"]
            assert timings["predicted_n"] == out, timings
            return first, now, timings["prompt_n"]
    raise ConnectionError("llama-server ended a reply early")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--name", default="llama.cpp")
    parser.add_argument("--profiles", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=3)
    a = parser.parse_args()
    said = subprocess.run([a.server, "--version"], capture_output=True, text=True, check=True)
    software = (said.stderr + said.stdout).strip().splitlines()[0]
    for profile in a.profiles.split(","):
        column = Column(a.name, profile, a.seed, f"llama.cpp {software}")
        for _ in range(a.repetitions):
            measure_once(column, partial(running, a.server, a.model, a.slots))


def measure_once(column: Column, start: Callable[[], AbstractContextManager[int]]) -> None:
    """Print one sample of each measure."""
    profile, seed = column.profile, column.seed
    out = PROFILES[profile].out
    prompts = [line.prompt for line in build(profile, seed)]
    new = [line.prompt for line in build(profile, seed, turn_seed=seed + 1)]

    def take(measure: str, port: int, prompts: list[list[int]]) -> None:
        def once() -> Figures:
            return asyncio.run(burst(port, prompts, out))

        print(column.sample(measure, once).line(), flush=True)

    with start() as port:
        take("alone", port, prompts[:1])
    with start() as port:
        take("cold", port, prompts)
        take("warm", port, prompts)
        take("lines", port, new)


if __name__ == "__main__":
    main()
