"""Whose the scenes are that a folder of data knows, where no server runs that could be asked."""

from pathlib import Path

from gameserver.packs import CannotFind, find_packs
from gameserver.settings import HOUSE, Settings, SettingsError
from gameserver.tenants import Remit, Tenants
from scenes.pack import PackError, load_pack


class NoSuchGame(ValueError):
    """Whose players are meant cannot be told; the message says why."""


def remit_by(config: Path, game: str | None, *, must_say: bool) -> Remit:
    """What a game may see of the folder of a server, by that server's settings.

    Args:
        game: a tenant, or `HOUSE`; None: all games.
        must_say: all games will not do, if there are several.

    Raises:
        NoSuchGame: there is none, or the settings cannot be read.
    """
    try:
        settings = Settings.load(config)
        packs = [load_pack(folder).id for folder in find_packs(settings.scenes)]
    except (SettingsError, CannotFind, PackError) as error:
        raise NoSuchGame(str(error)) from error
    games = [*settings.tenants, HOUSE]
    if must_say and game is None and settings.tenants:
        raise NoSuchGame(f"{config} has several games: name one with --tenant: {', '.join(games)}")
    if game is not None and game not in games:
        raise NoSuchGame(f"there is no game {game} in {config}, but {', '.join(games)}")
    return Tenants(settings.tenants).remit(game, packs)
