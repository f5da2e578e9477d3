"""Pages of what was said, for `history.get`."""

import msgspec

from gameserver.messages import History, HistoryItem
from npc.dialogue import Dialogue, Line

#: A page stays well below what any client can take.
_PAGE_BYTES = 30 * 1024
_EVERYTHING = 1_000_000


def read_page(dialogues: list[Dialogue], player: str, before: str | None, limit: int) -> History:
    """The newest lines before line `before` that a player may see.

    Args:
        dialogues: of one NPC, or of all in a scene.
        limit: most lines; a page that would be too large has fewer.
    """
    if len(dialogues) == 1:
        lines, following = dialogues[0].history(player=player, before=before, limit=limit)
    else:
        lines, following = _merge(dialogues, player, before, limit)
    items: list[HistoryItem] = []
    size = 0
    for line in reversed(lines):
        item = _item(line)
        size += len(msgspec.json.encode(item)) + 1
        if size > _PAGE_BYTES:
            following = items[-1].id
            break
        items.append(item)
    return History(items[::-1], following)


def _merge(
    dialogues: list[Dialogue], player: str, before: str | None, limit: int
) -> tuple[list[Line], str | None]:
    """A page of the lines of several NPCs in order of time; what several heard appears once."""
    lines: dict[str, Line] = {}
    for dialogue in dialogues:
        heard, _ = dialogue.history(player=player, before=None, limit=_EVERYTHING)
        lines.update((line.id, line) for line in heard)
    ordered = sorted(lines.values(), key=lambda line: line.ts)
    if before is not None:
        ordered = ordered[: next((at for at, line in enumerate(ordered) if line.id == before), 0)]
    page = ordered[-limit:]
    return page, page[0].id if len(page) < len(ordered) else None


def _item(line: Line) -> HistoryItem:
    return HistoryItem(
        line.id,
        line.kind,
        line.who,
        line.name,
        line.text,
        line.heard,
        line.ts,
        line.npc,
        line.status,
    )
