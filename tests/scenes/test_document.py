"""Every mistake in a YAML file is told with file, line and field; nothing a file holds can hurt."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenes.document import MAX_BYTES, PackError, read_document


def write(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "file.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def complaint(tmp_path: Path, text: str | bytes) -> PackError:
    file = write(tmp_path, text)
    with pytest.raises(PackError) as caught:
        read_document(file)
    assert caught.value.file == file
    assert str(file) in str(caught.value)
    return caught.value


def test_the_message_reads_as_editors_understand_it(tmp_path: Path) -> None:
    section = read_document(write(tmp_path, "a: 1\nbc: 2\n"))
    with pytest.raises(PackError) as caught:
        section.fail("bc", "is wrong")
    assert str(caught.value) == f"{section.file}:2: bc: is wrong"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: [1\n", 2, "not YAML"),
        ("a: b: c\n", 1, "not YAML"),
        ("a: 1\n\tb: 2\n", 2, "not YAML"),
        ("a: 'x\n", 2, "not YAML"),
        ("a: ok\nb: \x01\n", 2, "not YAML"),
        ("- a\n", 1, "mapping"),
        ("just words\n", 1, "mapping"),
        ("", 1, "nothing"),
        ("a: 1\n---\nb: 2\n", 2, "more than one document"),
        ("a: 1\nb: 2\na: 3\n", 3, "first in line 1"),
        ("? [a]\n: 1\n", 1, "plain words"),
        ("a: ok\nb: !!python/object/apply:os.system [ls]\n", 2, "tags are not allowed"),
        ("a: ok\nb: !!str 3\n", 2, "tags are not allowed"),
        ("a: ok\nb: !x y\n", 2, "tags are not allowed"),
    ],
)
def test_what_is_not_a_plain_mapping_is_refused_in_its_line(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    error = complaint(tmp_path, text)
    assert error.line == line
    assert words in error.problem


def test_alias_bombs_are_refused_at_the_first_anchor(tmp_path: Path) -> None:
    bomb = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, letter in zip("abcdefgh", "bcdefghi", strict=True):
        bomb.append(f"{letter}: &{letter} [{', '.join([f'*{before}'] * 9)}]")
    error = complaint(tmp_path, "\n".join(bomb))
    assert (error.line, "aliases" in error.problem) == (1, True)
    assert "aliases" in complaint(tmp_path, "a: ok\nb: *a\n").problem
    assert "aliases" in complaint(tmp_path, "a: ok\nb:\n  <<: *a\n").problem


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "- " * 100_000])
def test_deep_nesting_is_refused_without_recursion(tmp_path: Path, text: str) -> None:
    assert complaint(tmp_path, text).problem


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    error = complaint(tmp_path, b"a: ok\nb: \xff\xfe\n")
    assert (error.line, error.problem) == (2, "is not UTF-8 text")
    assert "larger" in complaint(tmp_path, b"a: " + b"x" * MAX_BYTES).problem


def test_missing_files_and_folders_are_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(PackError, match="cannot be read"):
            read_document(path)


def test_a_byte_order_mark_is_no_part_of_the_first_field(tmp_path: Path) -> None:
    section = read_document(write(tmp_path, b"\xef\xbb\xbfid: inn\n"))
    assert section.id("id") == "inn"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("1955", "the number 1955; put it in quotes"),
        ("No", "the flag No; put it in quotes"),
        ("3.5", "the number 3.5"),
        ("2026-11-30", "the date 2026-11-30"),
        ("~", "nothing"),
        ("", "nothing"),
        ("[a]", "a list"),
        ("{a: b}", "a mapping"),
        ("''", "is empty"),
        ("'   '", "is empty"),
        ('"a\\0b"', "control character"),
        ('"a\\x1bb"', "control character"),
        ('"\\ud800"', "control character"),
        ("x" * 21, "has 21 characters, the limit is 20"),
    ],
)
def test_text_must_be_text(tmp_path: Path, value: str, words: str) -> None:
    section = read_document(write(tmp_path, f"ok: 1\nfield: {value}\n"))
    with pytest.raises(PackError) as caught:
        section.text("field", 20)
    assert (caught.value.line, caught.value.field) == (2, "field")
    assert words in caught.value.problem


@pytest.mark.parametrize("value", ["a b", "a/b", "ä", "a:b", "x" * 65, '"a\\n"b'])
def test_ids_are_checked(tmp_path: Path, value: str) -> None:
    file = write(tmp_path, f"id: {value}\n")
    with pytest.raises(PackError):
        read_document(file).id("id")


def test_readers_give_values_and_defaults(tmp_path: Path) -> None:
    text = "t: ' words '\nf: yes\nl: [a, b]\ns: [{x: y}]\nm: {a: 1, b: 2.5, c: no, d: word}\n"
    section = read_document(write(tmp_path, text))
    assert section.text("t", 10) == "words"
    assert section.text("none", 10, default="other") == "other"
    assert section.flag("f", default=False) is True
    assert section.flag("none", default=True) is True
    assert section.texts("l", 2, 10) == [(3, "a"), (3, "b")]
    assert section.texts("none", 2, 10) == []
    assert [inner.text("x", 10) for inner in section.sections("s", 1)] == ["y"]
    assert section.scalars("m", 4, 10) == {"a": 1, "b": 2.5, "c": False, "d": "word"}


@pytest.mark.parametrize(
    "value", [".inf", ".nan", "1.0e+300", "9" * 30, "0x10", "[1]", "{}", "~", "2026-01-01"]
)
def test_scalars_hold_only_what_json_can_say(tmp_path: Path, value: str) -> None:
    section = read_document(write(tmp_path, f"m:\n  good: 1\n  bad: {value}\n"))
    with pytest.raises(PackError) as caught:
        section.scalars("m", 10, 10)
    assert (caught.value.line, caught.value.field) == (3, "m.bad")


def test_lists_have_limits_and_items_their_own_lines(tmp_path: Path) -> None:
    section = read_document(write(tmp_path, "l:\n  - a\n  - 7\nm:\n  - x: y\n  - z\n"))
    for read, field, line in (
        (lambda: section.texts("l", 1, 10), "l", 1),
        (lambda: section.texts("l", 2, 10), "l[1]", 3),
        (lambda: section.sections("m", 2), "m[1]", 6),
        (lambda: section.texts("none_such", 2, 10) or section.text("gone", 5), "gone", 1),
    ):
        with pytest.raises(PackError) as caught:
            read()
        assert (caught.value.field, caught.value.line) == (field, line)


@pytest.mark.parametrize("by", ["id", "name"])
def test_entries_are_known_by_a_field_that_differs_in_each(tmp_path: Path, by: str) -> None:
    text = f"l:\n  - {by}: a\n    x: 1\n  - {by}: b\n"
    section = read_document(write(tmp_path, text))
    found = section.entries("l", 2, lambda inner: inner.number("x", 0, 9, default=7), by)
    assert found == {"a": 1, "b": 7}
    assert section.entries("none", 2, lambda inner: inner, by) == {}

    twice = read_document(write(tmp_path, text.replace("b\n", "' a '\n")))
    with pytest.raises(PackError) as caught:
        twice.entries("l", 2, lambda inner: inner, by)
    assert (caught.value.field, caught.value.line) == (f"l[1].{by}", 4)
    assert f"'a' is the {by} of another entry of l" in caught.value.problem


def test_unknown_fields_are_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    section = read_document(write(tmp_path, "title: x\ngreting: y\n"))
    section.text("title", 10)
    section.text("greeting", 10, default="")
    with pytest.raises(PackError) as caught:
        section.finish()
    assert (caught.value.line, caught.value.field) == (2, "greting")
    assert "did you mean greeting?" in caught.value.problem


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace")))
def test_no_file_causes_anything_but_a_pack_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(raw)
    with contextlib.suppress(PackError):
        section = read_document(file)
        section.text("a", 10, default="")
        section.scalars("b", 3, 10)
        section.sections("c", 3)
        section.finish()
