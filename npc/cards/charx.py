"""Cards in CHARX archives: a ZIP with `card.json` at its top and assets, which are left alone.

Nothing is ever unpacked to a path that an archive names.
"""

import io
import zipfile
import zlib

from npc.cards.errors import CardError
from npc.cards.text import MAX_JSON

CARD = "card.json"
#: Members of an archive. The directory is read as a whole.
MAX_MEMBERS = 10_000
_MEMBER = b"PK\x01\x02"


def read_charx(data: bytes) -> bytes:
    """The JSON of the card in an archive.

    Raises:
        CardError: the archive is damaged, has no card, or it is too large.
    """
    # Before an object is made of each.
    if data.count(_MEMBER) > MAX_MEMBERS:
        raise CardError("too_large", f"is an archive of more than {MAX_MEMBERS} files")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if any(_leads_out(name) for name in archive.namelist()):
                raise CardError("damaged", "is an archive with a file that leads out of it")
            # The other methods cannot be stopped at a limit.
            if archive.getinfo(CARD).compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):
                raise CardError(
                    "damaged", "is an archive that is packed by another method than deflate"
                )
            with archive.open(CARD) as member:
                raw = member.read(MAX_JSON + 1)
    except KeyError:
        raise CardError("not_a_card", f"is an archive without {CARD}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise CardError("damaged", f"is a damaged archive: {error}") from None
    except (NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, CardError):
            raise
        raise CardError("damaged", f"is an archive that cannot be read: {error}") from None
    if len(raw) > MAX_JSON:
        raise CardError("too_large", f"holds a card of more than {MAX_JSON} bytes")
    return raw


def write_charx(card: bytes) -> bytes:
    """An archive with a card and no assets."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        # A fixed date: the same card is the same file.
        archive.writestr(zipfile.ZipInfo(CARD, (1980, 1, 1, 0, 0, 0)), card)
    return buffer.getvalue()


def _leads_out(name: str) -> bool:
    return name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/")
