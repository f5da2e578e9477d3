"""How many speak together and how long a step may be: what suits a device."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Pace:
    """Settings of `EngineConfig` whose defaults depend on the device; see there what each means.

    Attributes:
        row_tile: a step that reads takes as long as if its rows were a multiple of this.
    """

    max_num_seqs: int
    reserved_slots: int
    max_num_batched_tokens: int
    min_prefill_tokens: int
    step_target_ms: float
    urgent_step_target_ms: float
    long_step_ms: float
    late_share: float
    row_tile: int

    @classmethod
    def of(cls, config: EngineConfig) -> "Pace":
        """What `config` says, else what suits its device ("auto" is taken for the CPU).

        Numbers that were not named follow those that were, as far as they must: slots leave one for
        everybody, and a step has room for all slots and some reading.
        """
        usual = GPU if config.device == "cuda" else CPU
        said = ((field.name, getattr(config, field.name, None)) for field in fields(cls))
        named: dict[str, Any] = {name: value for name, value in said if value is not None}
        slots = named.get("max_num_seqs", usual.max_num_seqs)
        reserved = named.get("reserved_slots", usual.reserved_slots)
        rows = named.get("max_num_batched_tokens", usual.max_num_batched_tokens)
        least = named.get("min_prefill_tokens", usual.min_prefill_tokens)
        if "max_num_seqs" not in named:
            room = rows - named.get("min_prefill_tokens", 1)
            slots = max(min(slots, room), named.get("reserved_slots", 0) + 1)
        if "reserved_slots" not in named:
            reserved = min(reserved, slots - 1)
        if "max_num_batched_tokens" not in named:
            rows = max(rows, slots + least)
        if "min_prefill_tokens" not in named:
            least = min(least, rows - slots)
        follow = {
            "max_num_seqs": slots,
            "reserved_slots": reserved,
            "max_num_batched_tokens": rows,
            "min_prefill_tokens": least,
        }
        return replace(usual, **named | follow)


#: A token that is read costs half as much as a speaker's and the step itself next to nothing, so
#: long steps save nothing. With more than 16 slots one takes longer on two cores than a quest-giver
#: should wait for its end. While nobody speaks 512 tokens are a quarter of a second.
CPU = Pace(
    max_num_seqs=16,
    reserved_slots=2,
    max_num_batched_tokens=512,
    min_prefill_tokens=16,
    step_target_ms=80.0,
    urgent_step_target_ms=40.0,
    long_step_ms=math.inf,
    late_share=0.0,
    row_tile=1,
)

#: A step costs as much as 200 tokens that are read in it, or 200 speakers: many speak together, and
#: steps are as long as speech that is to flow allows. While a quest-giver is talked to they are so
#: short that the one under way, the one launched behind it and its own are over within 40 ms.
GPU = Pace(
    max_num_seqs=256,
    reserved_slots=16,
    max_num_batched_tokens=8192,
    min_prefill_tokens=64,
    step_target_ms=22.0,
    urgent_step_target_ms=16.0,
    long_step_ms=55.0,
    late_share=0.005,
    row_tile=128,
)
