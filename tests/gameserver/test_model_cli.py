"""The commands that need no game: against a real server, and in this process."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gameserver.cli import cli
from gameserver.keys import Keys
from tests.gameserver.http.openai.served import noise, serving

BENCH = ("bench", "--profile", "tiny", "--vocab", "250")


async def troupe(*arguments: str, **options: Any) -> Result:
    """Run the command beside the server's event loop."""
    return await asyncio.to_thread(CliRunner().invoke, cli, list(arguments), **options)


async def test_chat_says_one_line_or_keeps_a_dialogue() -> None:
    async with serving(["Welcome in.", "The stew is hot."]) as served:
        once = await troupe("chat", "--url", served.url, "--once", "Hello?")
        assert (once.exit_code, once.stdout) == (0, "Welcome in.\n")
        both = await troupe("chat", "--url", f"{served.url}/v1/", input="And?\nAnd then?\n\n")
        assert both.exit_code == 0
        assert "The stew is hot.\n" in both.stdout
        assert "Welcome in.\n" in both.stdout


async def test_complete_takes_its_text_from_the_line_or_the_input() -> None:
    async with serving(["and that is all."]) as served:
        for arguments, given in ((["Once upon"], None), (["-"], "Once upon")):
            done = await troupe("complete", "--url", served.url, *arguments, input=given)
            assert done.stdout == "and that is all.\n"


async def test_a_key_that_troupe_made_opens_a_server_that_was_told_so(tmp_path: Path) -> None:
    made = await troupe("key", "studio")
    key, line = (text.split(":", 1)[1].strip() for text in made.stdout.splitlines())
    (tmp_path / "keys").write_text(line + "\n")
    async with serving(["Welcome."], keys=Keys.load(str(tmp_path / "keys"), None)) as served:
        good = await troupe("chat", "--url", served.url, "--once", "Hi", "--key", key)
        assert good.stdout == "Welcome.\n"
        bad = await troupe("chat", "--url", served.url, "--once", "Hi", "--key", "wrong")
        assert bad.exit_code == 1
        assert "key" in bad.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("chat", "--once", "Hi", "--url", "http://127.0.0.1:9"), "troupe serve"),
        (("chat", "--once", "Hi", "--url", "nonsense"), "address"),
        (("complete", "Hi", "--model", "/no/such/model.gguf"), "no model"),
        (("bench", "--profile", "huge"), "lonely, cpu"),
        (("bench", "--passes", "cold"), "first, again, new"),
        ((*BENCH, "--json", "/no/such/folder/out.json"), "cannot write /no/such/folder"),
        (("key", "a b"), "letters"),
    ],
)
async def test_what_goes_wrong_is_one_line_that_helps(
    arguments: tuple[str, ...], words: str
) -> None:
    done = await troupe(*arguments)
    assert done.exit_code == 1
    assert words in done.stderr
    assert "Traceback" not in done.output


async def test_an_unknown_model_of_a_server_is_named() -> None:
    async with serving(["Fine."]) as served:
        done = await troupe("complete", "Hi", "--url", served.url, "--model", "other")
        assert done.exit_code == 1
        assert "there is no model 'other'" in done.stderr


async def test_bench_counts_tokens_times_and_what_was_cached(tmp_path: Path) -> None:
    async with serving(["x" * 50], step_ms=1) as served:
        file = tmp_path / "figures.json"
        done = await troupe(*BENCH, "--url", served.url, "--json", str(file))
        assert done.exit_code == 0, done.output
        report = json.loads(file.read_text())
        first, again, new = report["passes"]
        for one in report["passes"]:
            assert (one["replies"], one["errors"]) == (8, {})
            assert one["completion_tokens"] == 64
            assert one["prompt_tokens"] == 8 * 112
            assert one["tokens_per_s"] == pytest.approx(64 / one["seconds"])
            assert one["ttft_p50_ms"] <= one["ttft_p90_ms"] <= one["ttft_p99_ms"]
            by_class = one["quest_ttft_p99_ms"], one["other_ttft_p99_ms"]
            assert max(by_class) == one["ttft_p99_ms"]
            assert 0 < one["itl_p50_ms"] <= one["itl_p99_ms"]
        # All but the last token of each prompt; then scene, persona, chance likeness.
        assert again["cached_share"] == pytest.approx(111 / 112)
        assert new["cached_share"] == pytest.approx(96 / 112, abs=0.02)
        assert first["cached_share"] < new["cached_share"]
        for word in (
            "requests/s",
            "tokens/s",
            "first token p99",
            "gap p50",
            "first",
            "again",
            "new",
        ):
            assert word in done.stdout


async def test_bench_keeps_its_pace_and_its_crowd_and_counts_refusals_by_kind() -> None:
    small = {"max_num_seqs": 1, "reserved_slots": 0, "max_waiting": 1}
    async with serving(["x" * 50], step_ms=5, engine=small) as served:
        crowd = await troupe(*BENCH, "--url", served.url, "--passes", "first")
        assert crowd.exit_code == 0
        assert "429" in crowd.stdout
        alone = await troupe(
            *BENCH, "--url", served.url, "--passes", "first", "--concurrency", "1", "--rate", "200"
        )
        assert "429" not in alone.stdout
        assert "none" in alone.stdout


async def test_help_explains_every_option() -> None:
    for command in ("chat", "complete", "embed", "bench", "key"):
        done = await troupe(command, "--help")
        assert done.exit_code == 0
        assert "--help" in done.stdout


@pytest.mark.model
async def test_a_model_in_this_process_needs_no_server(
    default_model_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "exact.yaml").write_text("engine: {numerics: exact}\n")
    model, config = str(default_model_path), ("--config", str(tmp_path / "exact.yaml"))
    options = ("--model", model, "--temperature", "0", "--max-tokens", "2")
    done = await troupe("complete", "The capital of France is", *options, *config)
    assert (done.exit_code, done.stdout.split()[0]) == (0, "Paris.")
    measured = await troupe(
        *BENCH, "--passes", "first", "--tokens", "2", "--engine", model, *config
    )
    assert measured.exit_code == 0, measured.output
    assert "in this process" in measured.stdout


async def test_embed_prints_a_line_of_json_for_each_text() -> None:
    async with serving(noise()) as served:
        done = await troupe("embed", "a bell", "a cat", "--url", served.url)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["text"] for line in lines] == ["a bell", "a cat"]
        assert all(len(line["embedding"]) == 3 for line in lines)
