"""How much all containers of ours hold, wherever they are: what grows with those who come and go is
found without being looked for."""

import asyncio
import gc
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

_OURS = ("engine", "scenes", "npc", "gameserver")
_WEAK = (WeakSet, WeakKeyDictionary, WeakValueDictionary)
_PLAIN = (list, tuple, set, frozenset, deque)


def _is_ours(found: object) -> bool:
    return str(type(found).__module__).split(".")[0] in _OURS


def _attributes(found: object) -> dict[str, Any]:
    """All attributes of an object, with or without a dictionary."""
    named = dict(getattr(found, "__dict__", {}))
    for kind in type(found).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{kind.__name__.lstrip('_')}{name}" if name[:2] == "__" else name
            if hasattr(found, mangled):
                named[mangled] = getattr(found, mangled)
    return named


def _parts(container: object) -> Iterable[object]:
    if isinstance(container, Mapping | WeakKeyDictionary | WeakValueDictionary):
        return [*container.keys(), *container.values()]
    assert isinstance(container, (*_PLAIN, WeakSet))
    return list(container)


def sizes(*roots: object) -> Counter[str]:
    """Items in the containers of all objects of ours that can be reached, by class and attribute;
    those of containers in containers count for the outermost one. What has a greatest length
    is not counted."""
    gc.collect()
    found, seen = Counter[str](), set[int]()
    todo: list[tuple[str, object]] = [("", root) for root in roots]
    while todo:
        name, thing = todo.pop()
        if isinstance(thing, (*_PLAIN, *_WEAK, Mapping)):
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            parts = list(_parts(thing))
            if isinstance(thing, deque) and thing.maxlen is not None:
                parts = list(filter(_is_ours, parts))
            else:
                found[name] += len(parts)
            todo += [(name, part) for part in parts]
        elif _is_ours(thing) and id(thing) not in seen and not isinstance(thing, type):
            seen.add(id(thing))
            kind = type(thing).__qualname__
            todo += [(f"{kind}.{key}", value) for key, value in _attributes(thing).items()]
    return found


async def settled(*roots: object) -> Counter[str]:
    """The same, once all that goes on has come to rest."""
    await asyncio.sleep(0.2)
    return sizes(*roots)
