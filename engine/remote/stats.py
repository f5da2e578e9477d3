"""Counters of a remote engine, under the names that engines of our own have where they mean the
same.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.measures import Measures
from engine.outputs import FinishReason, Usage
from engine.remote.client import Trouble
from engine.remote.servers import Server

if TYPE_CHECKING:
    from engine.remote.request import RemoteRequest

#: Weight of the newest request in what is usual.
_NEWEST = 1 / 16


class RemoteStats:
    """What has happened so far. Written by the engine's thread, but for `refused`.

    Attributes:
        first_s, hold_s: usual time to a first token from when a server is asked, and to the end.
    """

    def __init__(self) -> None:
        self.measures = Measures()
        self.refused: Counter[str] = Counter()  # by code of the error
        self.ended: Counter[FinishReason] = Counter()
        self.troubles = Counter(dict.fromkeys(Trouble.KINDS, 0))
        self.asked = 0
        self.retried = 0
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.first_s = self.hold_s = 0.0

    def has_token(self, request: "RemoteRequest", now: float) -> None:
        """A request got text."""
        if request.last_token_at is None:
            assert request.scheduled_at is not None
            request.first_token_at = now
            self.measures.first_token(now - request.arrived, request.priority)
            self.first_s = _towards(self.first_s, now - request.scheduled_at)
        else:
            self.measures.next_tokens([now - request.last_token_at])
        request.last_token_at = now

    def finished(self, reason: FinishReason, usage: Usage, priority: int) -> None:
        """A request has ended."""
        self.ended[reason] += 1
        self.measures.finished(usage, priority)
        if usage.scheduled is None:
            return
        self.hold_s = _towards(self.hold_s, usage.finished - usage.scheduled)
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.generated_tokens += usage.completion_tokens

    def snapshot(self, running: int, waiting: int, servers: Sequence[Server]) -> dict[str, float]:
        """All figures by name."""
        return {
            "running": running,
            "waiting": waiting,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "prefix_hit_rate": self.cached_tokens / max(self.prompt_tokens, 1),
            "generated_tokens": self.generated_tokens,
            "requests_finished": self.ended["stop"] + self.ended["length"],
            "requests_cancelled": self.ended["cancelled"],
            "requests_failed": self.ended["failed"],
            "requests_refused": self.refused.total(),
            **{f"refused_{code}": count for code, count in list(self.refused.items())},
            "remote_requests": self.asked,
            "remote_retries": self.retried,
            "remote_servers": len(servers),
            "remote_servers_up": sum(not server.down for server in servers),
            **{f"remote_errors_{kind}": count for kind, count in self.troubles.items()},
        }


def _towards(usual: float, newest: float) -> float:
    return newest if usual == 0 else usual + _NEWEST * (newest - usual)
