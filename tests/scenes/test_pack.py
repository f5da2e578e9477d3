"""A scene file is read as written, and each mistake in it is named with its line."""

from pathlib import Path

import pytest

from scenes.pack import PackError, load_pack
from tests.scenes.packs import SCENE, write_pack


def test_a_pack_is_read(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path))
    assert (pack.id, pack.title, pack.text) == ("inn", "The Inn", "An inn at a ford.")
    assert pack.meta == {"weather": "rain", "year": 1204, "open": True}
    assert pack.allows_instances
    assert pack.events == {"thunder"}
    assert [file.name for file in pack.npcs] == ["mira.yaml", "harn.yaml"]
    assert pack.file == tmp_path / "scene.yaml"


def test_optional_fields_have_defaults(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path, "id: a\ntitle: b\ntext: c\nnpcs: [npcs/mira.yaml]\n"))
    assert (pack.meta, pack.allows_instances, pack.events) == ({}, False, frozenset())


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "words"),
    [
        ("id: inn", "id: the inn", 1, "id", "A-Z a-z 0-9"),
        ("id: inn\n", "", 1, "id", "is missing"),
        ("title: The Inn", "title: 3", 2, "title", "must be text"),
        ("text: |\n  An inn at a ford.", "text: ''", 3, "text", "is empty"),
        ("  An inn at a ford.", "  " + "long " * 8000, 3, "text", "the limit is"),
        ("  weather: rain", "  weather: [rain]", 6, "meta.weather", "a list"),
        ("  weather: rain", "  wet weather: rain", 6, "meta.wet weather", "A-Z"),
        ("instances: true", "instances: maybe", 9, "instances", "true or false"),
        ("instances: true", "instance: true", 9, "instance", "did you mean instances?"),
        ("  - thunder", "  - big thunder", 11, "events[0]", "A-Z"),
        ("  - thunder", "  - thunder\n  - thunder", 12, "events[1]", "twice"),
        ("mira.yaml", "nora.yaml", 13, "npcs[0]", "no file 'npcs/nora.yaml'"),
        ("npcs/harn.yaml", "npcs/mira.yaml", 14, "npcs[1]", "twice"),
        ("npcs/harn.yaml", "../other/harn.yaml", 14, "npcs[1]", "out of the pack"),
        ("npcs/harn.yaml", "/etc/passwd", 14, "npcs[1]", "out of the pack"),
        ("npcs/harn.yaml", "npcs", 14, "npcs[1]", "no file"),
        ("\nnpcs:\n  - npcs/mira.yaml\n  - npcs/harn.yaml", "\nnpcs: []", 12, "npcs", "at least"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, old: str, new: str, line: int, field: str, words: str
) -> None:
    assert old in SCENE
    write_pack(tmp_path, SCENE.replace(old, new, 1))
    with pytest.raises(PackError) as caught:
        load_pack(tmp_path)
    assert (caught.value.line, caught.value.field) == (line, field)
    assert words in caught.value.problem


def test_links_do_not_lead_out_of_a_pack(tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("id: secret\n")
    pack = write_pack(tmp_path / "pack")
    (pack / "npcs" / "harn.yaml").unlink()
    (pack / "npcs" / "harn.yaml").symlink_to(secret)
    with pytest.raises(PackError, match="out of the pack"):
        load_pack(pack)


def test_a_folder_without_a_scene_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"scene\.yaml: cannot be read"):
        load_pack(tmp_path)
