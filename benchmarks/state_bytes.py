"""What world state costs on the wire: what has changed, against the whole state at the same pace.

`python -m benchmarks.state_bytes [--out FILE]`. One client of the demo scene, with the code of the
server from a write to the bytes of a WebSocket frame; nothing is sent, and no clock is waited for.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.tavern_evening import SPEED, STEP_S, evening
from gameserver.messages import StateDelta
from gameserver.protocol import Encoded, encode
from gameserver.state.scene_state import SceneState
from gameserver.state.watch import Watch
from npc.roster import load_roster
from scenes.pack import load_pack
from tests.gameserver.state.alone import pack_of, state_of

SCENE = Path(__file__).parent.parent / "scenes" / "packs" / "gilded_griffin"
SECONDS = 600
SEED = 7
#: With `sight`, all moves come with each beat of this number.
_FAR_BEATS = 10

_HEAD = f"""\
# What world state costs on the wire

`python -m benchmarks.state_bytes`: {SECONDS} s of the demo scene
([seed {SEED}](../tavern_evening.py)), as one client gets it. Guests walk at {SPEED} paces a second,
then stand 4 to 20 s; the door opens and shuts, the fire burns down, the cat moves, the wind turns.
Bytes are those of WebSocket frames, joining included, at {1 / STEP_S:.0f} beats a second where
something has changed. Beside it the whole state in each such beat: the same items, and without
their stamps ("bare").

| | framing | frames/s | deltas, bytes/s | whole state | bare | saved against whole | against bare |
|---|---|---|---|---|---|---|---|"""
_FOOT = """
Guests who all walk all the time change most of the state in each beat: little is left to save, and
against the bare state stamps cost more than that.
"""

Framing = Callable[[Encoded], bytes]
FRAMINGS: dict[str, Framing] = {"JSON": lambda m: m.json, "msgpack": lambda m: m.msgpack}


@dataclass(frozen=True, slots=True)
class Bill:
    """Bytes to one client in a run, by framing.

    Attributes:
        frames: messages with changes.
        deltas: of those, joining included.
        whole: of the whole state in place of each.
        bare: of the whole state without stamps.
    """

    frames: int
    deltas: dict[str, int]
    whole: dict[str, int]
    bare: dict[str, int]


class _Value(msgspec.Struct, frozen=True):
    """An item without its stamp."""

    e: str
    k: str
    v: Any


class _Values(msgspec.Struct, frozen=True):
    """The whole state without stamps."""

    items: list[_Value]


def measure(guests: int, seconds: float, *, restless: bool = False, sight: float = 0.0) -> Bill:
    """Play an evening for one of the guests."""
    state = _tavern(guests, sight)
    watch = Watch(state, "guest0")
    deltas, whole, bare = (dict.fromkeys(FRAMINGS, 0) for _ in range(3))
    frames = 0
    for beat, writes in enumerate(evening(guests, seconds, SEED, restless=restless)):
        if not state.put(writes):
            continue
        # Beats are a tenth of a second apart in the story, not on a clock.
        far_ms = 0 if beat % _FAR_BEATS == 0 else 10**9
        state._settings = msgspec.structs.replace(state._settings, far_ms=far_ms)
        state._publish()
        for message in watch.messages(lambda unit: True):
            frames += 1
            _charge(deltas, message)
        items = [r.item for r in state.registers.since(0) if r.item.v is not None]
        _charge(whole, _message(StateDelta(state.rev, items, full=True)))
        _charge(bare, _message(_Values([_Value(item.e, item.k, item.v) for item in items])))
    return Bill(frames, deltas, whole, bare)


def _tavern(guests: int, sight: float) -> SceneState:
    pack = load_pack(SCENE)
    places = {npc.id: npc.at for npc in load_roster(pack).values()}
    around = replace(pack.surroundings, sight=sight)
    state = state_of(around, pack=pack_of(around, **places))
    state._attendance.states.update({f"guest{n}": "present" for n in range(guests)})
    return state


def _message(body: msgspec.Struct) -> Encoded:
    return encode("state.delta", body, st="gilded_griffin", ep=1)


def _charge(bill: dict[str, int], message: Encoded) -> None:
    for framing, of in FRAMINGS.items():
        size = len(of(message))
        bill[framing] += size + (2 if size < 126 else 4)  # the header of a WebSocket frame


def _row(name: str, bill: Bill, framing: str) -> str:
    deltas, whole, bare = (part[framing] for part in (bill.deltas, bill.whole, bill.bare))
    return (
        f"| {name} | {framing} | {bill.frames / SECONDS:.1f} | {deltas / SECONDS:,.0f} "
        f"| {whole / SECONDS:,.0f} | {bare / SECONDS:,.0f} "
        f"| {1 - deltas / whole:.1%} | {1 - deltas / bare:.1%} |"
    )


def report() -> str:
    """The table, in Markdown."""
    runs = {
        "2 guests": measure(2, SECONDS),
        "6 guests": measure(6, SECONDS),
        "20 guests": measure(20, SECONDS),
        "20 guests, `sight: 5`": measure(20, SECONDS, sight=5.0),
        "6 guests who never stand still": measure(6, SECONDS, restless=True),
        "20 guests who never stand still": measure(20, SECONDS, restless=True),
    }
    rows = [_row(name, bill, framing) for name, bill in runs.items() for framing in FRAMINGS]
    return "\n".join([_HEAD, *rows, _FOOT])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    wish = parser.parse_args()
    table = report()
    print(table)
    if wish.out:
        wish.out.write_text(table, "utf-8")


if __name__ == "__main__":
    main()
