"""Those who come at once come in one after the other, who has a session first; and when too many
wait, those who begin anew are asked to come again."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from gameserver.protocol import Refusal
from gameserver.settings import Guards
from gameserver.tally import Tally
from gameserver.turnstile import Turnstile
from tests.gameserver.player import Player
from tests.gameserver.stage import serving, until


def turnstile(**limits: float) -> Turnstile:
    """One that lets nobody in for a long time, beyond the first."""
    wish = {"identifies_per_s": 0.001, "identifies_burst": 1, "identifies_waiting": 4, **limits}
    return Turnstile(msgspec.convert(wish, Guards), Tally())


async def test_who_comes_back_goes_before_who_comes_anew() -> None:
    gate = turnstile()
    await gate.enter(comes_back=False)
    order: list[str] = []

    async def come(name: str, *, back: bool) -> None:
        await gate.enter(comes_back=back)
        order.append(name)

    tasks = []
    for name, back in [("new 1", False), ("back 1", True), ("new 2", False), ("back 2", True)]:
        tasks.append(asyncio.create_task(come(name, back=back)))
        await asyncio.sleep(0)
    tasks[2].cancel()  # it has hung up: its turn is nobody's loss
    await asyncio.sleep(0)
    for left in (2, 1, 0):
        gate._bucket._level = 1.0
        gate._tick()
        await asyncio.sleep(0)
        assert len([task for task in tasks if not task.done()]) == left
    assert order == ["back 1", "back 2", "new 1"]


async def test_when_too_many_wait_the_last_who_begin_anew_are_asked_to_come_again() -> None:
    gate = turnstile()
    await gate.enter(comes_back=False)
    new = [asyncio.create_task(gate.enter(comes_back=False)) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(Refusal) as caught:
        await gate.enter(comes_back=False)
    assert (caught.value.code, caught.value.close) == ("busy", 4503)
    assert (caught.value.retry_ms or 0) > 1000
    back = [asyncio.create_task(gate.enter(comes_back=True)) for _ in range(4)]
    refused = await asyncio.gather(*new, return_exceptions=True)
    assert all(isinstance(refusal, Refusal) for refusal in refused)
    with pytest.raises(Refusal):
        await gate.enter(comes_back=True)  # those who came back first stay
    assert len(gate) == 4
    for task in back:
        task.cancel()


async def test_over_sockets_nobody_is_lost_and_the_rate_is_kept(tmp_path: Path) -> None:
    guards = {"identifies_per_s": 50.0, "identifies_burst": 2, "identify_timeout_s": 0.1}
    async with serving(tmp_path, ["x"], guards=guards) as server:
        players = [await Player.dial(server, f"p{i}") for i in range(20)]
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(player.identify() for player in players))
        # 18 of them one by one; that they waited for their turn is not held against them.
        assert loop.time() - began >= 17 / 50
        assert server.gauges()["identifies_waited"] == 18
        gone = [await Player.dial(server, f"q{i}") for i in range(10)]
        for player in gone:
            await player.send("identify", {"player": player.name, "auth": {"kind": "none"}})
            player.socket.transport.abort()
        await until(lambda: server.gauges()["connections"] == 20)
        late = await Player.dial(server, "late")
        await late.identify()
