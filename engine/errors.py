"""Everything the engine refuses, as exceptions a caller can act on.

A refused request never disturbs another one: all checks run before any block is taken.
"""


class EngineError(Exception):
    """Base of all engine errors. `code` is stable and safe to show to a client."""

    code = "internal"


class InvalidRequest(EngineError):
    """A field of the request is out of range or of the wrong kind; the text names it."""

    code = "bad_field"


class ContextExceeded(EngineError):
    """Prompt plus maximum output cannot fit. `limit` and `actual` are in tokens."""

    code = "context_exceeded"

    def __init__(self, limit: int, actual: int, what: str = "prompt + max_tokens") -> None:
        super().__init__(f"{what} is {actual} tokens, the limit is {limit}")
        self.limit = limit
        self.actual = actual


class QueueFull(EngineError):
    """Too many requests are waiting already. `retry_ms` says when a new try makes sense."""

    code = "busy"

    def __init__(self, limit: int, retry_ms: int = 1000) -> None:
        super().__init__(f"{limit} requests are waiting already; try again in {retry_ms} ms")
        self.limit = limit
        self.retry_ms = retry_ms


class NoRoom(EngineError):
    """There is no memory for a request just now. `required` and `available` are in bytes, or in
    blocks where nothing is stored.
    """

    code = "busy"

    def __init__(self, required: int, available: int, retry_ms: int = 2000) -> None:
        super().__init__(
            f"{required:,} bytes of KV cache are needed beside what is kept, {available:,} are "
            f"there; try again in {retry_ms} ms"
        )
        self.required = required
        self.available = available
        self.retry_ms = retry_ms


class Halted(EngineError):
    """Somebody has stopped all generation until further notice. `retry_ms` is a guess: a person has
    to let it go on.
    """

    code = "halted"

    def __init__(self, retry_ms: int = 5000) -> None:
        super().__init__("all generation is halted by the operator")
        self.retry_ms = retry_ms


class EngineStopped(EngineError):
    """The engine is not running (not started yet, or shut down)."""

    code = "draining"


class RemoteFailed(EngineError):
    """A remote server did not do what it was asked for; only this request is concerned."""


class RemoteUnavailable(EngineError):
    """No remote server can be asked just now. `retry_ms` says when one is asked again."""

    code = "busy"

    def __init__(self, reason: str, retry_ms: int = 2000) -> None:
        super().__init__(f"no remote server can be asked: {reason}; try again in {retry_ms} ms")
        self.retry_ms = retry_ms


class OutOfMemory(EngineError):
    """Model and cache do not fit. The message names required and available bytes and a setting to
    change.
    """


class ModelError(EngineError):
    """A model cannot be found, fetched, verified or understood; the message says what to do."""
