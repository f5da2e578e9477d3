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
    items = [_item(line) for line in lines]
    size = 0
    for kept, item in enumerate(reversed(items)):
        size += len(msgspec.json.encode(item)) + 1
        if size > _PAGE_BYTES:
            items = items[len(items) - kept :]
            return History(items, items[0].id)
    return History(items, following)


def _merge(
    dialogues: list[Dialogue], player: str, before: str | None, limit: int
) -> tuple[list[Line], str | None]:
    """Lines of several NPCs in order of time; what all of them heard appears once."""
    lines: dict[str, Line] = {}
    for dialogue in dialogues:
        heard, _ = dialogue.history(player=player, before=None, limit=_EVERYTHING)
        lines.update((line.id, line) for line in heard)
    ordered = sorted(lines.values(), key=lambda line: line.ts)
    if before is not None:
        place = next((at for at, line in enumerate(ordered) if line.id == before), 0)
        ordered = ordered[:place]
    page = ordered[-limit:]
    return page, page[0].id if len(page) < len(ordered) else None


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
