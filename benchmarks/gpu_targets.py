"""What is promised of an 8B Llama shape on one H200, and what each lever was predicted to bring."""

from dataclasses import dataclass
from functools import partial

from benchmarks.report import Target

_ours = partial(Target, column="Troupe")
_slots = partial(_ours, profile="gpu", measure="quests-cold", kind="most")
_small = partial(Target, column="Troupe, qwen05b", profile="gpu")
_alone = partial(_ours, profile="lonely", bound=1.0, of_rival=True)
_full = partial(_ours, profile="uneven", measure="full", compared=False, scale=100)


def _both(
    label: str, measure: str, figure: str, kind: str, gpu: float, long: float, column: str = ""
) -> tuple[Target, Target]:
    """The same promise about `gpu` and `long`."""
    first, second = (
        Target(
            f"{label}, `{profile}`",
            column or "Troupe",
            profile,
            measure,
            figure,
            "least" if kind == "least" else "most",
            bound,
        )
        for profile, bound in (("gpu", gpu), ("long", long))
    )
    return first, second


TARGETS: tuple[Target, ...] = (
    *_both("step, 256 speak, ms", "decode-256", "step_ms", "most", 10.5, 10.5),
    *_both("step, 64 speak, ms", "decode-64", "step_ms", "most", 5.8, 6.0),
    _ours("one speaks, tok/s, `gpu`", profile="gpu", measure="decode-1", figure="tok_s",
          kind="least", bound=225),
    *_both("256 at once, cold, tok/s", "cold", "tok_s", "least", 9400, 9000),
    *_both("256 again, warm, tok/s", "warm", "tok_s", "least", 19000, 19000),
    *_both("256 new lines to warm NPCs, tok/s", "lines", "tok_s", "least", 13000, 11800),
    *_both("TTFT p99, 256 at once, warm, ms", "at-once-warm", "ttft_p99", "most", 60, 60),
    _ours("TTFT p99, Poisson 100/s, cold, ms, `gpu`", profile="gpu", measure="poisson-100-cold",
          figure="ttft_p99", kind="most", bound=160),
    _ours("gap p99, Poisson 100/s, cold, ms, `gpu`", profile="gpu", measure="poisson-100-cold",
          figure="gap_p99", kind="most", bound=25),
    _ours("gap p99, 256 at once, cold, ms, `gpu`", profile="gpu", measure="at-once-cold",
          figure="gap_p99", kind="most", bound=40),
    _slots("64 slots full, quests come: their TTFT p50, ms", figure="quest_ttft_p50", bound=40),
    _slots("64 slots full, quests come: their TTFT p99, ms", figure="quest_ttft_p99", bound=80),
    _slots("the others' TTFT p99 ÷ that of equal treatment", figure="other_ttft_p99", bound=1.25,
           over="quests-equal-cold"),
    _small("0.5B shape: 256 at once, cold, tok/s", measure="cold", figure="tok_s", kind="least",
           bound=45000),
    _small("0.5B shape: step, 256 speak, ms", measure="decode-256", figure="step_ms", kind="most",
           bound=3.5),
    *_both("prompt tokens computed ÷ distinct, cold", "cold", "prefill_ratio", "most", 1.02, 1.02),
    _full("KV pool in use when full, %", figure="kv_use", kind="least", bound=90),
    _full("KV slots unfilled when full, %", figure="fragmentation", kind="most", bound=5),
    _alone("256 scenes of one: cold, tok/s", measure="cold", figure="tok_s", kind="least"),
    _alone("256 scenes of one: warm, tok/s", measure="warm", figure="tok_s", kind="least"),
    _alone("256 scenes of one: new lines, tok/s", measure="lines", figure="tok_s", kind="least"),
    _alone("256 scenes of one: step, 256 speak, ms", measure="decode-256", figure="step_ms",
           kind="most"),
    _ours("ready to serve, from the process's start, s", profile="", measure="start",
          figure="process_s", kind="most", bound=20),
    *_both("FP8: step, 256 speak, ms", "decode-256", "step_ms", "most", 8.3, 8.3,
           "Troupe, fp8"),
    _ours("host's time in a step, 256 speak, ms, `gpu`", profile="gpu", measure="host-256",
          figure="host_ms", kind="most", bound=1, compared=False),
    _ours("event loop's lag p99 beside a busy engine, ms, `gpu`", profile="gpu", measure="lag",
          figure="lag_ms_p99", kind="most", bound=5, compared=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lever:
    """What is switched off or added, and what it was predicted to bring before it was built.

    Attributes:
        column: the samples without it; with it, if it is added to what there is.
        meaning: what happens in that column.
        measure, figure, unit: where the gain shows, in profile `gpu`.
        least, most: predicted gain.
        added: whether the product as it is set by itself is without it.
    """

    column: str
    meaning: str
    measure: str
    figure: str
    unit: str
    least: float
    most: float
    added: bool = False


_step = partial(Lever, measure="decode-256", figure="step_ms", unit="ms a step")

LEVERS = (
    _step("Troupe, no tree", "each request reads all its context by itself", least=6.5, most=8.5),
    _step("Troupe, no graphs", "every kernel of every step is launched by itself", least=3, most=8),
    _step("Troupe, no overlap", "no step is under way while the host works", least=1, most=3),
    _step(
        "Troupe, no early", "a kernel starts after the one before has ended", least=0.1, most=0.4
    ),
    _step("Troupe, fp8", "weights in 8 bits", least=2.3, most=2.3, added=True),
    Lever(
        "Troupe, no sharing",
        "each player's request computes scene and persona",
        *("cold", "wall_s", "s a cold burst"),
        least=7.3,
        most=7.3,
    ),
)
