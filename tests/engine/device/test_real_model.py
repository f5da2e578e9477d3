"""A real model on the device says what transformers makes of the same weights there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from engine import LLM, EngineConfig, SamplingParams
from engine.weights.fetch import DEFAULT_MODEL
from tests.engine.test_decoder import PROMPTS

pytestmark = [pytest.mark.gpu, pytest.mark.model, pytest.mark.timeout(300)]

LENGTH = 64


@pytest.fixture(scope="module")
def model_path(request: pytest.FixtureRequest, cache_dir: Path) -> Path:
    """The default model, which machines with a GPU cannot always fetch."""
    file = cache_dir / "models" / DEFAULT_MODEL.folder / DEFAULT_MODEL.files[0].name
    if not file.is_file():
        pytest.skip(f"the default model is not there and is not fetched for this: {file}")
    path: Path = request.getfixturevalue("default_model_path")
    return path


@pytest.fixture(scope="module")
def reference(model_path: Path) -> Any:
    """Transformers' model on the device, in float32."""
    model = AutoModelForCausalLM.from_pretrained(
        model_path.parent, gguf_file=model_path.name, dtype=torch.float32
    )
    return model.eval().to("cuda")


@pytest.mark.parametrize("eager", [False, True], ids=["captured", "uncaptured"])
def test_greedy_text_is_that_of_transformers(eager: bool, model_path: Path, reference: Any) -> None:
    """The same 64 tokens for each of a dozen prompts, spoken together and each by itself."""
    params = SamplingParams(max_tokens=LENGTH, temperature=0, ignore_eos=True)
    config = EngineConfig(
        device="cuda", numerics="exact", kv_cache_bytes=1 << 30, enforce_eager=eager
    )
    llm = LLM(str(model_path), config)
    prompts = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    together = [reply.token_ids for reply in llm.generate(prompts, params)]
    alone = [llm.generate(prompt, params)[0].token_ids for prompt in prompts[:3]]
    assert alone == together[:3]
    for prompt, said in zip(prompts, together, strict=True):
        assert len(said) == LENGTH
        # Checks every greedy choice in one pass: transformers' best next token after each of ours.
        with torch.inference_mode():
            logits = reference(torch.tensor([[*prompt, *said]], device="cuda")).logits[0]
        assert list(said) == logits[len(prompt) - 1 : -1].argmax(-1).tolist()
