"""Refusals in the form that OpenAI's clients turn into their own exceptions."""

import math
from dataclasses import fields
from typing import Literal

import orjson
from starlette.responses import Response

from engine.errors import ContextExceeded, EngineError, EngineStopped, Halted, InvalidRequest
from engine.params import SamplingParams
from gameserver.protocol import Code, Refusal

#: Names that the engine's complaints about parameters begin with.
_SAMPLING = frozenset(field.name for field in fields(SamplingParams))

ErrorType = Literal["invalid_request_error", "rate_limit_error", "server_error"]

#: While the model loads or the node goes away, a new try makes sense after this long.
UNREADY_RETRY_S = 2


class ApiError(Exception):
    """A request is refused or has failed; the client is told exactly this.

    Attributes:
        status: of the HTTP response, were it still to be sent.
        param: the field of the request that is wrong, as `messages[0].content`.
        code: stable, for programs.
        retry_s: seconds after which a new try makes sense.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_s = retry_s

    @property
    def type(self) -> ErrorType:
        """What OpenAI calls errors of this status."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> bytes:
        """The JSON that both a refused request and a broken stream carry."""
        error = {
            "message": str(self),
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return orjson.dumps({"error": error})

    def response(self, headers: dict[str, str] | None = None) -> Response:
        """The whole answer to a request that got no other."""
        headers = dict(headers or {})
        if self.retry_s is not None:
            headers["retry-after"] = str(self.retry_s)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return Response(self.body(), self.status, headers, "application/json")


def bad_field(param: str, message: str) -> ApiError:
    """A field of the request is of the wrong kind or out of range."""
    return ApiError(400, message, param=param, code="invalid_value")


def too_long(prompt: int, wanted: int, limit: int, param: str) -> ApiError:
    """Prompt and reply, in tokens, do not fit into the model's context."""
    return ApiError(
        400,
        f"the context holds {limit} tokens, but {prompt + wanted} are asked for: {prompt} of the "
        f"prompt and {wanted} of the reply; shorten the prompt or ask for a shorter reply",
        param=param,
        code="context_length_exceeded",
    )


def unready(message: str) -> ApiError:
    """The node cannot answer yet, or not any more."""
    return ApiError(503, message, code="not_ready", retry_s=UNREADY_RETRY_S)


def refused(refusal: Refusal) -> ApiError:
    """No more may be generated for this caller, or for anybody, until later."""
    retry_s = math.ceil((refusal.retry_ms or 0) / 1000)
    code = "over_budget" if refusal.code == Code.OVER_BUDGET else "rate_limit_exceeded"
    return ApiError(429, refusal.msg, code=code, retry_s=retry_s)


def from_engine(error: EngineError, param: str) -> ApiError:
    """What a client is told when the engine refuses; `param` is the field that holds the prompt."""
    if isinstance(error, ContextExceeded):
        return ApiError(400, str(error), param=param, code="context_length_exceeded")
    if isinstance(error, InvalidRequest):
        field = str(error).split(" ", 1)[0]
        return bad_field(field if field in _SAMPLING else param, str(error))
    if isinstance(error, Halted):
        return unready(str(error))
    if (retry_ms := getattr(error, "retry_ms", None)) is not None:  # no room in queue or memory
        retry_s = math.ceil(retry_ms / 1000)
        return ApiError(429, str(error), code="rate_limit_exceeded", retry_s=retry_s)
    if isinstance(error, EngineStopped):
        return unready("the server is shutting down")
    return ApiError(500, str(error), code=error.code)
