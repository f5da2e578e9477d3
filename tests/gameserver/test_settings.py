"""The configuration file: read once, checked, and clear about mistakes."""

from pathlib import Path

import pytest

from gameserver.settings import Settings, SettingsError


def test_without_a_file_all_is_at_its_default() -> None:
    settings = Settings.load(None)
    assert (settings.port, settings.console_port) == (8765, 8780)
    assert settings.host == settings.console_host == "127.0.0.1"
    assert settings.limits.frame_bytes == 32768
    assert settings.guards.ping_interval_s == 15
    assert settings.flow.delta_ms == 33


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "troupe.yaml"
    file.write_text("port: 9000\nlimits: {say_chars: 500}\nengine: {numerics: exact}\n", "utf-8")
    settings = Settings.load(file)
    assert (settings.port, settings.limits.say_chars) == (9000, 500)
    assert settings.engine.numerics == "exact"
    assert settings.limits.frame_bytes == 32768
    file.write_text("", "utf-8")
    assert Settings.load(file) == Settings()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("limits: {say_chars: many}", "limits.say_chars"),
        ("limits: {say_char: 5}", "say_char"),
        ("port: 70000", "port"),
        ("guards: {stall_s: -1}", "guards.stall_s"),
        ("flow: {delta_ms: 0.5}", "flow.delta_ms"),
        ("limits: {out_bytes: 10}", "limits.out_bytes"),
        ("guards: {stall_s: .nan}", ".nan is no number"),
        ("engine: {threads: 0}", "engine.threads: must be at least 1, not 0"),
        ("- a\n- b", "object"),
        ("a: [", "troupe.yaml:1: expected"),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "troupe.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(SettingsError) as caught:
        Settings.load(file)
    assert str(file) in str(caught.value)
    assert named in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml"):
        Settings.load(tmp_path / "none.yaml")


def test_a_field_that_is_set_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "troupe.yaml"
    path.write_text("port: 1\nlimits:\n  say_chars: 5\n  say_chars: 6\n")
    with pytest.raises(SettingsError, match=r"troupe\.yaml:4: say_chars is set twice$"):
        Settings.load(path)
