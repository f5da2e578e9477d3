"""The device's runner says what the CPU's says: same plans, other kernels."""

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from engine.decoding.constraint import Constraint, mask_of
from engine.errors import ModelError
from engine.kv.cache import KVCache
from engine.kv.copies import copy_in_order
from engine.loop import Engine
from engine.params import SamplingParams
from engine.plan import BlockCopy
from engine.pooling import Pooling
from engine.request import Request
from engine.weights.safetensors import FolderCheckpoint
from tests.engine.device.stage import (
    VOCAB,
    cpu_runner,
    device_runner,
    engine,
    finish,
    folder,
    overlapping,
)


def say(running: Engine, players: int, tokens: int, **params: Any) -> dict[int, list[int]]:
    """Players of two personas in one scene, and one alone, all at once."""
    chance = random.Random(players)

    def words(count: int) -> list[int]:
        return chance.choices(range(VOCAB), k=count)

    scene = running.create_prefix(words(18))
    personas = [running.create_prefix(words(n), scene) for n in (5, 1)]
    for number in range(players):
        running.submit(
            words(chance.randint(1, 4)),
            SamplingParams(max_tokens=tokens, ignore_eos=True, seed=number, **params),
            prefix=(*personas, None)[number % 3],
        )
    return finish(running)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    "shape", ["qwen 3", "llama with biases", "mistral", "qwen 3, windows", "yarn"]
)
def test_greedy_replies_equal_the_cpus(shape: str, tmp_path: Path, device: torch.device) -> None:
    path = folder(tmp_path, shape)
    wanted = say(engine(cpu_runner(path)), 3, 3, temperature=0)
    assert say(overlapping(device_runner(path, device)), 3, 3, temperature=0) == wanted


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ("gemma 2", "activation, post_norms"),
        ("smollm 3", "unrotated_layers"),
        ("phi 3, partly", "heads that rotate in part"),
    ],
)
def test_shapes_without_kernels_are_refused(
    shape: str, reason: str, tmp_path: Path, device: torch.device
) -> None:
    with pytest.raises(ModelError, match=f"models with {reason} do not run on a GPU yet"):
        device_runner(folder(tmp_path, shape), device)


def test_scales_and_caps(tmp_path: Path, device: torch.device) -> None:
    """What Gemma's shapes need of the kernels, on a model that is otherwise a Llama."""
    path = folder(tmp_path, "mistral")
    checkpoint = FolderCheckpoint(path)
    checkpoint.config = dataclasses.replace(
        checkpoint.config,
        windows=(8, 0),
        local_rope_frequencies=(0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005),
        rope_scale=1.1,
        embedding_scale=3.0,
        score_scale=0.4,
        score_cap=2.0,
        logit_cap=4.0,
    )
    wanted = say(engine(cpu_runner(checkpoint)), 3, 3, temperature=0, logprobs=1)
    assert say(overlapping(device_runner(checkpoint, device)), 3, 3, temperature=0) == wanted


def test_rows_the_host_draws_get_all_that_the_cpu_gives(model: Path, device: torch.device) -> None:
    """Penalties by count, biases and log-probabilities beside rows that the device draws."""
    for params in (
        {"temperature": 0, "frequency_penalty": 1.5, "logit_bias": {5: 2.0}, "logprobs": 2},
        {"temperature": 0, "repetition_penalty": 1.8},
    ):
        wanted = say(engine(cpu_runner(model)), 2, 3, **params)
        assert say(engine(device_runner(model, device)), 2, 3, **params) == wanted


@pytest.mark.parametrize("kind", ["mean", "last"])
def test_hidden_states_are_the_cpus(kind: Any, model: Path, device: torch.device) -> None:
    """Of texts read in pieces beside a reply, one step ahead."""
    texts = [list(range(n, n + 30)) for n in (1, 50)]

    def vectors(running: Engine) -> list[npt.NDArray[np.float32]]:
        readings = [running.embed(text, Pooling(kind)) for text in texts]
        running.submit([7, 8], SamplingParams(max_tokens=4, temperature=0))
        found: dict[int, Any] = {}
        while running.has_work:
            found |= {output.request_id: output.embedding for output in running.step()}
        return [found[reading.id] for reading in readings]

    wanted = vectors(engine(cpu_runner(model)))
    for vector, expected in zip(
        vectors(overlapping(device_runner(model, device))), wanted, strict=True
    ):
        np.testing.assert_allclose(vector, expected, atol=1e-4)


