"""What benchmarks.cpu switches off is off, and its workload is what it says."""

import pytest
import torch

from benchmarks.cpu_stage import Players, ReadsApart, Setting, Stage, burst, quests
from engine.config import EngineConfig
from engine.kv.cache import KVCache
from engine.plan import Segment, SequenceStep
from engine.prefixes import Prefix
from engine.weights.load import LoadedModel
from gameserver.bench.workload import PROFILES, build
from tests.benchmarks.tiny import load_tiny
from tests.engine.families import VOCAB

CONFIG = EngineConfig(device="cpu", numerics="exact", kv_cache_bytes=1 << 24, max_num_seqs=16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("model"))[0]


def distinct(profile: str) -> int:
    """Prompt tokens that have to be computed when nothing is computed twice."""
    size = PROFILES[profile]
    return size.scenes * (size.scene + size.npcs * (size.persona + size.players * size.turn))


@pytest.mark.parametrize("profile", ["cpu", "odd"])
def test_lines_of_a_scene_have_its_tokens_in_common_and_no_others(profile: str) -> None:
    size, lines = PROFILES[profile], build(profile)
    assert len(lines) == 16
    assert {len(line.prompt) for line in lines} == {size.scene + size.persona + size.turn}
    assert len({line.scene for line in lines}) == size.scenes
    assert len({line.persona for line in lines}) == size.scenes * size.npcs
    assert len({line.turn for line in lines}) == len(lines)
    kept = build(profile, turn_seed=1)
    assert [(x.scene, x.persona) for x in kept] == [(x.scene, x.persona) for x in lines]
    assert not {line.turn for line in kept} & {line.turn for line in lines}


def test_the_target_of_computed_tokens_is_that_of_the_workload() -> None:
    assert distinct("cpu") == 2816


def test_no_block_size_divides_the_odd_lengths() -> None:
    size = PROFILES["odd"]
    assert all(length % 16 for length in (size.scene, size.persona, size.turn))


def test_nodes_are_computed_once_or_by_every_player(model: LoadedModel) -> None:
    lines, out = build("tiny", vocab=VOCAB), 4
    shared = burst(Stage(model, Setting("exact"), CONFIG), lines, out)
    assert shared["prefill_computed"] == distinct("tiny")
    apart = burst(Stage(model, Setting("exact", reads="apart"), CONFIG), lines, out)
    assert apart["prefill_computed"] == distinct("tiny")
    own = burst(Stage(model, Setting("exact", nodes="own"), CONFIG), lines, out)
    assert own["prefill_computed"] == sum(len(line.prompt) for line in lines)


def test_reading_apart_hides_what_is_shared_and_nothing_else() -> None:
    seen: list[SequenceStep] = []

    class Watcher:
        block_multiple = 16

        def compute(self, sequences: list[SequenceStep], cache: KVCache) -> torch.Tensor:
            seen.extend(sequences)
            return torch.zeros(0)

    node = Prefix(0, None, (1, 2))
    segments = (Segment(7, (3, 4), 20), Segment(-1, (5,), 2))
    share = SequenceStep(node, (1, 2), 20, segments, sample=True)
    apart = ReadsApart(Watcher(), torch.bfloat16)  # type: ignore[arg-type]
    apart.compute([share], None)  # type: ignore[arg-type]
    assert apart.block_multiple == 16
    assert [part.node for part in seen[0].segments] == [-1, -1]
    assert [(p.blocks, p.length) for p in seen[0].segments] == [((3, 4), 20), ((5,), 2)]
    assert (seen[0].tokens, seen[0].slots(16), seen[0].sample) == ((1, 2), [80, 81], True)


def test_quest_givers_are_answered_while_replies_hold_all_their_slots(model: LoadedModel) -> None:
    players = Players(build("tiny", vocab=VOCAB), VOCAB, 0)
    config = EngineConfig(
        device="cpu", numerics="exact", kv_cache_bytes=1 << 24, max_num_seqs=3, reserved_slots=1
    )
    figures = quests(Stage(model, Setting("exact"), config), players, 8, config)
    assert figures["idle_p50_s"] <= figures["idle_p99_s"]
    assert 0 < figures["busy_p50_s"] <= figures["busy_p99_s"]
    assert figures["ratio"] == pytest.approx(figures["busy_p99_s"] / figures["idle_p50_s"])
