"""Pages of what was said, for `history.get`."""

import msgspec

from gameserver.messages import History, HistoryItem
from npc.dialogue import Dialogue, Line

#: A page stays well below what any client can take.
_PAGE_BYTES = 30 * 1024


def read_page(dialogues: list[Dialogue], player: str, before: str | None, limit: int) -> History:
    """The newest lines before line `before` that a player may see.

    Args:
        dialogues: of one NPC, or of all in a scene.
        limit: most lines; a page that would be too large has fewer.
    """
    if len(dialogues) == 1:
        lines, following = dialogues[0].history(player=player, before=before, limit=limit)
        return History([_item(line) for line in lines], following)
    lines = _merged(dialogues, player)
    if before is not None:
        lines = lines[: next((at for at, line in enumerate(lines) if line.id == before), 0)]
    items: list[HistoryItem] = []
    size = 0
    while len(items) < min(limit, len(lines)):
        item = _item(lines[-1 - len(items)])
        size += len(msgspec.json.encode(item)) + 1
        if size > _PAGE_BYTES:
            break
        items.append(item)
    more = len(items) < len(lines)
    return History(items[::-1], items[-1].id if items and more else None)


def _merged(dialogues: list[Dialogue], player: str) -> list[Line]:
    """Lines of several NPCs in order of time; what several of them heard appears once."""
    lines: dict[str, Line] = {}
    for dialogue in dialogues:
        before: str | None = None
        while True:
            page, before = dialogue.history(player=player, before=before, limit=1000)
            lines.update((line.id, line) for line in page)
            if before is None:
                break
    return sorted(lines.values(), key=lambda line: line.ts)


def _item(line: Line) -> HistoryItem:
    return HistoryItem(
        line.id,
        line.kind,
        line.who,
        line.name,
        line.text,
        line.ts,
        line.npc,
        line.heard,
        line.status,
    )
