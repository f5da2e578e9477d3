"""What the host lays out is what the device finds, padding included."""

import random
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install troupe-npc[gpu]")

from engine.blocks import BlockPool
from engine.decoding.detokenize import Pieces
from engine.decoding.text import TextStream
from engine.device.choose import choose_device
from engine.device.layout import Layout
from engine.device.tables import StepSize, StepTables
from engine.errors import ModelError
from engine.overlap import OverlapEngine
from engine.params import SamplingParams
from engine.plan import SequenceStep, StepPlan, request_step
from engine.request import Request
from kernels.gpu.sampling import parameters
from kernels.tree_work import TileRows
from tests.engine.device.stage import BLOCK, Numbers
from tests.engine.fakes import LetterTokenizer, small_config
from tests.engine.test_overlap import LaunchingRunner, Ready

ENTRY = parameters(temperature=0.5, top_p=0.9, min_p=0.1, top_k=7, seed=2**63 + 5)
TRASH = 99
TILES = TileRows(2, 4, 4)


def request(number: int, prompt: list[int], outputs: list[int]) -> Request:
    """A request that has said `outputs` and computed all but the last of them."""
    params = SamplingParams(max_tokens=40)
    made = Request(
        number,
        tuple(prompt),
        params,
        prefix=None,
        priority=1,
        salt="",
        shares=(),
        seed=1,
        text=TextStream(Pieces(Numbers()), params, frozenset()),
        arrived=0.0,
    )
    made.tokens += outputs
    made.computed = len(made.tokens) - 1 if outputs else 0
    made.blocks = BlockPool(90, BLOCK).allocate(-(-made.own_limit // BLOCK)) or []
    return made


def lay_out(
    steps: list[SequenceStep], fed_back: dict[Request, int], rows: int, samples: int
) -> dict[str, np.ndarray]:
    owners = [step.owner for step in steps if isinstance(step.owner, Request)]
    arrays = Layout(TILES, TRASH).arrange(
        steps,
        (),
        fed_back=fed_back,
        parameters=dict.fromkeys(owners, ENTRY),
        size=StepSize(rows, samples, merged=0, aligned=False),
    )
    return dict(arrays.sections)


def test_rows_padding_and_tokens_under_way() -> None:
    speaker, reader = request(0, [5, 6, 7], [8]), request(1, [1, 2, 3, 4], [])
    steps = [request_step(speaker, 1, BLOCK), request_step(reader, 4, BLOCK)]
    found = lay_out(steps, {speaker: 2}, rows=8, samples=4)
    assert found["ids"].tolist() == [-3, 1, 2, 3, 4, 0, 0, 0]
    assert found["positions"].tolist() == [3, 0, 1, 2, 3, 0, 0, 0]
    assert found["sample_rows"].tolist() == [0, 4, -1, -1]
    assert found["table"][1].tolist() == ENTRY.tolist()
    assert found["part_count"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert found["merged"].tolist() == [0]
    assert found["reading"].tolist() == [[1, 4, 0, 1]]
    (at, start, length), *_ = found["links"].tolist()
    assert (found["blocks"][at], start, length) == (reader.blocks[0], 0, 4)
    for row in range(5, 8):
        assert found["blocks"][found["piece_blocks"][row]] == TRASH
    assert found["blocks"][found["piece_blocks"][0]] == speaker.blocks[0]
    assert found["counts"].tolist() == [1, 0, 1]


def test_a_speakers_tables_have_room_until_it_ends() -> None:
    speaker = request(0, [5, 6, 7], [8])
    found = lay_out([request_step(speaker, 1, BLOCK)], {}, rows=1, samples=1)
    assert found["small"][0, 5] == speaker.own_limit
    assert len(found["blocks"]) == 1 + len(speaker.blocks)
    assert found["ids"].tolist() == [8]


class ComparingRunner(LaunchingRunner):
    """Lays every step out twice: with what is remembered of replies, and all of it anew."""

    def __init__(self, block_size: int, slots: int, most_rows: int) -> None:
        super().__init__(block_size, slots, most_rows)
        self.layout = Layout(TILES, TRASH)
        self.compared = 0

    def launch(self, plan: StepPlan) -> Ready:
        named: dict[str, Any] = {
            "fed_back": {request: number for number, request in enumerate(self.under_way)},
            "parameters": {r: np.full_like(ENTRY, r.id) for r in plan.requests},
            "size": StepSize(plan.rows + 3, plan.samples + 2, merged=7, aligned=False),
        }
        found = self.layout.arrange(plan.shares, plan.replies, **named)
        wanted = Layout(TILES, TRASH).arrange(plan.sequences, (), **named)
        assert found.partials == wanted.partials
        for name, array in wanted.sections.items():
            assert np.array_equal(found.sections[name], array), name
            assert found.sections[name].dtype == np.int32
        self.compared += len(plan.replies)
        return super().launch(plan)


@pytest.mark.parametrize("seed", range(12))
def test_replies_that_are_remembered_are_laid_out_as_if_they_were_new(seed: int) -> None:
    """Whoever comes, ends, is parked, loses its blocks or is given others."""
    chance = random.Random(seed)
    config = small_config(max_waiting=100)
    blocks = chance.choice((22, 30, 64))
    runner = ComparingRunner(4, blocks * 4, config.max_num_batched_tokens)
    engine = OverlapEngine(runner, LetterTokenizer(), BlockPool(blocks, 4), 200, config)
    scene = engine.create_prefix(chance.choices(range(50), k=14))
    nodes = [None, scene, engine.create_prefix([5, 6, 7], scene)]
    requests: list[Request] = []
    for _ in range(120):
        if chance.random() < 0.4:
            params = SamplingParams(max_tokens=chance.randint(1, 12), temperature=0)
            own = chance.choices(range(50), k=chance.randint(1, 12))
            priority = chance.choice((0, 1, 1, 2))
            prefix = chance.choice(nodes)
            requests.append(engine.submit(own, params, prefix=prefix, priority=priority))
        if requests and chance.random() < 0.15:
            engine.cancel(chance.choice(requests))
        assert all(output.error is None for output in engine.step())
    while engine.has_work:
        engine.step()
    assert runner.compared > 100


def test_upload_puts_every_section_in_its_place(device: torch.device) -> None:
    speaker, reader = request(0, [5, 6, 7], [8]), request(1, [1, 2, 3, 4], [])
    steps = [request_step(speaker, 1, BLOCK), request_step(reader, 4, BLOCK)]
    sections = lay_out(steps, {}, rows=8, samples=4)
    tables = StepTables({name: len(array) + 50 for name, array in sections.items()}, device, 2)
    tables.upload({name: np.full_like(array, -7) for name, array in sections.items()})
    tables.upload(sections)
    for name, array in sections.items():
        assert np.array_equal(tables.section(name, len(array)).cpu().numpy(), array), name
    tables.upload({"ids": np.array([1, 2, 3], np.int32)})
    assert tables.section("ids", 4).tolist() == [1, 2, 3, 3]
    assert np.array_equal(tables.section("blocks", 3).cpu().numpy(), sections["blocks"][:3])


def test_a_device_that_is_not_there_is_named() -> None:
    assert choose_device("cpu").type == "cpu"
    if torch.cuda.is_available():
        assert choose_device("auto").type == choose_device("cuda").type == "cuda"
    else:
        assert choose_device("auto").type == "cpu"
        with pytest.raises(ModelError, match="set device to 'cpu'"):
            choose_device("cuda")
