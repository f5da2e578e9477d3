"""What replies with a grammar cost the replies beside them.

Twelve replies speak together, first all free, then some held to a JSON schema; what is compared is
the time between two tokens of the free ones. Both kinds of batch take turns, so that a neighbour on
the machine disturbs both.

    python -m benchmarks.grammar [--held 4] [--rounds 6] [--tokens 60]
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path

from engine import EngineConfig, Grammar, SamplingParams
from engine.build import build_engine
from engine.loop import Engine
from engine.weights.load import load_model

REPLIES = 12
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "mood": {"enum": ["calm", "angry", "afraid"]},
        "hit_points": {"type": "integer", "minimum": 0, "maximum": 100},
        "items": {"type": "array", "items": {"type": "string"}},
        "speech": {"type": "string"},
    },
    "required": ["name", "mood", "hit_points", "items", "speech"],
    "additionalProperties": False,
}


def gaps(engine: Engine, prompt: list[int], held: int, tokens: int) -> list[float]:
    """Milliseconds between the tokens of free replies, `held` of twelve being held."""
    free = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.8)
    bound = SamplingParams(
        max_tokens=tokens, ignore_eos=True, temperature=0.8, grammar=Grammar.json_schema(SCHEMA)
    )
    requests = [engine.submit(prompt, bound if n < held else free) for n in range(REPLIES)]
    watched = requests[-1].id
    times: list[float] = []
    while engine.has_work:
        outputs = engine.step()
        speaking = {output.request_id for output in outputs}
        if watched in speaking and len(speaking) == REPLIES:
            times.append(time.perf_counter())
    return [(b - a) * 1000 for a, b in itertools.pairwise(times)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--data", type=Path, default=Path(".cache/troupe"))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--held", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=60)
    arguments = parser.parse_args()
    config = EngineConfig(
        device=arguments.device,
        max_num_seqs=REPLIES,
        reserved_slots=0,
        kv_cache_bytes=256 << 20,
        max_model_len=512,
    )
    model = load_model(
        arguments.model, data_dir=arguments.data, device=arguments.device, max_len=512
    )
    engine = build_engine(model, config)
    prompt = model.tokenizer.prompt("A character of the tavern, as JSON:\n")
    gaps(engine, prompt, arguments.held, 8)  # compiles, and warms caches
    found: dict[int, list[float]] = {0: [], arguments.held: []}
    for _ in range(arguments.rounds):
        for held, times in found.items():
            times += gaps(engine, prompt, held, arguments.tokens)
    medians = {held: statistics.median(times) for held, times in found.items()}
    for held, times in found.items():
        print(f"{held:2} of {REPLIES} held: {medians[held]:.2f} ms a token ({len(times)} gaps)")
    print(f"change: {(medians[arguments.held] / medians[0] - 1) * 100:+.1f} %")


if __name__ == "__main__":
    main()
