"""One node from start to end: console, model, scenes, game port, and all of it back again."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from engine.api import AsyncEngine
from engine.build import load
from engine.errors import ModelError
from engine.face import AnyEngine
from engine.measures import Series
from engine.profile import Profile
from engine.remote.config import RemoteConfig
from engine.scripted import ScriptedModel
from engine.weights.load import LoadedModel, load_vocabulary
from gameserver.access import LOOPBACK
from gameserver.addresses import Proxies
from gameserver.budgets import Budgets
from gameserver.equipment import Equipment
from gameserver.folders import MEMORY_FILE
from gameserver.game import GameServer
from gameserver.households import Households
from gameserver.http.console import Console
from gameserver.http.listener import Listener, authority, bind
from gameserver.http.npcs import Prompt
from gameserver.http.openai.api import OpenAIApi
from gameserver.http.openai.rates import Rates
from gameserver.http.patience import open_many_files
from gameserver.http.playground import facts
from gameserver.inspection import Inspector
from gameserver.keys import Keys
from gameserver.loop_lag import LoopLag
from gameserver.packs import find_packs
from gameserver.protocol import PATH
from gameserver.readiness import Readiness, Step
from gameserver.reload import Reloader
from gameserver.settings import Settings
from gameserver.stores.choose import choose_store
from gameserver.stores.store import Store
from gameserver.tenants import Remit, Tenants
from npc.cast import Cast
from npc.memory.memories import Memories
from npc.memory.source import MemorySource
from npc.notes import SourceMaker
from npc.safety.rules import load_rules
from npc.safety.wary import wary

SCRIPT = "script:"
#: What loading a model reports, in words for people.
STAGES = {
    "download": "Fetching the model",
    "unpack": "Unpacking the model",
    "weights": "Loading the weights",
    "compile": "Compiling for this processor (seconds, and only the first time)",
}
# Python hands the interpreter from thread to thread every 5 ms by default; a token that waits for
# the engine's thread that long is late.
SWITCH_INTERVAL_S = 0.0005
# A terminal, a supervisor and `make` may each pass the same wish on: a person who means it twice
# is slower.
SAME_WISH_S = 1.0

# A download that is given up cleans up behind itself, if it can be told within this time.
ABANDON_S = 3.0

_log = structlog.get_logger("troupe.app")
Result = TypeVar("Result")


class _Abandoned(Exception):
    """The start is given up; raised in the thread that loads."""


class Application:
    """A node: starts its parts in order, and stops them in the other.

    Args:
        settings: of everything.
        data_dir: where models are kept.
        packs: folders of the scenes to open, at least one.
        inspect: keep the prompts of recent turns for the console.
        profile: file for a report of where the engine's time went, written at the end.
        on_step: told, from any thread, how far the start is.

    Attributes:
        readiness: how far it is.
        engine, cast, game: once started.
        console_port, game_port: once started; settings may leave the choice to the system.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        data_dir: Path,
        packs: tuple[Path, ...],
        inspect: bool = False,
        profile: Path | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        self.settings = settings
        self.readiness = Readiness(on_step)
        self.engine: AnyEngine | None = None
        self._memories: Memories | None = None
        self.cast: Cast | None = None
        self.game: GameServer | None = None
        self.console_port = 0
        self.game_port = 0
        self._data_dir = data_dir
        self._packs = packs
        self._inspect = inspect
        self._profile_file = profile
        self._profile = Profile() if profile is not None else None
        self._lag = LoopLag()
        self._tenants = Tenants(settings.tenants)
        api = settings.api
        keys = Keys.load(api.keys_file, api.keys_variable, tenants=settings.tenants)
        self._households = Households(settings.limits, settings.guards)
        rates = Rates(self._households, Proxies(settings.guards.trusted_proxies))
        self._api = OpenAIApi(self, settings.api, keys, rates)
        self._console: Listener | None = None
        self._loader: threading.Thread | None = None
        self._switch_interval = sys.getswitchinterval()
        self._reloader: Reloader | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._store: Store | None = None
        self._stop = asyncio.Event()
        self._asked = 0.0  # when a signal asked for the end

    async def start(self) -> None:
        """Open the console, then everything it reports on; players may come when this returns.

        Raises:
            PortTaken, StoreError, MemoryFileError, RulesError, ModelError, PackError, OutOfMemory:
                what is wrong and what to do about it. Call `stop` also then.
        """
        settings, sources = self.settings, list[SourceMaker]()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        open_many_files()
        self._lag.start()
        sock = bind(settings.console_host, settings.console_port, "--console-port")
        self._console = Listener(Console(self, settings.console_host, self._api).app, sock)
        self.console_port = self._console.port
        await self._console.start()
        # The game port opens last. Whether it can be had is better known before a long download.
        bind(settings.host, settings.port, "--port").close()
        equipment = Equipment.of(settings)  # so are mistakes in its keys
        if settings.safety.filter_file is not None:  # so are mistakes in the rules
            load_rules(Path(settings.safety.filter_file))
        self._store = choose_store(settings)
        await self._store.open()
        if settings.memory.enabled:
            path = Path(settings.data) / MEMORY_FILE if settings.data else None
            models = self._data_dir
            self._memories = await Memories.open(path, settings.memory, data_dir=models)
            sources.append(partial(MemorySource, self._memories))
        self.engine = await self._in_thread(self._make_engine)
        await self.engine.start()
        if settings.safety.note_steering:
            sources.append(wary)
        self.cast = Cast(self.engine, settings.replies, settings.warm_npcs, sources)
        await self.cast.open_all(self._packs, self.readiness.advance)
        self.game = GameServer(
            self.cast,
            self._for_the_game(),
            inspect=self._inspect,
            store=self._store,
            equipment=equipment,
            households=self._households,
        )
        if self._memories is not None:
            ambient = settings.replies.priorities.ambient
            self._memories.start(self.engine, ambient, self.game.purse_of)
        await self.game.start()
        self.game_port = self.game.port
        rules = self.game.safety.reload
        self._reloader = Reloader(self.cast, self._find_packs, self.game.adopt, rules)
        if settings.watch:
            places = [Path(folder) for folder in settings.scenes] or list(self._packs)
            if settings.safety.filter_file is not None:
                places.append(Path(settings.safety.filter_file))
            self._in_background(self._reloader.watch(places))
        # What exists now lives as long as the node: the collector need not visit it any more.
        gc.collect()
        gc.freeze()
        self.readiness.hindrance = self.game.hindrance
        self.readiness.state = "ready"
        _log.info("ready", model=self.engine.model_name, game_port=self.game_port)

    async def stop(self) -> None:
        """Let players go, free everything. Safe to call however far `start` came; idempotent."""
        self.readiness.state = "draining"
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._loader is not None:
            await asyncio.to_thread(self._loader.join, ABANDON_S)
        if self.game is not None:
            await self.game.close()
        if self._store is not None:
            await self._store.close()
        if self.cast is not None:
            await self.cast.close()
        if self._memories is not None:
            await self._memories.close()
        if self.engine is not None:
            await self.engine.stop()
        if self._profile is not None and self._profile_file is not None:
            self._profile.write(self._profile_file)
            self._profile = None
        if self._console is not None:
            await self._console.stop()
        self._lag.stop()
        gc.unfreeze()
        sys.setswitchinterval(self._switch_interval)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """The whole life of the process: start, serve until a signal comes, stop.

        SIGHUP makes the scenes follow their files. SIGUSR1 halts all generation and SIGUSR2 lets it
        go on. SIGTERM and SIGINT end it in good order; one that comes later than `SAME_WISH_S`
        after the first ends it at once.

        Args:
            on_ready: called once players may come.
        """
        loop = asyncio.get_running_loop()
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, lambda: self._in_background(self.reload()))
        if hasattr(signal, "SIGUSR1"):
            loop.add_signal_handler(signal.SIGUSR1, self.halt)
            loop.add_signal_handler(signal.SIGUSR2, self.release)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        starting = asyncio.create_task(self.start())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                on_ready()
                await stopping
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self.stop()

    def _on_signal(self, number: int) -> None:
        now = time.monotonic()
        if not self._stop.is_set():
            self._asked = now
            self._stop.set()
        elif now - self._asked > SAME_WISH_S:
            os._exit(128 + number)

    @property
    def halted(self) -> bool | None:
        """Whether all generation is halted; None before players may come."""
        return None if self.game is None or self.engine is None else self.engine.halted

    def halt(self) -> None:
        """The kill switch, see `GameServer.halt`; before the game is up there is nothing to end."""
        if self.game is not None:
            self.game.halt()

    def release(self) -> None:
        """Let generation go on."""
        if self.game is not None:
            self.game.release()

    @property
    def tenants(self) -> Collection[str]:
        """Names of the games on this server."""
        return self.settings.tenants

    def remit(self, game: str | None) -> Remit:
        """What a game, or the house, may see of all that is here now; None: all of it. Once players
        may come: before that nobody knows which packs there are.
        """
        assert self.game is not None
        return self.game.remit(game)

    async def forget(self, player: str, npc: str | None = None, game: str | None = None) -> int:
        """Forget a player, to all NPCs or one of them, in all games or one; returns how many
        records of memory. Once players may come.
        """
        assert self.game is not None
        remit = self.remit(game)
        self.game.forget(player, npc, remit)
        forgotten = 0
        if self.memories is not None:
            # Before the store of worlds, which may be another machine's, and down.
            forgotten = await self.memories.forget(player, npc, remit.scene)
        await self.game.forget_at_rest(player, npc, remit)
        return forgotten

    @property
    def memories(self) -> Memories | None:
        """What NPCs remember; None if they do not, or before players may come."""
        return None if self.game is None else self._memories

    async def reload(self) -> Mapping[str, object] | None:
        """Let the scenes follow their files; what changed and what is wrong, see `Report`."""
        if self._reloader is None or not self.readiness.ready:
            return None
        return (await self._reloader.reload()).as_json()

    def _find_packs(self) -> tuple[Path, ...]:
        """The packs there are now: a folder of packs may have got another one."""
        scenes = self.settings.scenes
        return find_packs(scenes) if scenes else self._packs

    def _in_background(self, work: Coroutine[object, object, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_ended)

    def _on_ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("scenes do not follow their files any more", exc_info=error)

    @property
    def alive(self) -> bool:
        """Whether the engine runs, or is still to be started."""
        return self.engine is None or self.engine.alive or self.readiness.state == "draining"

    @property
    def budgets(self) -> Budgets | None:
        """What may be generated; None before players may come."""
        return None if self.game is None else self.game.budgets

    @property
    def prompts(self) -> Mapping[str, Prompt] | None:
        """Prompts of recent turns by turn id; None without `inspect`."""
        if not self._inspect:
            return None
        return self.game.prompts if self.game is not None else {}

    def gauges(self) -> dict[str, float]:
        """All figures of the node by name."""
        figures = self._lag.gauges()
        if self.engine is not None:
            figures |= self.engine.gauges()
        if self.game is not None:
            figures |= self.game.gauges()
        if self._memories is not None:
            figures |= self._memories.gauges()
        return figures

    @property
    def inspector(self) -> Inspector | None:
        """Looks into the world; None before players may come."""
        return self.game.inspector if self.game is not None else None

    def measures(self) -> list[Series]:
        """All histograms of the engine."""
        return self.engine.measures() if self.engine is not None else []

    def playground(self) -> dict[str, object]:
        """Where the page finds the game, and which scenes there are."""
        assert self.engine is not None
        assert self.cast is not None
        return {
            "model": self.engine.model_name,
            "game": {"port": self.game_port, "path": PATH},
            "scenes": [
                facts(scene)
                for scene in self.cast.scenes.values()
                if self._tenants.owner(scene.id) is None  # whoever reaches the page sees them
            ],
        }

    def _make_engine(self) -> AnyEngine:
        """Runs in a thread of its own: it downloads, computes, and takes a lot of memory, or waits
        for servers elsewhere.
        """
        if self.settings.remote is not None:
            return self._remote_engine(self.settings.remote)
        engine = AsyncEngine(self._load_model(), self.settings.engine)
        if self._profile is not None:
            engine.attach(self._profile)
        return engine

    def _remote_engine(self, config: RemoteConfig) -> AnyEngine:
        # Imported here: whoever has an engine of their own needs nothing of it.
        from engine.remote.engine import RemoteEngine

        if self._profile is not None:
            raise ModelError("a profile is of an engine of our own: leave out --profile or remote")
        words = None
        if config.tokenizer is not None:
            words = load_vocabulary(
                config.tokenizer, data_dir=self._data_dir, progress=self._loading
            )
        return RemoteEngine.connect(
            config, self.settings.engine, words, lambda message: self._loading(message, 0, 0)
        )

    def _load_model(self) -> LoadedModel | ScriptedModel:
        spec, config = self.settings.model, self.settings.engine
        if spec.startswith(SCRIPT):
            words = load_vocabulary("default", data_dir=self._data_dir, progress=self._loading)
            return ScriptedModel.load(Path(spec.removeprefix(SCRIPT)), words.tokenizer, words.chat)
        return load(spec, config, data_dir=self._data_dir, progress=self._loading)

    def _loading(self, stage: str, done: int, total: int) -> None:
        if self.readiness.state == "draining":
            raise _Abandoned
        self.readiness.advance(STAGES.get(stage, stage), done, total)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        """Run blocking work in a daemon thread.

        Unlike the loop's own pool it cannot hold up the end of the process, whatever it waits for.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()

        def run() -> None:
            try:
                settle = partial(done.set_result, work())
            except BaseException as error:
                settle = partial(done.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is gone, and whoever waited too
                loop.call_soon_threadsafe(lambda: None if done.done() else settle())

        self._loader = threading.Thread(target=run, name="loader", daemon=True)
        self._loader.start()
        return await done

    def _for_the_game(self) -> Settings:
        """Settings with the console where it really is: its page may connect to the game."""
        settings = self.settings
        names = (*LOOPBACK, settings.console_host)  # a person types any of them
        own = (f"http://{authority(name, self.console_port)}" for name in names)
        return msgspec.structs.replace(
            settings, console_port=self.console_port, origins=(*settings.origins, *own)
        )
