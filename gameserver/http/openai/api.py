"""The doors of the API: who comes in, with what, and what they are told."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from engine.face import AnyEngine
from gameserver.budgets import Budgets
from gameserver.http.openai.answers import Model, ModelList
from gameserver.http.openai.auth import caller as caller_of
from gameserver.http.openai.body import decode_body, read_body
from gameserver.http.openai.call import Call
from gameserver.http.openai.chat import chat
from gameserver.http.openai.completions import completions
from gameserver.http.openai.document import openapi_document
from gameserver.http.openai.embeddings import embeddings
from gameserver.http.openai.errors import ApiError, refused, unready
from gameserver.http.openai.logprobs import Spelling
from gameserver.http.openai.rates import Rates, check
from gameserver.http.openai.schema import ChatRequest, CompletionRequest, EmbeddingRequest
from gameserver.http.openai.streaming import ClientGone, unless_gone
from gameserver.http.openai.tally import ApiTally
from gameserver.keys import Key, Keys
from gameserver.protocol import Refusal
from gameserver.readiness import Readiness
from gameserver.settings import ApiSettings
from gameserver.tenants import account

#: Nobody reads it: the client is gone.
_CLIENT_CLOSED = 499

_log = structlog.get_logger("troupe.api")
Endpoint = Callable[[Call, Any], Awaitable[Response]]


class Node(Protocol):
    """What the API needs to know of the node it belongs to."""

    readiness: Readiness

    @property
    def engine(self) -> AnyEngine | None:
        """The engine, once it is there."""

    @property
    def budgets(self) -> Budgets | None:
        """What may be generated; None where nobody counts."""


class OpenAIApi:
    """The endpoints below `/v1`, as an ASGI application.

    Args:
        node: whose engine answers.
        settings: limits, and the names of the model.
        keys: who may come in.
        rates: how fast; None: as they like.

    Attributes:
        app: to be mounted at `/v1`.
        tally: what was answered.
        keys: as given.
    """

    def __init__(
        self, node: Node, settings: ApiSettings, keys: Keys, rates: Rates | None = None
    ) -> None:
        self._node = node
        self._rates = rates or Rates()
        self._settings = settings
        self.keys = keys
        self._created = int(time.time())
        self._spelling: Spelling | None = None
        self.tally = ApiTally()
        post = partial(Route, methods=["POST"])
        self.app = Starlette(
            routes=[
                post("/chat/completions", self._computing(ChatRequest, chat)),
                post("/completions", self._computing(CompletionRequest, completions)),
                post("/embeddings", self._computing(EmbeddingRequest, embeddings)),
                Route("/models", self._listing(self._models)),
                Route("/models/{name:path}", self._listing(self._model)),
            ],
            exception_handlers={HTTPException: self._no_such_route},
        )

    async def document(self, request: Request) -> Response:
        """`/openapi.json`, for whoever may see it."""
        return Response(openapi_document(), media_type="application/json")

    def _computing(
        self, kind: type[Any], endpoint: Endpoint
    ) -> Callable[[Request], Awaitable[Response]]:
        """The handler of a route that reads a `kind` and computes."""
        decoder = msgspec.json.Decoder(kind)

        async def answer(request: Request) -> Response:
            caller = caller_of(self.keys, request.headers.get("authorization"))
            engine = self._engine()
            settings = self._settings
            if self.tally.open >= settings.open_requests:
                raise ApiError(
                    429, "too many requests are open", code="rate_limit_exceeded", retry_s=1
                )
            self.tally.open += 1
            streaming = False
            leave: Callable[[], None] = _nothing
            try:
                body = await read_body(request, settings.body_bytes, settings.body_s)
                household = self._rates.of(request)
                check(household.message(len(body)), "messages")
                check(household.say(), "requests")
                fields = decode_body(body, decoder, settings.json_depth)
                pay, leave = self._book(caller)
                call = Call(
                    engine=engine,
                    settings=settings,
                    spelling=self._spelling or Spelling(engine.tokenizer),
                    model=self._name(fields.model),
                    caller=account(caller.tenant, caller.name),
                    pay=pay,
                    on_end=partial(self._stream_ended, leave),
                )
                response = await unless_gone(request.receive, endpoint(call, fields))
                streaming = bool(getattr(fields, "stream", None))
                return response
            finally:
                if not streaming:
                    self.tally.open -= 1
                    leave()

        return partial(self._guarded, answer)

    def _listing(
        self, handler: Callable[[Request], msgspec.Struct]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            caller_of(self.keys, request.headers.get("authorization"))
            check(self._rates.of(request).message(0), "messages")
            body = msgspec.json.encode(handler(request))
            return Response(body, media_type="application/json")

        return partial(self._guarded, answer)

    async def _guarded(
        self, answer: Callable[[Request], Awaitable[Response]], request: Request
    ) -> Response:
        """Answer, and turn whatever goes wrong into an error of OpenAI's form."""
        try:
            response = await answer(request)
        except ApiError as error:
            response = error.response()
        except (ClientGone, ClientDisconnect):
            self.tally.lost("gone")
            response = Response(status_code=_CLIENT_CLOSED)
        except Exception:
            _log.exception("a request failed", route=request.scope["route"].path)
            response = ApiError(500, "internal error").response()
        self.tally.answered(request.scope["route"].path, response.status_code)
        return response

    def _book(self, caller: Key) -> tuple[Callable[[int], None], Callable[[], None]]:
        """Book a request. Returns what books the tokens it costs, and what its end.

        Raises:
            ApiError: 429, a budget is used up, or its tenant has enough under way.
        """
        if self._node.budgets is None:
            return lambda tokens: None, _nothing
        budgets = self._node.budgets.of(caller.tenant)
        try:
            budgets.share.admit()
            budgets.call(caller.name)
        except Refusal as refusal:
            raise refused(refusal) from refusal
        return partial(budgets.spend_call, caller.name), budgets.share.begin_call()

    def _stream_ended(self, leave: Callable[[], None], outcome: str) -> None:
        self.tally.open -= 1
        leave()
        if outcome != "ok":
            self.tally.lost(outcome)

    async def _no_such_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self.tally.answered("other", error.status_code)
        if error.status_code == 405:
            refusal = ApiError(405, f"{request.method} does nothing here", code="bad_method")
        else:
            refusal = ApiError(error.status_code, "there is no such path", code="unknown_path")
        return refusal.response(dict(error.headers or {}))

    def _engine(self) -> AnyEngine:
        readiness, engine = self._node.readiness, self._node.engine
        if readiness.state == "draining":
            raise unready("the server is shutting down")
        if engine is None or not readiness.ready:
            raise unready(f"the server is starting: {readiness.step.message}")
        self._spelling = self._spelling or Spelling(engine.tokenizer)
        return engine

    def _names(self) -> list[str]:
        return [self._engine().model_name, *self._settings.model_names]

    def _name(self, wanted: str | None) -> str:
        names = self._names()
        if wanted is not None and wanted not in names:
            raise ApiError(
                404,
                f"there is no model {wanted!r} here, but {', '.join(names)}",
                param="model",
                code="model_not_found",
            )
        return wanted or names[0]

    def _models(self, request: Request) -> msgspec.Struct:
        return ModelList(data=[self._described(name) for name in self._names()])

    def _model(self, request: Request) -> msgspec.Struct:
        return self._described(self._name(request.path_params["name"]))

    def _described(self, name: str) -> Model:
        return Model(id=name, created=self._created, max_model_len=self._engine().max_model_len)


def _nothing() -> None:
    """Nobody counts."""
