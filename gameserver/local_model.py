"""A model in this process behind the same API as a server's: commands need one way to ask."""

import contextlib
import secrets
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.routing import Mount

from engine.face import AnyEngine
from gameserver.budgets import Budgets
from gameserver.http.listener import Listener, bind
from gameserver.http.openai.api import OpenAIApi
from gameserver.keys import Key, Keys, key_line
from gameserver.readiness import Readiness
from gameserver.settings import ApiSettings


class _Node:
    """As much of a node as the API asks for."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine: AnyEngine | None = engine
        self.budgets: Budgets | None = None
        self.readiness = Readiness()
        self.readiness.state = "ready"


@contextlib.asynccontextmanager
async def serving(engine: AnyEngine) -> AsyncIterator[tuple[str, str]]:
    """Serve an engine on a free loopback port for this process alone; gives address and key."""
    key = secrets.token_urlsafe(32)
    name, digest = key_line("own", key).split()
    keys = Keys({bytes.fromhex(digest): Key(name)})
    await engine.start()
    # Who asks for it is this process, which waits however long it takes.
    api = OpenAIApi(_Node(engine), ApiSettings(first_token_s=0), keys)
    listener = Listener(Starlette(routes=[Mount("/v1", api.app)]), bind("127.0.0.1", 0, "--url"))
    try:
        await listener.start()
        yield f"http://127.0.0.1:{listener.port}", key
    finally:
        await engine.stop()
        await listener.stop()
