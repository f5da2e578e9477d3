"""Engine settings, each with the reason for its default."""

from typing import Literal

import msgspec

#: See `EngineConfig.quantization`.
Quantization = Literal["fp8"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes and policies of one engine. All are settings of the `engine:` section of the config
    file.
    """

    #: Where the model runs; "auto" takes an NVIDIA GPU if there is one (and Triton), else the CPU.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: "exact" is float32 and equals transformers token for token; "bf16" halves memory traffic;
    #: "fast" multiplies 8-bit integers where the processor can (on a GPU it is "bf16"); "int4"
    #: keeps weights in 4 bits, which is quickest while only one or two speak, and on a CPU only.
    numerics: Literal["exact", "bf16", "fast", "int4"] = "fast"
    #: "fp8" keeps weights in 8-bit floating point, on a GPU only: half the memory, two thirds of
    #: the time, nearly the same answers. None keeps them as `numerics` says.
    quantization: Quantization | None = None
    #: Tokens per KV block. 16 wastes at most 15 slots per prefix node and keeps block tables short.
    #: What is compiled for the processor (all but "exact") takes multiples of 16.
    block_size: int = 16
    #: KV pool in bytes; None takes min(2 GiB, 25 % of free memory), which leaves a laptop usable,
    #: and on a GPU what `gpu_memory_utilization` leaves.
    kv_cache_bytes: int | None = None
    #: Share of a GPU's memory that weights, KV pool and steps may take together.
    gpu_memory_utilization: float = 0.9
    #: Launch every kernel of every step by itself instead of replaying captured steps: slower, but
    #: errors show where they happen.
    enforce_eager: bool = False
    #: Longest prompt + output in tokens; None takes the model's own limit, capped by the pool.
    max_model_len: int | None = None
    #: Tokens of its own that a dialogue keeps when it outgrows its room, so that it may go on for
    #: ever (see `engine.sliding`); None refuses requests that could outgrow `max_model_len`.
    sliding_window: int | None = None
    #: First tokens that are kept besides. Models rest surplus attention on the first few; with a
    #: prefix, which is always kept, none are needed.
    sink_tokens: int = 4
    #: Who goes first: "priority" by class with ageing; "fifo"; "fair" by player, then by scene;
    #: "elastic" for throughput, with `ageing_s` as the longest patience.
    scheduling_policy: Literal["fifo", "priority", "fair", "elastic"] = "priority"
    #: Whether a quest-giver that finds all slots taken parks the youngest ordinary reply.
    parking: bool = True
    #: Bytes of host memory for the KV of parked replies whose place a quest-giver takes, where KV
    #: is in a device's memory; with 0 they compute it again. On the CPU it would be the same
    #: memory, so the engine refuses it.
    swap_space: int = 0
    #: Requests decoded together. This one and all down to `late_share`: None takes what suits the
    #: device, see `engine.pace`.
    max_num_seqs: int | None = None
    #: Of those, slots only class-0 requests (quest-givers) may take.
    reserved_slots: int | None = None
    #: Most rows in one step.
    max_num_batched_tokens: int | None = None
    #: Prefill rows a mixed step gets in any case, so that arrivals never starve.
    min_prefill_tokens: int | None = None
    #: A step that serves speakers aims at this; prefill takes what is left of it.
    step_target_ms: float | None = None
    #: The same while a quest-giver is talked to, and for `ageing_s` after: the next line to it
    #: waits for one such step to end.
    urgent_step_target_ms: float | None = None
    #: A step that nobody speaks in may take so long, and one in which few do, see `late_share`.
    long_step_ms: float | None = None
    #: Share of all tokens that may come later than the targets say: where many wait to be read and
    #: few speak, longer steps read the same in less time.
    late_share: float | None = None
    #: A quest-giver reads so many tokens of its own line in a step whatever the target says: it
    #: would wait for several steps otherwise. Speakers pause for the difference.
    urgent_prefill_tokens: int = 256
    #: A waiting request gains one class per this many seconds (bounds starvation).
    ageing_s: float = 5.0
    #: Requests that may wait; more are refused as busy.
    max_waiting: int = 256
    #: Where requests without a seed of their own get theirs from; None makes each run another.
    seed: int | None = None
    #: Threads of the forward pass; None takes all cores, and of the compiled pass at most 16, which
    #: read weights as fast as memory gives them.
    threads: int | None = None
    #: Pace of a scripted model (`script:FILE`), so that exact streams look like speech.
    script_step_ms: float = 10.0

    def __post_init__(self) -> None:
        """Raise ValueError naming the first setting that cannot work."""
        at_least_0 = (
            "reserved_slots", "sink_tokens", "swap_space", "urgent_prefill_tokens",
            "script_step_ms", "late_share",
        )  # fmt: skip
        at_least_1 = (
            "block_size", "max_num_seqs", "max_num_batched_tokens", "min_prefill_tokens",
            "max_waiting", "kv_cache_bytes", "max_model_len", "sliding_window", "threads",
        )  # fmt: skip
        for least, names in enumerate((at_least_0, at_least_1)):
            for name in names:
                value = getattr(self, name)
                if value is not None and not value >= least:
                    raise ValueError(f"{name} must be at least {least}, not {value}")
        for name in ("step_target_ms", "urgent_step_target_ms", "long_step_ms", "ageing_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        slots, reserved = self.max_num_seqs, self.reserved_slots or 0
        if slots is not None and not reserved < slots:
            raise ValueError(
                f"reserved_slots must leave a slot of max_num_seqs ({slots}) for everybody else, "
                f"{reserved} do not"
            )
        least = (slots or reserved + 1) + (self.min_prefill_tokens or 1)
        if self.max_num_batched_tokens is not None and not self.max_num_batched_tokens >= least:
            raise ValueError(
                f"max_num_batched_tokens must be at least {least} (max_num_seqs + "
                f"min_prefill_tokens), not {self.max_num_batched_tokens}"
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                "gpu_memory_utilization must be above 0 and at most 1, not "
                f"{self.gpu_memory_utilization}"
            )
