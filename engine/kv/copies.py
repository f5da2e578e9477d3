"""Copies of KV blocks, as many at once as their order allows."""

from collections.abc import Sequence

from engine.kv.cache import KVCache
from engine.plan import BlockCopy


def copy_in_order(cache: KVCache, copies: Sequence[BlockCopy]) -> None:
    """Copy blocks, many at once as long as none touches what another of them writes."""
    sources: list[int] = []
    targets: set[int] = set()
    ordered: list[int] = []
    for copy in copies:
        if copy.source in targets or copy.target in targets or copy.target in sources:
            cache.copy_blocks(sources, ordered)
            sources, ordered, targets = [], [], set()
        sources.append(copy.source)
        ordered.append(copy.target)
        targets.add(copy.target)
    if sources:
        cache.copy_blocks(sources, ordered)
