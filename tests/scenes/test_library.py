"""Prefixes exist when somebody needs them; whatever goes wrong, none stays behind."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from engine.api import AsyncEngine
from engine.errors import OutOfMemory
from engine.prefixes import Prefix
from scenes.library import Library, OpenPack
from scenes.pack import PackError, ScenePack, load_pack
from tests.scenes.packs import SCENE, write_pack

PARTS = {"mira": [4], "harn": [5, 6]}


class Words:
    """Tokens of a scene, and a record of which were asked for."""

    def __init__(self, root: Sequence[int] = (1, 2, 3), **parts: list[int]) -> None:
        self.asked: list[str] = []
        self._root = root
        self._parts = parts or PARTS

    def root(self) -> Sequence[int]:
        self.asked.append("root")
        return self._root

    def part(self, name: str) -> Sequence[int]:
        self.asked.append(name)
        return self._parts[name]


@dataclass
class Engine:
    """Counts references, and fails at the n-th prefix if told to."""

    held: Counter[tuple[int, ...]] = field(default_factory=Counter)
    warmed: list[tuple[int, ...]] = field(default_factory=list)
    fail_at: int | None = None
    stuck_at: int | None = None

    def create_prefix(self, token_ids: Sequence[int], parent: Prefix | None = None) -> Prefix:
        self.held[tuple(token_ids)] += 1
        return Prefix(0, parent, tuple(token_ids))

    def release_prefix(self, prefix: Prefix) -> None:
        self.held[prefix.token_ids] -= 1

    async def warm(self, prefix: Prefix) -> None:
        await asyncio.sleep(0)
        if len(self.warmed) == self.fail_at:
            raise OutOfMemory("too large")
        if len(self.warmed) == self.stuck_at:
            await asyncio.Event().wait()
        self.warmed.append(prefix.all_token_ids())


def library(engine: Engine) -> Library:
    return Library(cast(AsyncEngine, engine))


@pytest.fixture
def pack(tmp_path: Path) -> ScenePack:
    return load_pack(write_pack(tmp_path / "pack"))


async def test_opening_warms_the_scene_before_its_people_and_tells_how_far_it_is(
    pack: ScenePack,
) -> None:
    engine, steps = Engine(), []
    scene = await library(engine).open(pack, Words(), [*PARTS], lambda *step: steps.append(step))
    assert engine.warmed == [(1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 5, 6)]
    assert scene.warmed == ("mira", "harn")
    assert steps == [("Warming the scenes", done, 3) for done in range(3)]


async def test_what_nobody_needs_costs_no_tokens_and_no_node(pack: ScenePack) -> None:
    engine, words = Engine(), Words()
    scene = await library(engine).open(pack, words)
    assert not words.asked
    assert not engine.held
    harn = scene.part("harn")
    assert scene.part("harn") is harn
    assert words.asked == ["root", "harn"]
    assert harn.all_token_ids() == (1, 2, 3, 5, 6)
    assert not engine.warmed, "computed with the request that needs it"


async def test_closing_gives_every_reference_back_and_may_be_repeated(pack: ScenePack) -> None:
    engine = Engine()
    shelf = library(engine)
    await shelf.open(pack, Words(), ["mira"])
    await shelf.close()
    await shelf.close()
    assert not +engine.held
    assert min(engine.held.values()) == 0
    assert not shelf.packs
    await shelf.open(pack, Words(), ["mira"])


async def test_a_new_version_has_whatever_the_old_one_had_in_use(pack: ScenePack) -> None:
    engine = Engine()
    shelf = library(engine)
    old = await shelf.open(pack, Words(), ["mira"])
    old.part("harn")
    seen: list[OpenPack] = []

    def swap(new: OpenPack) -> None:
        seen.append(new)
        assert engine.held[4,] == 2, "the old one is released after the exchange"

    words = Words(mira=[4], finn=[8])
    new = await shelf.replace(pack, words, ["mira"], swap)
    assert seen == [new]
    assert shelf.packs == {"inn": new}
    assert list(new.needed) == ["mira"], "harn is gone"
    assert +engine.held == Counter({(1, 2, 3): 1, (4,): 1})


@pytest.mark.parametrize("fault", ["warm", "swap"])
async def test_a_version_that_cannot_be_used_changes_nothing(pack: ScenePack, fault: str) -> None:
    engine = Engine(fail_at=2 if fault == "warm" else None)
    shelf = library(engine)
    old = await shelf.open(pack, Words(), ["mira"])
    before = engine.held.copy()

    def swap(new: OpenPack) -> None:
        raise OutOfMemory("too large")

    with pytest.raises(OutOfMemory):
        await shelf.replace(pack, Words([7], mira=[9]), ["mira"], swap)
    assert shelf.packs == {"inn": old}
    assert +engine.held == before


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_scene_that_does_not_fit_leaves_nothing_behind(pack: ScenePack, at: int) -> None:
    engine = Engine(fail_at=at)
    shelf = library(engine)
    with pytest.raises(OutOfMemory):
        await shelf.open(pack, Words(), [*PARTS])
    assert not +engine.held
    assert not shelf.packs


async def test_giving_up_while_a_scene_warms_leaves_nothing_behind(pack: ScenePack) -> None:
    engine = Engine(stuck_at=1)
    shelf = library(engine)
    opening = asyncio.create_task(shelf.open(pack, Words(), [*PARTS]))
    await asyncio.sleep(0.01)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not +engine.held


async def test_two_packs_with_one_id_are_refused_even_at_the_same_time(
    pack: ScenePack, tmp_path: Path
) -> None:
    engine = Engine()
    shelf = library(engine)
    other = load_pack(write_pack(tmp_path / "other", SCENE.replace("The Inn", "Another")))
    done = await asyncio.gather(
        shelf.open(pack, Words(), [*PARTS]),
        shelf.open(other, Words([9]), ["mira"]),
        return_exceptions=True,
    )
    assert isinstance(done[1], PackError)
    assert done[1].field == "id"
    assert str(pack.file) in done[1].problem
    assert engine.held[9,] == 0
