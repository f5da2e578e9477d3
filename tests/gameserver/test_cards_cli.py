"""`troupe import` says what it took over and what it left out; `troupe export` writes it back."""

from pathlib import Path

from typer.testing import CliRunner

from gameserver.cli import cli
from tests.npc.cards.published import V2_DATA, card_png, raw, v2

run = CliRunner().invoke


def test_a_card_comes_in_and_goes_out(tmp_path: Path) -> None:
    card = tmp_path / "orla.png"
    card.write_bytes(card_png(v2()))
    pack = tmp_path / "shop"
    done = run(cli, ["import", str(card), "--into", str(pack), "--role", "the clockmaker"])
    assert done.exit_code == 0, done.output
    for words in ("wrote", "orla.yaml", "taken over", "3 greetings", "left out", "system_prompt"):
        assert words in done.output
    out = tmp_path / "back.png"
    done = run(cli, ["export", str(pack), str(out), "--npc", "orla"])
    assert done.exit_code == 0, done.output
    assert out.stat().st_size > len(raw(V2_DATA))
    again = run(cli, ["export", str(pack), str(out), "--npc", "orla"])
    assert again.exit_code == 1
    assert "exists already" in again.output


def test_refusals_are_one_line_with_a_reason(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"{}")
    done = run(cli, ["import", str(bad)])
    assert done.exit_code == 1
    assert done.output.count("\n") == 1
    assert "(missing)" in done.output
    assert run(cli, ["import", str(bad), "--kind", "hero"]).exit_code == 1
    assert run(cli, ["export", str(tmp_path / "none"), str(tmp_path / "x.json")]).exit_code == 1
