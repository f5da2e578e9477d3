"""Contexts of 32,000 tokens: read in chunks, continued as transformers does, planned in no time."""

import time
from pathlib import Path

import pytest
import torch

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.models.decoder import Decoder
from engine.models.layout import lay_out
from engine.outputs import RequestOutput
from engine.params import SamplingParams
from engine.prefixes import PrefixTree
from engine.scheduler import Scheduler
from engine.weights.safetensors import FolderCheckpoint
from tests.engine.fakes import GREEDY, make_engine
from tests.engine.families import build
from tests.engine.test_families import words
from tests.engine.test_sliding_numbers import engine_of


def test_a_reply_to_32000_tokens_is_transformers_reply(tmp_path: Path) -> None:
    """Through the engine, in steps of 512, over 2,002 blocks."""
    narrow = {"hidden_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1}
    reference = build(
        "llama", tmp_path, num_hidden_layers=2, max_position_embeddings=32768, **narrow
    )
    engine = engine_of(Decoder.load(FolderCheckpoint(tmp_path), "exact"), EngineConfig(), 2100)
    prompt = words(32000)
    engine.submit(prompt, SamplingParams(max_tokens=20, temperature=0, ignore_eos=True))
    outputs: list[RequestOutput] = []
    steps = 0
    while engine.has_work:
        outputs += engine.step()
        steps += 1
    said = [token for output in outputs for token in output.token_ids]
    assert steps == -(-32000 // 512) + 19
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *said[:-1]]])
        logits = reference(ids, logits_to_keep=20).logits[0]
    assert said == logits.argmax(-1).tolist()


@pytest.mark.parametrize("chunk", [1, 256])
def test_the_hosts_work_for_a_step_grows_no_faster_than_its_blocks(chunk: int) -> None:
    """32 times the context may take scheduler and layout 32 times as long, not 1,000 times."""
    fastest = []
    for length in (1000, 32000):
        tree = PrefixTree(pool := BlockPool(2400, 16))
        scheduler = Scheduler(EngineConfig(reserved_slots=0), pool, tree)
        engine, _, _ = make_engine(blocks=2400, block_size=16, max_model_len=38400)
        request = engine.submit([n % 1000 for n in range(length + 512 + 20 * chunk)], GREEDY)
        scheduler.add(request)
        while request.computed < length:
            plan = scheduler.plan(0.0)
            assert plan is not None
            scheduler.computed(plan)
        scheduler.cost.prefill_budget = lambda *_, **__: chunk  # type: ignore[method-assign]
        times = []
        while request.computed + chunk < len(request.tokens):
            started = time.process_time()
            plan = scheduler.plan(0.0)
            assert plan is not None
            lay_out(plan.sequences, 16)
            scheduler.computed(plan)
            times.append(time.process_time() - started)
        fastest.append(min(times))
    assert fastest[1] < 32 * fastest[0]
