"""Whatever is written into settings: they are refused with one line that names the key, the value
and what is taken there.
"""

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import inspect
from typer.testing import CliRunner

from gameserver import cli as command
from gameserver.settings import Settings, SettingsError
from gameserver.settings_faults import shown, takes

#: What is written: names, and positions in lists.
Place = tuple[str | int, ...]
NONSENSE: tuple[Any, ...] = (
    *("", "moss", "\x1b[2J\n", "x" * 9999, "7", True, None, [], {}, ["moss", None], {"moss": 1}),
    *([[]], -1, 0, 0.5, 1.5, 2**70, -(2**70), 1e300, -1e300, [{"moss": [{}]}], "\u202emoss"),
)


def leaves(kind: inspect.Type, place: Place = ()) -> Iterator[tuple[Place, inspect.Type]]:
    """Every setting, sections and items of lists included."""
    if place:
        yield place, kind
    if isinstance(kind, inspect.UnionType):
        kind = next(each for each in kind.types if not isinstance(each, inspect.NoneType))
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from leaves(field.type, (*place, field.encode_name))
    elif isinstance(kind, inspect.VarTupleType):
        yield from leaves(kind.item_type, (*place, 0))
    elif isinstance(kind, inspect.DictType) and not isinstance(kind.value_type, inspect.AnyType):
        yield from leaves(kind.value_type, (*place, "moss"))


EVERY = list(leaves(inspect.type_info(Settings)))


def written(place: Place, value: Any) -> Any:
    """Settings that hold one value."""
    for part in reversed(place):
        value = [value] if part == 0 else {part: value}
    return value


def name(place: Place) -> str:
    """A place as it is told to people."""
    return re.sub(r"\.\[", "[", ".".join("[0]" if part == 0 else str(part) for part in place))


def complaint(folder: Path, raw: Any) -> str | None:
    """What is said about a file of settings; None if it can be used."""
    file = folder / "troupe.yaml"
    file.write_text(
        raw if isinstance(raw, str) else yaml.safe_dump(raw, allow_unicode=True), "utf-8"
    )
    try:
        Settings.load(file)
    except SettingsError as error:
        said = str(error)
        assert said.isprintable(), "one line, fit for a terminal"
        assert len(said) < len(str(file)) + 2000
        return said.removeprefix(f"{file}: ")
    return None


@pytest.mark.parametrize(("place", "kind"), EVERY, ids=[name(place) for place, _ in EVERY])
def test_every_setting_says_what_it_was_given_and_what_it_takes(
    tmp_path: Path, place: Place, kind: inspect.Type
) -> None:
    refused = 0
    for value in NONSENSE:
        said = complaint(tmp_path, written(place, value))
        if said is None:
            continue
        refused += 1
        if re.search(r"^[a-z_.\[\]0]+: \w+ is missing; it takes ", said):
            continue  # the value will do, but it does not stand alone
        beside = (name(place), name(place[:-1]), "tenants: without auth.keys_file")
        assert said.startswith(beside), said
        if said.startswith(f"{name(place)}: ") and not isinstance(value, dict):
            asked = value if type(value) is not int or abs(value) < 2**53 else float(value)
            assert any(told in said for told in (shown(value), str(asked)[:50])), said
            taken = (takes(kind), takes(kind).removesuffix(" or null"))
            assert said.endswith(taken) or "it takes" not in said, said
    assert refused, "something is refused everywhere"


NUMBERS = [
    pytest.param(place, id=name(place))
    for place, kind in EVERY
    if "number" in takes(kind) and not isinstance(kind, inspect.StructType | inspect.VarTupleType)
]


@pytest.mark.parametrize("place", NUMBERS)
def test_no_number_is_none_or_without_end(tmp_path: Path, place: Place) -> None:
    for text in (".nan", ".inf", "-.inf"):
        raw = yaml.safe_dump(written(place, "MOSS")).replace("MOSS", text)
        said = complaint(tmp_path, raw)
        assert said is not None
        assert f"{text} is no number that a setting can have" in said


@pytest.mark.parametrize(("place", "kind"), EVERY, ids=[name(place) for place, _ in EVERY])
def test_a_name_that_is_misspelt_is_told_the_right_one(
    tmp_path: Path, place: Place, kind: inspect.Type
) -> None:
    last = place[-1]
    if (
        not isinstance(last, str)
        or len(last) < 4
        or last == "moss"
        or place[0] == "tenants" == last
    ):
        return
    misspelt = (*place[:-1], last[:-2] + last[-1] + last[-2] + "x")
    said = complaint(tmp_path, written(misspelt, 1))
    assert said is not None
    assert said.startswith(f"{name(misspelt)}: there is no such setting; did you mean ")
    assert last in said


