"""A folder in which a player was forgotten holds nothing of what the player said."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gameserver.forgetting import forget_in_folder
from gameserver.settings import TenantSettings
from gameserver.stores.sqlite import FILE
from gameserver.stores.store import StoreError
from gameserver.tenants import Tenants
from tests.gameserver.player import Player
from tests.gameserver.stage import SCENE
from tests.gameserver.test_restart import Crashing, back, entered

SECRET, OPEN = "xyzzy", "plugh"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Crashing]:
    made = Crashing(tmp_path, ["Well."] * 9)
    await made.start()
    yield made
    await made.stop()


def anywhere(folder: Path, word: str) -> bool:
    """In any file of the folder, as it lies on the disk."""
    files = [file for file in folder.glob(f"{FILE}*") if file.is_file()]
    assert files
    return any(word.encode() in file.read_bytes() for file in files)


async def test_not_a_byte_is_left_and_the_others_go_on(node: Crashing, tmp_path: Path) -> None:
    ann, bob = await entered(node, "ann"), await entered(node, "bob")
    await ann.ask("say", {"npc": "mira", "text": f"{SECRET} aloud"})
    await ann.until("npc.turn.end")
    whisper = {"npc": "mira", "text": f"{SECRET} whispered", "to": ["bob", "mira"]}
    await ann.ask("say", whisper)
    await ann.ask("context.set", {"items": {"wish": f"{SECRET} wish"}})
    await ann.ask("observe", {"text": f"{SECRET} seen", "who": "ann"})
    await bob.ask("say", {"npc": "mira", "text": OPEN})
    await bob.until("npc.turn.end")
    read = await bob.ask("history.get", {"npc": "mira"})
    assert SECRET in str(read), "kept as the answer to a command"
    wishes = {player: player.resume_wish() for player in (ann, bob)}
    last = bob.cursors[SCENE]
    await node.crash()
    assert anywhere(tmp_path, SECRET)

    assert await forget_in_folder(tmp_path, "ann") >= 3
    assert not anywhere(tmp_path, SECRET)
    assert anywhere(tmp_path, OPEN)

    await node.start()
    eve = await Player.dial(node.server, "ann")
    assert not (await eve.identify(resume=wishes[ann]))["d"]["resumed"]
    bob.forgiving = True
    await back(bob, node)
    assert bob.welcome["resumed"]
    told = (await bob.ask("history.get", {"npc": "mira"}))["d"]["items"]
    assert OPEN in [item["text"] for item in told]
    await bob.ask("world.event", {"name": "thunder"})
    await bob.until("world.event")
    assert bob.cursors[SCENE] > last


async def test_a_namesake_in_another_game_is_not_forgotten(node: Crashing, tmp_path: Path) -> None:
    ann = await entered(node, "ann")
    await ann.ask("say", {"npc": "mira", "text": f"{SECRET} aloud"})
    await ann.until("npc.turn.end")
    wish = ann.resume_wish()
    await node.crash()
    tenants = Tenants({"acme": TenantSettings(scenes=("mill",))})
    assert await forget_in_folder(tmp_path, "ann", None, tenants.remit("acme", [SCENE])) == 0
    assert anywhere(tmp_path, SECRET)
    await node.start()
    again = await Player.dial(node.server, "ann")
    assert (await again.identify(resume=wish))["d"]["resumed"]
    await node.crash()
    assert await forget_in_folder(tmp_path, "ann", None, tenants.remit("house", [SCENE])) >= 2
    assert not anywhere(tmp_path, SECRET)


async def test_what_was_said_to_one_npc_alone_can_be_forgotten(
    node: Crashing, tmp_path: Path
) -> None:
    ann = await entered(node, "ann")
    for npc, word in (("mira", SECRET), ("harn", OPEN)):
        await ann.ask("say", {"npc": npc, "text": f"{word} it is"})
        await ann.until("npc.turn.end")
    await node.crash()
    await forget_in_folder(tmp_path, "ann", "mira")
    assert not anywhere(tmp_path, SECRET)
    assert anywhere(tmp_path, OPEN)
    await node.start()
    await back(ann, node)
    assert ann.welcome["resumed"], "and the session goes on"


async def test_no_worlds_are_no_fault_and_those_in_use_are_left_alone(
    node: Crashing, tmp_path: Path
) -> None:
    assert await forget_in_folder(tmp_path / "elsewhere", "ann") == 0
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(StoreError, match="in use"):
        await forget_in_folder(tmp_path, "ann")


async def test_a_file_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database, but somebody's")
    with pytest.raises(StoreError):
        await forget_in_folder(tmp_path, "ann")
    assert (tmp_path / FILE).read_bytes() == b"not a database, but somebody's"
