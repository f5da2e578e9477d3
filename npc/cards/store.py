"""Cards in scene packs: an NPC file of ours, and beside it the card as it came.

A card is kept under `cards/` as `<id>.json`, with `<id>.png` if it came with a picture, so that it
can be written back with everything that we do not know.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import yaml

from npc.cards.card import Card, read_card, write_card
from npc.cards.convert import Wishes, draft, revised, slug
from npc.cards.errors import CardError
from npc.cards.lorebook import read_lorebook, unsaid, write_lorebook
from npc.cards.macros import Macros
from npc.persona import Persona, read_personas
from scenes.document import ID, MAX_BYTES, PackError, append_to_list
from scenes.lore import LoreEntry
from scenes.pack import load_pack

_NEW_SCENE = """\
# Made from a character card. What is true in the place belongs into `text`.
id: {id}
title: {title}
text: |
  This is where {name} can be met.
npcs:
  - {file}
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did.

    Attributes:
        written: files, new or changed.
        mapped: what was taken over.
        left_out: what was not, and how often.
    """

    written: tuple[Path, ...]
    mapped: tuple[str, ...]
    left_out: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export made.

    Attributes:
        content: bytes of the file.
        left_out: what its format has no place for, and how often.
    """

    content: bytes
    left_out: Mapping[str, int]


def import_card(file: Path, folder: Path, wishes: Wishes) -> Imported:
    """Put a card's character, or a World Info file's lore, into a pack. A folder without a pack
    becomes one; nothing is ever overwritten, and a pack that would not load is left as it was.

    Raises:
        CardError: the file cannot be used, or its place is taken.
        PackError: the pack cannot be used.
    """
    card = read_card(file)
    if card.version == 0:
        return _import_world(card, file, folder, wishes)
    made = draft(card.data, wishes)
    persona = made.persona
    if not ID.fullmatch(persona.id):
        raise CardError("missing", f"{persona.id!r} is no id; give one with --id")
    name = f"npcs/{persona.id}.yaml"
    files = {
        name: _yaml(_document(persona)),
        f"cards/{persona.id}.json": write_card(card.data, card.version, ".json", None),
    }
    if card.picture is not None:
        files[f"cards/{persona.id}.png"] = card.picture
    if not (folder / "scene.yaml").exists():
        scene = {"id": persona.id, "title": persona.name, "name": persona.name, "file": name}
        title = {key: _quoted(value) if key == "title" else value for key, value in scene.items()}
        files["scene.yaml"] = _NEW_SCENE.format(**title).encode()
        return Imported(_write(folder, files, {}), made.mapped, made.left_out)
    changed = {"scene.yaml": append_to_list(folder / "scene.yaml", "npcs", name)}
    return Imported(_write(folder, files, changed), made.mapped, made.left_out)


def export_card(folder: Path, npc: str, suffix: str, picture: bytes | None = None) -> Exported:
    """An NPC of a pack as a card file. One that came as a card goes back as that card, with what
    was changed since.

    Args:
        suffix: ".json", ".png" or ".charx".
        picture: for a PNG, in place of the one the card came with.

    Raises:
        CardError: there is no such NPC or kind of file.
        PackError: the pack cannot be used.
    """
    people = {persona.id: persona for persona in read_personas(load_pack(folder))}
    if npc not in people:
        raise CardError("missing", f"there is no NPC {npc!r}; there are {', '.join(people)}")
    persona, kept = people[npc], folder / "cards" / f"{npc}.json"
    if kept.exists():
        card = read_card(kept)
        data, version = card.data, card.version
        before = draft(data, Wishes(npc, persona.kind, persona.role)).persona
        data = revised(data, before, persona)
    else:
        blank = Persona(npc, "", persona.kind, persona.role, "")
        data, version = revised(_blank(), blank, persona), 3
    drawn = folder / "cards" / f"{npc}.png"
    if picture is None and drawn.exists():
        picture = drawn.read_bytes()
    left_out = unsaid(persona.lore)
    left_out["factions"] += bool(persona.factions)
    for what in ("actions", "reactions", "secrets"):
        left_out[what] += len(getattr(persona, what))
    return Exported(write_card(data, version, suffix, picture), +left_out)


