"""The usual stage."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gameserver.game import GameServer
from tests.gameserver.stage import serving

REPLIES = ["The bridge is gone. Nobody leaves tonight.", "The stew is hot.", "Mind the cat."]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[GameServer]:
    """A game server with generous limits whose NPCs say `REPLIES` in turn."""
    async with serving(tmp_path, REPLIES) as running:
        yield running
