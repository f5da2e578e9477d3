"""What a dialect comes to, in words for people and as bounds for prompts."""

from collections.abc import Iterator

from engine.config import EngineConfig
from engine.params import SamplingParams
from engine.remote.config import RemoteConfig
from engine.remote.dialect import Dialect, optional

#: Where neither the server nor the settings say how long a context is.
USUAL_LENGTH = 8192
#: Share of a context that is filled where tokens are only estimated.
_ESTIMATED_SHARE = 7 / 8
#: Fields that every reply of an NPC has, unless settings say otherwise.
_SHAPING = optional(SamplingParams(), 1, "", stream=True).keys() - {"priority"}


def length(dialect: Dialect, order: EngineConfig) -> int:
    """Most tokens of prompt and output together."""
    known = [n for n in (dialect.max_model_len, order.max_model_len) if n is not None]
    most = min(known, default=USUAL_LENGTH)
    return most if dialect.form == "tokens" else int(most * _ESTIMATED_SHARE)


def summary(config: RemoteConfig, dialect: Dialect) -> str:
    """One line on where and how replies are computed."""
    where = config.urls[0] if len(config.urls) == 1 else f"{len(config.urls)} servers"
    what = "token ids" if dialect.form == "tokens" else "messages"
    return f"Remote: {where}, by {what}, {config.in_flight} at a time"


def notices(dialect: Dialect, order: EngineConfig) -> tuple[str, ...]:
    """What NPCs will have to do without, and what to do about it."""
    return tuple(_notices(dialect, order))


def _notices(dialect: Dialect, order: EngineConfig) -> Iterator[str]:
    if "lark" not in dialect.ways:
        yield (
            "NPCs only talk: the server keeps to no grammar, so their actions are off (vLLM: "
            "--structured-outputs-config.backend guidance, SGLang: --grammar-backend llguidance)"
        )
    if "priority" not in dialect.known:
        yield (
            "priorities count here only, not on the server (vLLM: --scheduling-policy priority, "
            "SGLang: --enable-priority-scheduling --schedule-low-priority-values-first)"
        )
    if not dialect.continues:
        yield "the server does not go on with a begun reply: lines with a prefill are refused"
    if missing := sorted(_SHAPING - dialect.known):
        yield f"the server does not take: {', '.join(missing)}"
    if dialect.max_model_len is None and order.max_model_len is None:
        yield (
            f"the server does not say how long a context is; {USUAL_LENGTH} tokens are assumed: "
            "set engine.max_model_len"
        )
