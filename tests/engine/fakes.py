"""A model that knows what it should see: it checks every step it is given and invents tokens."""

from collections.abc import Sequence

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.decoding.sampling import Sampled
from engine.loop import Engine
from engine.outputs import RequestOutput
from engine.params import SamplingParams
from engine.plan import StepPlan
from engine.prefixes import Prefix
from engine.request import Request
from engine.sliding import Sliding

VOCAB = 1000
EOS = 999


class LetterTokenizer:
    """Every token is one letter; there is nothing to get wrong."""

    vocab_size = VOCAB
    eos_ids = frozenset({EOS})
    concatenates = True

    def encode(self, text: str) -> list[int]:
        return [ord(c) - 97 for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(97 + i % 26) for i in ids)


class CheckingRunner:
    """Keeps a shadow of the KV cache and checks that each sequence sees exactly its own history.

    The shadow stores, per slot, the (position, token) last written there. A row may only attend to
    slots that hold its own tokens at their positions: stale, stolen or half-computed KV fails at
    once, and so does what slid past the end of its window or did not move with it.
    """

    def __init__(self, block_size: int, slots: int, most_rows: int) -> None:
        self.block_size = block_size
        self.shadow: list[tuple[int, int] | None] = [None] * slots
        self.steps: list[StepPlan] = []
        self.fail_next = False
        self.rows_of_node: dict[int, int] = {}
        self.most_rows = most_rows

    def run(self, plan: StepPlan) -> list[Sampled]:
        self.steps.append(plan)
        assert plan.rows <= self.most_rows, "a step is larger than it may be"
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("made to fail")
        size = self.block_size
        for copy in plan.copies:
            for offset in range(size):
                source = self.shadow[copy.source * size + offset]
                self.shadow[copy.target * size + offset] = source
        for share in plan.sequences:
            for block in share.moved:
                for slot in range(block * size, block * size + size):
                    entry = self.shadow[slot]
                    assert entry is not None, "keys that nobody wrote are moved"
                    self.shadow[slot] = (entry[0] - share.moved_by, entry[1])
        written: set[int] = set()
        for share in plan.sequences:
            for index, (slot, token) in enumerate(
                zip(share.slots(size), share.tokens, strict=True)
            ):
                assert slot not in written, "two rows write one slot"
                written.add(slot)
                self.shadow[slot] = (share.start + index, token)
            if isinstance(share.owner, Prefix):
                node = share.owner.id
                self.rows_of_node[node] = self.rows_of_node.get(node, 0) + len(share.tokens)
        result = []
        for share in plan.sequences:
            history = self._history(share.owner)[: share.start + len(share.tokens)]
            slots = [
                block * size + i % size
                for segment in share.segments
                for i in range(segment.length)
                for block in (segment.blocks[i // size],)
            ]
            assert len(slots) == len(history)
            for position, (slot, token) in enumerate(zip(slots, history, strict=True)):
                assert self.shadow[slot] == (position, token), "a row attends to foreign KV"
            if share.sample:
                assert isinstance(share.owner, Request)
                result.append(Sampled(next_token(history)))
        return result

    @staticmethod
    def _history(owner: Request | Prefix) -> list[int]:
        if isinstance(owner, Prefix):
            return list(owner.all_token_ids())
        prefix = owner.prefix.all_token_ids() if owner.prefix else ()
        return [*prefix, *owner.tokens]


def next_token(history: Sequence[int]) -> int:
    """A token that depends on the whole history, so that any mix-up shows in the output."""
    value = 7
    for token in history:
        value = (value * 31 + token + 1) % 9973
    return value % (VOCAB - 1)


def small_config(**settings: object) -> EngineConfig:
    """Four slots, one of them reserved, and steps that a few tokens fill; or as told."""
    usual: dict[str, object] = {
        "max_num_seqs": 4,
        "reserved_slots": 1,
        "max_num_batched_tokens": 24,
        "min_prefill_tokens": 4,
        "block_size": 4,
    }
    return EngineConfig(**{**usual, **settings})  # type: ignore[arg-type]


def make_engine(
    blocks: int = 64, block_size: int = 4, max_model_len: int = 200, **settings: object
) -> tuple[Engine, CheckingRunner, list[float]]:
    """An engine over a checking runner, and its clock: a one-element list of seconds."""
    clock = [0.0]
    config = small_config(**{"block_size": block_size, **settings})
    runner = CheckingRunner(block_size, blocks * block_size, config.max_num_batched_tokens)
    engine = Engine(
        runner,
        LetterTokenizer(),  # type: ignore[arg-type]
        BlockPool(blocks, block_size),
        max_model_len,
        config,
        clock=lambda: clock[0],
    )
    return engine, runner, clock


def finish(engine: Engine, clock: list[float], limit: int = 2000) -> list[RequestOutput]:
    """Step until the engine is idle; all outputs."""
    outputs = []
    for _ in range(limit):
        if not engine.has_work:
            return outputs
        clock[0] += 0.01
        outputs += engine.step()
    raise AssertionError("the engine does not come to rest")


def expected(prompt: Sequence[int], count: int) -> list[int]:
    """What `CheckingRunner` continues `prompt` with."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]


def expected_sliding(
    prefix: Sequence[int], prompt: Sequence[int], count: int, sliding: Sliding
) -> list[int]:
    """What it continues them with when the own part is bounded: token by token, a stretch behind
    the sinks is dropped whenever another token finds no room.
    """
    own: list[int] = []

    def feed(token: int) -> None:
        if len(own) == sliding.room:
            del own[sliding.sinks : sliding.sinks + sliding.stretch]
        own.append(token)

    for token in prompt:
        feed(token)
    said: list[int] = []
    while len(said) < count:
        said.append(next_token([*prefix, *own]))
        feed(said[-1])
    return said


GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