def test_mixed_rows_under_overlap(model: Path, device: torch.device) -> None:
    """Rows that the host draws skip the step that cannot know their token; the others do not."""

    def mixed(running: Engine) -> dict[int, list[int]]:
        for number in range(4):
            held = {"frequency_penalty": 1.5, "logprobs": 1} if number % 2 else {}
            params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True, **held)
            running.submit([number, 7, 8], params)
        return finish(running)

    assert mixed(overlapping(device_runner(model, device))) == mixed(engine(cpu_runner(model)))


#: What NPCs ask for, see `npc.settings.ReplySettings`, and more of it.
NPCS = {
    "min_tokens": 2,
    "frequency_penalty": 0.8,
    "presence_penalty": 0.2,
    "logit_bias": {5: 2.0},
    "bad_words": ("7", "3 4", "9 8 7"),
    "top_k": 40,
    "min_p": 0.1,
    "top_p": 0.95,
}


def test_the_device_draws_all_that_npcs_ask_for(model: Path, device: torch.device) -> None:
    """Penalties, biases, bans and first tokens, at once and one step ahead of the host."""

    def speak(running: Engine, temperature: float) -> dict[int, list[int]]:
        for number in range(3):
            params = SamplingParams(max_tokens=6, temperature=temperature, seed=number, **NPCS)  # type: ignore[arg-type]
            running.submit([number, 7, 8], params)
        return finish(running)

    runner = device_runner(model, device)
    asked: list[Request] = []
    by_host = runner._drawing.by_host

    def watched(request: Request) -> bool:
        if by_host(request):
            asked.append(request)
        return by_host(request)

    runner._drawing.by_host = watched  # type: ignore[method-assign]
    running = overlapping(runner)
    assert speak(running, 0.0) == speak(engine(cpu_runner(model)), 0.0)
    said = list(speak(running, 0.4).values())
    assert said == list(speak(engine(device_runner(model, device, eager=True)), 0.4).values())
    assert not asked