def export_world(folder: Path) -> Exported:
    """A pack's scene lore as a World Info file.

    Raises:
        PackError: the pack cannot be used.
    """
    pack = load_pack(folder)
    book = write_lorebook({entry.id: entry for entry in pack.lore}, {})
    entries = {str(at): _world_entry(at, entry) for at, entry in enumerate(book["entries"])}
    content = orjson.dumps({"name": pack.title, "entries": entries}, option=orjson.OPT_INDENT_2)
    return Exported(content, unsaid(pack.lore))


def _import_world(card: Card, file: Path, folder: Path, wishes: Wishes) -> Imported:
    if not (folder / "scene.yaml").exists():
        raise CardError("missing", f"is lore for a scene, and {folder} has no scene.yaml")
    left_out: Counter[str] = Counter()
    lore = read_lorebook(card.data, "world", Macros("the speaker"), left_out)
    if not lore:
        raise CardError("missing", "has no entry that could be used")
    stem = wishes.id or slug(file.stem)
    entries = [_entry(entry, f"{stem}.{entry.id}") for entry in lore.values()]
    name = f"lore/{stem}.yaml"
    changed = {"scene.yaml": append_to_list(folder / "scene.yaml", "lore_files", name)}
    written = _write(folder, {name: _yaml({"lore": entries})}, changed)
    return Imported(written, (f"{len(lore)} lore entries",), +left_out)


def _write(
    folder: Path, new: Mapping[str, bytes], changed: Mapping[str, bytes]
) -> tuple[Path, ...]:
    """Write files, if the pack with them loads."""
    for name, content in new.items():
        if (folder / name).exists():
            raise CardError("taken", f"{folder / name} exists already; give another --id")
        if name.endswith(".yaml") and len(content) > MAX_BYTES:
            raise CardError("too_large", f"makes a file of more than {MAX_BYTES} bytes of YAML")
    files = {**new, **changed}
    with tempfile.TemporaryDirectory() as trial:
        copy = Path(trial) / "pack"
        if folder.exists() and changed:
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("cards"))
        _put(copy, files)
        try:
            list(read_personas(load_pack(copy)))
        except PackError as error:
            place = folder / error.file.relative_to(copy)
            raise PackError(place, error.line, error.field, error.problem) from None
    _put(folder, files)
    return tuple(folder / name for name in files)


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _document(persona: Persona) -> dict[str, Any]:
    """The fields of an NPC file: those of which a card says something."""
    blank = asdict(Persona("", "", "", "", ""))
    whole = {name: value for name, value in asdict(persona).items() if value != blank[name]}
    whole.pop("knows", None)
    if persona.examples:
        whole["examples"] = [{"player": e.player, "npc": e.npc} for e in persona.examples]
    if persona.lore:
        whole["lore"] = [_entry(entry, entry.id) for entry in persona.lore]
    return whole


def _entry(entry: LoreEntry, name: str) -> dict[str, Any]:
    standard = asdict(LoreEntry("", ""))
    fields = {key: value for key, value in asdict(entry).items() if value != standard[key]}
    if entry.scope == "npc":
        fields.pop("scope", None)
    return {**fields, "id": name}


def _yaml(document: Mapping[str, Any]) -> bytes:
    return yaml.dump(
        _plain(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=96
    ).encode()


def _plain(value: object) -> object:
    """Lists in place of tuples, which YAML does not know."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, where YAML allows it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _blank() -> dict[str, Any]:
    texts = (
        "name description personality scenario first_mes mes_example creator_notes system_prompt "
        "post_history_instructions creator character_version"
    )
    lists = ("alternate_greetings", "group_only_greetings", "tags")
    empty: dict[str, Any] = dict.fromkeys(texts.split(" "), "")
    return {**empty, **{name: [] for name in lists}, "extensions": {}}


def _world_entry(at: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a `character_book` as one of a World Info file."""
    extensions = entry["extensions"]
    return {
        "uid": at,
        "key": entry["keys"],
        "keysecondary": entry["secondary_keys"],
        "comment": entry["name"],
        "content": entry["content"],
        "constant": entry["constant"],
        "selective": entry["selective"],
        "selectiveLogic": extensions["selectiveLogic"],
        "order": entry["insertion_order"],
        "priority": entry["priority"],
        "disable": False,
        "caseSensitive": entry["case_sensitive"],
        "matchWholeWords": extensions["match_whole_words"],
    }
