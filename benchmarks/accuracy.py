"""How near each way of computing is to `exact`, token by token over fixed texts.

    python -m benchmarks.accuracy

The texts are the Gilded Griffin's own, its people's dialogues and `texts/`. Every model reads the
same pieces and says at each token what comes next: perplexity of the text, how often its first
choice is that of `exact`, and the mean divergence of what it says from what `exact` says. `fp8` is
what a GPU computes with weights of eight bits (needs the `gpu` extra, and no GPU). Models
read one token a step, as they do while they speak, and all pieces side by side; results go to
`--out` as lines of JSON, and into the page beside it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import torch
import yaml
from rich.console import Console
from rich.progress import track

from benchmarks.cpu_report import write_report
from benchmarks.measuring import Column, Figures
from engine.kv.cache import KVCache
from engine.plan import Segment, SequenceStep
from engine.prefixes import Prefix
from engine.runner import HostDecoder
from engine.tokenizer import Tokenizer
from engine.weights.load import AnyNumerics, LoadedModel, load_model

PACK = Path("scenes/packs/gilded_griffin")
TEXTS = Path(__file__).parent / "texts"
#: Tokens of a piece; most tokens are read with a good deal of context.
PIECE = 256
#: Where `exact` gives its first choice more than this, another choice would be a mistake.
SURE = 0.5
_BLOCK = 16


def read_texts() -> list[str]:
    """All texts: rooms and people as prose, examples as dialogues."""
    scene = yaml.safe_load((PACK / "scene.yaml").read_text())
    texts = [str(scene["text"])]
    for name in scene["npcs"]:
        npc = yaml.safe_load((PACK / name).read_text())
        about = [f"{npc['name']} is {npc['role']}.", npc["voice"], *npc["knows"], npc["greeting"]]
        talk = [f"Player: {x['player']}\n{npc['name']}: {x['npc']}" for x in npc["examples"]]
        texts += ["\n".join(map(str, about)), "\n".join(talk)]
    return texts + [path.read_text() for path in sorted(TEXTS.glob("*.txt"))]


def pieces(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of all texts, cut into pieces."""
    ids = [tokenizer.encode(text) for text in texts]
    cut = [one[i : i + PIECE] for one in ids for i in range(0, len(one), PIECE)]
    return [piece for piece in cut if len(piece) > 1]


class Reader:
    """Reads pieces side by side with one decoder."""

    def __init__(self, model: LoadedModel, count: int) -> None:
        decoder, shape = model.decoder, model.config
        assert isinstance(decoder, HostDecoder)
        self._decoder: HostDecoder = decoder
        self._blocks = -(-PIECE // _BLOCK)
        self._cache = KVCache(
            shape.layers,
            shape.kv_heads,
            shape.head_dim,
            count * self._blocks,
            _BLOCK,
            model.decoder.kv_dtype,
            torch.device("cpu"),
        )
        self._owner = Prefix(0, None, (0,))

    def step(self, place: int, tokens: dict[int, int]) -> torch.Tensor:
        """What comes next after token `place` of some pieces; log-probabilities [pieces, vocab]."""
        shares = []
        for number, token in tokens.items():
            first = number * self._blocks
            blocks = tuple(range(first, first + place // _BLOCK + 1))
            segment = Segment(-1, blocks, place + 1)
            shares.append(SequenceStep(self._owner, (token,), place, (segment,), sample=True))
        return torch.log_softmax(self._decoder.compute(shares, self._cache), -1)


@dataclass(slots=True)
class Tally:
    """What one model said so far: sums over tokens."""

    tokens: int = 0
    surprise: float = 0.0
    same: int = 0
    sure: int = 0
    sure_and_same: int = 0
    divergence: float = 0.0

    def add(self, said: torch.Tensor, exact: torch.Tensor, truth: torch.Tensor) -> None:
        """Count one step: log-probabilities [rows, vocab], and the tokens that did come."""
        same = said.argmax(-1) == exact.argmax(-1)
        sure = exact.amax(-1).exp() > SURE
        self.tokens += len(truth)
        self.surprise -= float(said.gather(1, truth[:, None]).double().sum())
        self.same += int(same.sum())
        self.sure += int(sure.sum())
        self.sure_and_same += int((same & sure).sum())
        self.divergence += float((exact.exp() * (exact - said)).double().sum())

    def figures(self) -> Figures:
        """Means."""
        return {
            "perplexity": float(torch.tensor(self.surprise / self.tokens).exp()),
            "top_1": self.same / self.tokens,
            "sure_top_1": self.sure_and_same / self.sure if self.sure else 1.0,
            "divergence": self.divergence / self.tokens,
            "tokens": self.tokens,
        }


def compare(models: dict[str, LoadedModel], texts: Sequence[list[int]]) -> dict[str, Tally]:
    """Read all pieces with all models, of which one is `exact`."""
    readers = {name: Reader(model, len(texts)) for name, model in models.items()}
    tallies = {name: Tally() for name in models}
    places = range(max(map(len, texts)) - 1)
    for place in track(places, "reading", console=Console(stderr=True)):
        going = [number for number, ids in enumerate(texts) if place + 1 < len(ids)]
        tokens = {number: texts[number][place] for number in going}
        truth = torch.tensor([texts[number][place + 1] for number in going])
        said = {name: reader.step(place, tokens) for name, reader in readers.items()}
        for name, tally in tallies.items():
            tally.add(said[name], said["exact"], truth)
    return tallies


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", type=Path, default=Path(".cache/troupe"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpu.jsonl"))
    a = parser.parse_args()
    models = {n: load_model(a.model, data_dir=a.data, numerics=n) for n in get_args(AnyNumerics)}
    if find_spec("triton"):  # whose kernels say how rows are rounded
        from benchmarks.fp8_products import load_fp8

        models["fp8"] = load_fp8(a.model, a.data, models["exact"])
    texts = pieces(read_texts(), models["exact"].tokenizer)
    software = f"torch {version('torch')}, numba {version('numba')}"
    with a.out.open("a") as out:
        for name, tally in compare(models, texts).items():
            column = Column(name, "texts", 0, software)
            print(column.record("accuracy", tally.figures()).line(), file=out)
    write_report(a.out)


if __name__ == "__main__":
    main()
