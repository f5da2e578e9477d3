"""How strong a memory is, and which ones come to mind.

Relevance, recency and importance are added, as in generative agents (Park et al. 2023). There all
memories fade at one pace; here an important one fades slower, so that small talk is gone in days
and a name stays for weeks.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from npc.settings import MemorySettings

_DAY_MS = 86_400_000
#: What another player's words count: the talk is with this one.
_OTHERS = 0.5

Floats = npt.NDArray[np.float64]


def strength(importance: float, age_ms: float, settings: MemorySettings) -> float:
    """What is left of a memory, from 1 when it is made to 0."""
    return float(strengths([importance], [age_ms], settings)[0])


def fades_at(importance: float, ts: int, settings: MemorySettings) -> int | None:
    """When a memory of moment `ts` has lost its strength, both in ms; None: never."""
    if settings.faded <= 0:
        return None
    half_life = settings.half_life_days * _stretch(settings) ** min(max(importance, 0.0), 1.0)
    return ts - int(half_life * math.log2(settings.faded) * _DAY_MS)


def strengths(
    importance: Sequence[float], age_ms: Sequence[float], settings: MemorySettings
) -> Floats:
    """`strength` of many, float64 [n]."""
    weight = np.clip(np.asarray(importance, np.float64), 0.0, 1.0)
    days = np.maximum(np.asarray(age_ms, np.float64), 0.0) / _DAY_MS
    left: Floats = np.exp2(-days / (settings.half_life_days * _stretch(settings) ** weight))
    return left


def scores(
    importance: Sequence[float],
    age_ms: Sequence[float],
    relevance: Sequence[float],
    of_asker: Sequence[bool],
    settings: MemorySettings,
) -> Floats:
    """How much each memory comes to mind, float64 [n].

    Args:
        relevance: to the line, from 0 to 1; zeros if that is not known.
        of_asker: whether it is of the player who speaks.
    """
    total = (
        np.asarray(relevance, np.float64)
        + settings.recency_weight * strengths(importance, age_ms, settings)
        + settings.importance_weight * np.asarray(importance, np.float64)
    )
    counted: Floats = np.where(np.asarray(of_asker, bool), total, total * _OTHERS)
    return counted


def _stretch(settings: MemorySettings) -> float:
    return settings.strong_half_life_days / settings.half_life_days
