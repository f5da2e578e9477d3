"""The scene as one client has it: `scene.joined` and `scene.snapshot`."""

from collections.abc import Mapping

from gameserver.attendance import Attendance
from gameserver.floor import Floor
from gameserver.messages import (
    Activity,
    Gap,
    NpcView,
    PlayerView,
    QuestView,
    SceneView,
    TurnSync,
)
from gameserver.outbox import Outbox
from gameserver.protocol import Encoded, encode
from gameserver.streams import Stream
from npc.cast import OpenScene

#: Bytes of what is counted only roughly: the envelope, and each turn beside its text.
_ENVELOPE_BYTES = 512
_TURN_BYTES = 256


def view_scene(
    t: str,
    stream: Stream,
    pack: OpenScene,
    attendance: Attendance,
    floors: Mapping[str, Floor],
    outbox: Outbox,
    *,
    meta: Mapping[str, object],
    quests: list[QuestView],
    room: int,
    gap: Gap | None,
    re: int | None,
) -> Encoded:
    """The message `t` that shows a scene.

    Text and event number are those that `outbox` has sent, so that what it sends next continues
    from there.

    Args:
        meta: the payload of `scene.meta`.
        quests: of the one who looks.
        room: most bytes; text that does not fit follows as `npc.turn.sync`.
        gap: events that it stands in for.
        re: the command it answers.
    """
    players: dict[str, PlayerView] = {}
    for member, role in attendance.members.items():
        view = PlayerView(member.player, member.name, attendance.states[member.player], role)
        players.setdefault(member.player, view)
    npcs = [
        NpcView(npc.id, npc.name, npc.role, npc.quest_giver, *_shown(floors.get(npc.id), npc.mood))
        for npc in pack.npcs.values()
    ]
    turns: list[TurnSync] = []
    scene = SceneView(list(players.values()), npcs, turns, dict(meta), gap, quests)
    room -= _ENVELOPE_BYTES + len(encode(t, scene))
    for floor in floors.values():
        turn = floor.answer.turn if floor.answer is not None else None
        heard = outbox.heard(turn) if turn is not None else None
        if turn is None or heard is None or stream not in turn.streams:
            continue
        room -= _TURN_BYTES + turn.bytes
        if room > 0:
            turns.append(turn.view(0, heard))
        else:
            outbox.listen(turn, 0, resync=True)
    return encode(t, scene, st=stream.id, s=outbox.position(stream), ep=stream.ep, re=re)


def _shown(floor: Floor | None, resting: str) -> tuple[Activity, str]:
    return ("idle", resting) if floor is None else (floor.face.activity, floor.face.mood)