def test_a_name_like_no_other_is_told_all(tmp_path: Path) -> None:
    said = complaint(tmp_path, {"tls": {"qqqq": 1}})
    assert said == "tls.qqqq: there is no such setting; there are certificate, key"
    for odd in (1, None, True, 2.5):
        assert "there is no such setting" in str(complaint(tmp_path, {odd: 1}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port: 70000", "port: 70000 will not do; it takes a whole number from 0 to 65535"),
        ("port:", "port: null will not do; it takes a whole number from 0 to 65535"),
        ("port: '80'", 'port: "80" will not do; it takes a whole number from 0 to 65535'),
        ("watch: 1", "watch: 1 will not do; it takes true or false"),
        (
            "engine: {numerics: fats}",
            'engine.numerics: "fats" will not do; it takes one of bf16, exact, fast, int4',
        ),
        ("engine: {threads: 0}", "engine.threads: must be at least 1, not 0"),
        ("memory: {faded: 1}", "memory.faded: 1 will not do; it takes a number of at least 0 and"),
        ("store: {prefix: 'a b'}", 'store.prefix: "a b" will not do; it takes 1 to 64 letters, '),
        ("mqtt: {}", "mqtt: url is missing; it takes text"),
        ("origins: a", 'origins: "a" will not do; it takes a list, each item text'),
        # What contradicts something else
        ("port: 9\nconsole_port: 9", "port and console_port: both are 9, on 127.0.0.1"),
        ("flow: {delta_ms: 9000}", "flow.delta_ms: must not be above delta_ms_max (5000), as 9000"),
        ("api: {most_urgent: 2}", "api.most_urgent: must not be above priority (1), as 2 is"),
        (
            "overload: {enter: 0.1}",
            "overload: leave must be below relief, and relief below enter, but they are 0.25, 0.5",
        ),
        (
            "remote: {urls: ['http://a'], reserved: 64}",
            "remote.reserved: must leave a slot of in_flight (64) for everybody else, 64 do not",
        ),
        ("remote: {urls: ['ftp://a']}", "remote.urls: 'ftp://a' is no http:// or https:// address"),
        (
            "mqtt: {url: 'mqtt://a', reconnect_s: 60}",
            "mqtt.reconnect_s: is the first wait and at most reconnect_most_s (30.0), not 60.0",
        ),
        (
            "replies: {feelings: {judge_step: 50}}",
            "replies.feelings.judge_step: must not be above judge_per_day (10), as 50 is",
        ),
        ("guards: {trusted_proxies: [moss]}", "guards.trusted_proxies: 'moss'"),
    ],
)
def test_what_is_said(tmp_path: Path, text: str, said: str) -> None:
    assert str(complaint(tmp_path, text)).startswith(said)


@pytest.mark.parametrize(
    "text",
    [
        "remote: &a {urls: ['http://a'], extra: {b: *a}}",
        "origins: &a [*a]",
        "? [a]\n: 1",
        "? {a: 1}\n: 1",
        "[" * 5000,
        "limits: " + "{a: " * 3000,
        "port: \x00",
        "port: !!python/object:os.system {}",
        "port: 99999-99-99",
        "port: 2001-02-30",
        "port: 0b",
        "<<: 7",
        "%YAML 9.9\n---\nport: 1",
        "\ufeffport: x",
        "port: 1\n---\nport: 2",
        "port: " + "9" * 5000,
        "port: 1:99:99",
        "\tport: 1",
        "port: @",
        "moss",
        "7",
    ],
)
def test_what_is_hardly_a_file_of_settings_is_refused_in_one_line(
    tmp_path: Path, text: str
) -> None:
    assert complaint(tmp_path, text) is not None


@given(st.text(max_size=60))
@example("\U00018d09:")  # nothing to see yet in the Unicode of this Python, but no control either
def test_no_text_does_more_than_that(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    complaint(tmp_path_factory.getbasetemp(), text)


# The command line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--port 70000", "--port: 70000 will not do; it takes a whole number from 0 to 65535"),
        ("--console-port -1", "--console-port: -1 will not do; it takes a whole number from 0"),
        ("--remote-url ftp://a", "--remote-url: 'ftp://a' is no http:// or https:// address"),
        ("--port 9 --console-port 9", "port and console_port: both are 9"),
    ],
)
def test_an_option_is_named_as_it_was_written(
    monkeypatch: pytest.MonkeyPatch, options: str, said: str
) -> None:
    monkeypatch.setattr(command, "_leave", sys.exit)
    ran = CliRunner(env={"COLUMNS": "200"}).invoke(command.cli, ["serve", *options.split()])
    assert f"troupe: {said}" in ran.output


def test_values_are_shown_short_and_as_they_are_written() -> None:
    assert shown("x" * 99) == f'"{"x" * 58}…'
    assert [shown(value) for value in (None, True, math.inf, -math.inf)] == [
        *("null", "true", ".inf", "-.inf")
    ]
