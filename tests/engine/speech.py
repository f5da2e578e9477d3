"""Engines whose model speaks noise: whatever is right about their replies, the grammar made so."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from engine.blocks import BlockPool
from engine.decoding.sampling import Sampled, sample
from engine.loop import Engine
from engine.outputs import RequestOutput
from engine.params import SamplingParams
from engine.plan import StepPlan
from engine.request import Request
from engine.runner import sample_spec
from engine.tokenizer import Tokenizer
from tests.engine.fakes import CheckingRunner, small_config

#: Pieces of JSON and of words, so that tokens cross the borders of what a grammar names.
_WORDS = (
    *("name", "the", "bell", "cat", "dog", "yes", "no", "ab", "abc", "ing", "er", "in", "at"),
    *("true", "false", "null", '{"', '":', '",', '"}', "[]", "],", "},", 'a":', 'b"'),
    *("12", "00", "1.", "e+", '\\"', "\\n", "\\u00", "é", "ü", "日本", "🐈"),
)


def byte_tokenizer(words: Iterable[str] = _WORDS) -> Tokenizer:
    """Byte-level BPE: all 256 bytes, some words, and three control tokens, two of which end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in words:
        spelling = cut.pre_tokenize_str(word)[0][0]
        for end in range(2, len(spelling) + 1):
            if spelling[:end] not in vocab:
                vocab[spelling[:end]] = len(vocab)
                merges.append((spelling[: end - 1], spelling[end - 1]))
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = cut
    backend.decoder = decoders.ByteLevel()
    marks = [AddedToken(mark, special=True) for mark in ("<eos>", "<eot>", "<think>")]
    backend.add_special_tokens(marks)
    ends = [backend.token_to_id("<eos>"), backend.token_to_id("<eot>")]
    return Tokenizer(backend, eos_ids=ends, bos_id=None)


class NoisyRunner(CheckingRunner):
    """Draws from random logits with the engine's own sampling, and checks the KV like its parent.

    The logits of a row depend on the request's seed and the position only, and there are a few more
    of them than tokens, as in models with padded vocabularies.
    """

    def __init__(self, tokenizer: Tokenizer, block_size: int, slots: int, most_rows: int) -> None:
        super().__init__(block_size, slots, most_rows)
        self._width = tokenizer.vocab_size + 5

    def run(self, plan: StepPlan) -> list[Sampled]:
        super().run(plan)
        specs = [sample_spec(share) for share in plan.sequences if share.sample]
        rows = [self.logits(spec.seed, spec.position) for spec in specs]
        return sample(torch.from_numpy(np.stack(rows)), specs) if rows else []

    def logits(self, seed: int, position: int) -> np.ndarray:
        noise = np.random.default_rng((seed, position))
        return noise.normal(0, 6, self._width).astype(np.float32)


def make_noisy(
    tokenizer: Tokenizer, blocks: int = 128, max_model_len: int = 400, **settings: object
) -> tuple[Engine, NoisyRunner, list[float]]:
    """An engine over a noisy runner, and its clock."""
    clock = [0.0]
    config = small_config(**settings)
    runner = NoisyRunner(tokenizer, 4, blocks * 4, config.max_num_batched_tokens)
    engine = Engine(
        runner, tokenizer, BlockPool(blocks, 4), max_model_len, config, clock=lambda: clock[0]
    )
    return engine, runner, clock


def say(engine: Engine, params: SamplingParams, prompt: Sequence[int] = (1, 2, 3)) -> RequestOutput:
    """One reply from beginning to end, as one output."""
    request = engine.submit(prompt, params)
    return gather(run(engine), request)


def run(engine: Engine, limit: int = 5000) -> list[RequestOutput]:
    """Step until the engine is idle."""
    outputs: list[RequestOutput] = []
    for _ in range(limit):
        if not engine.has_work:
            engine.check()
            return outputs
        outputs += engine.step()
    raise AssertionError("the engine does not come to rest")


def gather(outputs: Iterable[RequestOutput], request: Request) -> RequestOutput:
    """All outputs of one request as one."""
    own = [output for output in outputs if output.request_id == request.id]
    last = own[-1]
    return RequestOutput(
        request.id,
        "".join(output.text for output in own),
        tuple(token for output in own for token in output.token_ids),
        last.finish,
        last.usage,
        last.error,
        complete=last.complete,
    )