class Alternating:
    """A matcher: even tokens and odd ones take turns."""

    def __init__(self) -> None:
        self._odd = False

    def consume_token(self, token: int) -> bool:
        assert token % 2 == self._odd, "a token that was not allowed"
        self._odd = not self._odd
        return True

    def compute_bitmask(self) -> bytes:
        return bytes([0xAA if self._odd else 0x55] * (VOCAB // 8))

    def is_accepting(self) -> bool:
        return False

    def is_error(self) -> bool:
        return False


def test_the_device_draws_within_grammars(model: Path, device: torch.device) -> None:
    """Replies that are held to one join every other step; the others do not wait for them."""

    def speak(running: Engine) -> dict[int, list[int]]:
        workers = ThreadPoolExecutor(1)

        def constrain(params: SamplingParams) -> Constraint | None:
            if params.seed == 0:
                return None
            matcher: Any = Alternating()
            ends: Any = np.array([], np.int64)
            first = mask_of(matcher, VOCAB - 8)  # a model may know more tokens than its tokenizer
            return Constraint(
                matcher,
                first,
                workers,
                ends=ends,
                endless=False,
                spell=lambda token: b"x",
                is_whole=lambda text: False,
            )

        running.grammars.constrain = constrain  # type: ignore[method-assign]
        for number in range(3):
            bans = {"frequency_penalty": 1.0, "bad_words": ("7",)} if number == 2 else {}
            params = SamplingParams(max_tokens=5, temperature=0, seed=number, **bans)  # type: ignore[arg-type]
            running.submit([number, 7, 8], params)
        return finish(running)

    runner = device_runner(model, device)
    assert speak(overlapping(runner)) == speak(engine(cpu_runner(model)))
    assert len(runner._drawing._place) == 2 and not runner._drawing._crowded_out


def test_more_requests_than_there_are_records(model: Path, device: torch.device) -> None:
    """Those that find no room in time are drawn on the host; records of replies that have ended
    are given to others.
    """
    runner = device_runner(model, device)
    runner._drawing._free = [3]

    def speak(running: Engine) -> list[list[int]]:
        said = []
        for _ in range(2):
            for number in range(3):
                bans = {"bad_words": ("1", "2 3"), "frequency_penalty": 1.0}
                params = SamplingParams(max_tokens=4, temperature=0, **bans)  # type: ignore[arg-type]
                running.submit([number, 7, 8], params)
            said += list(finish(running).values())
        return said

    assert speak(overlapping(runner)) == speak(engine(cpu_runner(model)))
    assert runner._drawing._place


@pytest.mark.gpu
def test_rows_the_host_draws_under_overlap(model: Path, device: torch.device) -> None:
    params = {"temperature": 0, "frequency_penalty": 1.5, "logprobs": 1}
    wanted = say(engine(cpu_runner(model)), 6, 30, **params)
    assert say(overlapping(device_runner(model, device)), 6, 30, **params) == wanted


@pytest.mark.parametrize("order", [[(0, 3), (1, 4)], [(0, 3), (3, 5), (2, 0)]])
def test_copies_are_as_if_made_one_by_one(order: list[tuple[int, int]]) -> None:
    caches = []
    for _ in range(2):
        cache = KVCache(2, 3, 4, 6, 2, torch.float32, torch.device("cpu"))
        cache.keys.copy_(torch.arange(cache.keys.numel()).view(cache.keys.shape))
        cache.values.copy_(cache.keys + 0.5)
        caches.append(cache)
    for source, target in order:
        caches[0].copy(source * 2, target * 2, 2)
    copy_in_order(caches[1], [BlockCopy(source, target) for source, target in order])
    assert torch.equal(caches[0].keys, caches[1].keys)
    assert torch.equal(caches[0].values, caches[1].values)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ["llama", "qwen 2", "qwen 3", "odd heads"])
def test_captured_steps_equal_the_cpus(shape: str, tmp_path: Path, device: torch.device) -> None:
    path = folder(tmp_path, shape)
    wanted = say(engine(cpu_runner(path)), 20, 60, temperature=0)
    assert say(engine(device_runner(path, device)), 20, 60, temperature=0) == wanted
    assert say(engine(device_runner(path, device, eager=True)), 20, 60, temperature=0) == wanted
    assert say(overlapping(device_runner(path, device)), 20, 60, temperature=0) == wanted


@pytest.mark.gpu
def test_sampling_does_not_depend_on_capture(model: Path, device: torch.device) -> None:
    params = {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2}
    eager = say(engine(device_runner(model, device, eager=True)), 12, 40, **params)
    assert say(engine(device_runner(model, device)), 12, 40, **params) == eager


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("overlap", [False, True])
def test_storms(seed: int, overlap: bool, model: Path, device: torch.device) -> None:
    """Quests that park replies, cancels, too few blocks: what is said is what the CPU says alone.

    Afterwards the pool is empty again.
    """
    runner = device_runner(model, device)
    make = overlapping if overlap else engine
    running = make(runner, max_num_seqs=4, blocks=40)
    chance = random.Random(seed)
    scene = running.create_prefix(chance.choices(range(VOCAB), k=50))
    asked: dict[int, tuple[list[int], SamplingParams, bool]] = {}
    requests, found = [], {}
    for step in range(400):
        if step % 2 == 0 and step < 160:
            prompt = chance.choices(range(VOCAB), k=chance.randint(1, 40))
            params = SamplingParams(
                max_tokens=chance.randint(1, 30), temperature=0, ignore_eos=True
            )
            prefix = chance.choice((scene, None))
            urgent = chance.random() < 0.3
            request = running.submit(prompt, params, prefix=prefix, priority=0 if urgent else 1)
            asked[request.id] = (prompt, params, prefix is not None)
            requests.append(request)
        if step % 7 == 6 and step < 160:
            running.cancel(chance.choice(requests))
        for output in running.step():
            assert output.error is None, output.error
            found.setdefault(output.request_id, []).extend(output.token_ids)
    finish(running)
    running.check()
    running.release_prefix(scene)
    finish(running)
    assert running.gauges["blocks_held"] == 0

    reference = engine(cpu_runner(model), max_num_seqs=8, max_waiting=1000)
    ids = {}
    for number, (prompt, params, in_scene) in asked.items():
        whole = [*scene.token_ids, *prompt] if in_scene else prompt
        ids[reference.submit(whole, params).id] = number
    for number, tokens in finish(reference).items():
        said = found.get(ids[number], [])
        assert said == tokens[: len(said)]
