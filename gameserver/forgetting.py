"""Forgetting a player in what is kept of scenes and sessions that do not run."""

from contextlib import suppress
from pathlib import Path

from gameserver.diary import Diary, read_person
from gameserver.ledger import Ledger
from gameserver.stores.journal import Book, Journal
from gameserver.stores.sqlite import SqliteStore
from gameserver.stores.store import Elsewhere, StoreDown, StoreError
from gameserver.tally import Tally
from gameserver.tenants import EVERYTHING, Remit, player_of

SCENES = "scene."
_SESSIONS = "session."


async def forget_in_scene(
    journal: Journal, bucket: str, player: str, npc: str | None
) -> Elsewhere | None:
    """Forget what a player has said to all NPCs or one, in a scene that does not run.

    Returns:
        The node that has it, if another one does: there is nothing done then.

    Raises:
        StoreDown: ask again.
    """
    held = await journal.store.claim(bucket, lease=True)
    if isinstance(held, Elsewhere):
        return held
    journal.begin()
    Ledger(Book(bucket, journal, held), 0).forget(player, npc)
    await journal.settled()
    return None


async def forget_in_folder(
    folder: Path, player: str, npc: str | None = None, remit: Remit = EVERYTHING
) -> int:
    """Forget a player in the worlds of a folder that no server uses: what was said to all NPCs or
    one, the player's sessions, and in those of others whispers, and answers that name the player.
    The bytes are overwritten.

    Args:
        remit: whose player is meant, where several games have one of that name.

    Returns:
        Scenes and sessions that were looked through; 0 if there are no worlds.

    Raises:
        StoreError: the file cannot be used, or is in use.
    """
    store = SqliteStore(folder)
    if not store.file.is_file():
        return 0
    await store.open()
    journal = Journal(store, Tally())
    journal.start()
    try:
        looked_at = 0
        for bucket in await store.buckets(SCENES):
            if remit.scene(bucket.removeprefix(SCENES)):
                await forget_in_scene(journal, bucket, player, npc)
                looked_at += 1
        for bucket in await store.buckets(_SESSIONS):
            looked_at += await _forget_in_session(journal, bucket, player, npc, remit)
        await journal.settled()
        await store.scrub()
    except StoreDown as down:
        raise StoreError(str(down)) from down
    finally:
        await journal.stop()
        with suppress(StoreDown):
            await store.close()
    return looked_at


async def _forget_in_session(
    journal: Journal, bucket: str, player: str, npc: str | None, remit: Remit
) -> bool:
    """Returns whether it is within the remit."""
    held = await journal.store.claim(bucket, lease=False)
    assert not isinstance(held, Elsewhere)
    journal.begin()
    book = Book(bucket, journal, held)
    page = book.take("person").get("")
    account = "" if page is None else read_person(page).player
    if not remit.account(account):
        return False
    if npc is None and player_of(account) in ("", player):
        book.erase()
    else:
        Diary(book).forget(player)
    return True
