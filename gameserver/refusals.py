"""What a client is told when the engine refuses."""

from engine.errors import ContextExceeded, EngineError, NoRoom, QueueFull, RemoteUnavailable
from gameserver.protocol import Code, Refusal


def refusal_of(error: EngineError) -> Refusal:
    """The engine's refusal, in words of the protocol."""
    if isinstance(error, ContextExceeded):
        return Refusal(Code.CONTEXT_EXCEEDED, str(error), limit=error.limit, actual=error.actual)
    if isinstance(error, QueueFull):
        return Refusal(Code.BUSY, "too many answers are waiting", retry_ms=error.retry_ms)
    if isinstance(error, NoRoom):
        return Refusal(Code.BUSY, "memory is short", retry_ms=error.retry_ms)
    if isinstance(error, RemoteUnavailable):
        return Refusal(Code.BUSY, "no model server answers", retry_ms=error.retry_ms)
    known = {code.value for code in Code}
    code = Code(error.code) if error.code in known else Code.INTERNAL
    return Refusal(code, str(error), retry_ms=getattr(error, "retry_ms", None))
