"""Finds out what a server understands, by asking it, before anybody speaks.

Documents go out of date and many servers take fields they do nothing about. So a field that only
shapes a reply counts as known if it is taken, and a way to hold replies to a grammar only if a text
comes back that no model says by chance.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from engine.errors import ModelError
from engine.grammar import Grammar, Kind
from engine.params import SamplingParams
from engine.remote.client import Client, Trouble
from engine.remote.config import RemoteConfig
from engine.remote.dialect import CONTINUATIONS, Dialect, PromptForm, optional
from engine.remote.grammars import TRIALS, WAYS, Fields, Way

#: Every field that replies of ours may need, each with a value that a server may refuse.
_ALL = SamplingParams(
    max_tokens=1,
    min_tokens=1,
    temperature=0.5,
    top_k=40,
    top_p=0.9,
    min_p=0.05,
    repetition_penalty=1.05,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={1: 0.5},
    bad_words=("moss",),
    seed=7,
    stop=("\n\n\n", "moss:"),
    ignore_eos=True,
)
_LIMITS = ("max_tokens", "max_completion_tokens")
#: Some models love white space, which JSON has room for. No reply to a trial is longer than that.
_TRIAL_TOKENS, _TRIAL_CHARACTERS = 256, 8192
#: Bytes of a stream of two tokens.
_STREAM_BYTES = 1 << 18
#: Characters of a model's name.
_NAME_CHARACTERS = 256
#: What begins when a server does not answer yet.
WAITING = "Waiting for the model server: "
#: A server that loads its model is asked again after so long.
_PAUSE_S = 1.0
_UNAUTHORIZED, _FORBIDDEN = 401, 403
#: A server without a list of its models.
_NO_LIST = (404, 405, 501)

Conforms = Callable[[Grammar, str], bool]
Advance = Callable[[str], None]


class Probe:
    """Asks one server.

    Args:
        client: to ask with.
        base: address of the server.
        config: names the model, and holds fields that every request has.
        form: how prompts travel.
        prompt: ids of a short prompt that asks for a reply.
        begun: ids of one whose reply is begun; in chat only.
        conforms: whether a text is one of a grammar.
    """

    def __init__(
        self,
        client: Client,
        base: str,
        config: RemoteConfig,
        form: PromptForm,
        prompt: Sequence[int],
        begun: Sequence[int],
        conforms: Conforms,
    ) -> None:
        self._client = client
        self._base = base
        self._config = config
        self._form = form
        self._prompt = prompt
        self._begun = begun
        self._conforms = conforms

    async def dialect(self, advance: Advance) -> Dialect:
        """What the server understands; waits until it answers.

        Args:
            advance: told what is waited for.

        Raises:
            ModelError: it cannot be used as the settings want it; the message says what to do.
        """
        while True:
            try:
                return await self._find_out(advance)
            except Trouble as trouble:
                if not trouble.again:
                    raise ModelError(self._advice(trouble)) from trouble
                advance(f"{WAITING}{trouble}")
            await asyncio.sleep(_PAUSE_S)

    async def _find_out(self, advance: Advance) -> Dialect:
        name, length = await self._model()
        advance(f"Asking {self._base} what it understands")
        dialect = Dialect(name, self._form, length)
        dialect = await self._limit(dialect)
        dialect = replace(dialect, known=await self._known(dialect))
        if self._form == "chat":
            dialect = replace(dialect, continuation=await self._continuation(dialect))
        dialect = replace(dialect, ways=await self._ways(dialect))
        await self._stream(dialect)
        return dialect

    async def _model(self) -> tuple[str, int | None]:
        """The model's name, and its context if the server says that."""
        wanted = self._config.model
        try:
            answer = await self._timed(self._client.ask("GET", self._base, "models"))
        except Trouble as trouble:
            if wanted is None or trouble.status not in _NO_LIST:
                raise
            return wanted, None
        listed = answer.get("data") if isinstance(answer, dict) else None
        entries = listed if isinstance(listed, list) else ()
        models = [m for m in entries if isinstance(m, dict) and _is_name(m.get("id"))]
        found = [model for model in models if wanted in (None, model["id"])]
        if not found:
            if wanted is None:
                raise ModelError(f"{self._base} lists no models: name one with --remote-model")
            return wanted, None  # aliases need not be listed
        meta = found[0].get("meta")
        lengths = (
            found[0].get("max_model_len"),
            meta.get("n_ctx") if isinstance(meta, dict) else None,
        )
        length = next((n for n in lengths if type(n) is int and n > 0), None)
        return str(found[0]["id"]), length

    async def _limit(self, dialect: Dialect) -> Dialect:
        """With the name that the server has for the longest reply."""
        refusal: Trouble | None = None
        for limit in _LIMITS if self._form == "chat" else _LIMITS[:1]:
            named = replace(dialect, limit=limit)
            try:
                await self._ask(named, SamplingParams(max_tokens=1))
            except Trouble as trouble:
                if trouble.again or trouble.status in (_UNAUTHORIZED, _FORBIDDEN):
                    raise
                refusal = refusal or trouble
            else:
                return named
        assert refusal is not None
        raise refusal

    async def _known(self, dialect: Dialect) -> frozenset[str]:
        """The optional fields that the server takes."""
        wishes = set(optional(_ALL, 1, "moss", stream=False))
        if self._form == "chat":  # ids mean nothing there
            wishes -= {"logit_bias"}
        known = frozenset(wishes)
        if not await self._takes(replace(dialect, known=known)):
            known = frozenset(
                [name for name in sorted(wishes) if await self._takes_field(dialect, name)]
            )
        streamed = replace(dialect, known=known | {"stream_options"})
        try:
            await self._stream(streamed)
        except Trouble as trouble:
            if trouble.again:
                raise
            return known
        return streamed.known

    async def _takes_field(self, dialect: Dialect, name: str) -> bool:
        return await self._takes(replace(dialect, known=frozenset({name})))

    async def _takes(self, dialect: Dialect) -> bool:
        try:
            await self._ask(dialect, _ALL)
        except Trouble as trouble:
            # Some servers fail over what they should refuse.
            if trouble.status is None or trouble.kind == "busy":
                raise
            return False
        return True

    async def _continuation(self, dialect: Dialect) -> Fields | None:
        for fields in CONTINUATIONS:
            trial = replace(dialect, continuation=fields)
            try:
                await self._ask(trial, SamplingParams(max_tokens=1), self._begun)
            except Trouble as trouble:
                if trouble.status is None or trouble.kind == "busy":
                    raise
            else:
                return fields
        return None

    async def _ways(self, dialect: Dialect) -> dict[Kind, Way]:
        found: dict[Kind, Way] = {}
        for kind, grammar in TRIALS.items():
            for way in WAYS:
                if kind in way.kinds and await self._keeps_to(dialect, way, grammar):
                    found[kind] = way
                    break
        return found

    async def _keeps_to(self, dialect: Dialect, way: Way, grammar: Grammar) -> bool:
        params = SamplingParams(max_tokens=_TRIAL_TOKENS, temperature=0.0, grammar=grammar)
        try:
            answer = await self._ask(replace(dialect, ways={grammar.kind: way}), params)
        except Trouble as trouble:
            if trouble.status is None or trouble.kind == "busy":
                raise
            return False
        text = _text(answer)
        return text is not None and self._conforms(grammar, text.strip())

    async def _stream(self, dialect: Dialect) -> None:
        """Have a reply streamed to its end; raises `Trouble` if that does not work."""
        body = {**dialect.request(self._prompt, SamplingParams(max_tokens=2)), **self._config.extra}

        async def read() -> None:
            pieces = self._client.stream(self._base, dialect.path, body, _STREAM_BYTES)
            try:
                async with aclosing(pieces):
                    async for piece in pieces:
                        if piece.done or piece.finish:
                            return
            except Trouble as trouble:
                if trouble.kind != "nonsense":
                    raise
            raise Trouble("nonsense", f"{self._base} sends no stream of events", again=False)

        await self._timed(read())

    async def _ask(
        self,
        dialect: Dialect,
        params: SamplingParams,
        prompt: Sequence[int] | None = None,
    ) -> Any:
        body = dialect.request(prompt or self._prompt, params, salt="moss", stream=False)
        body |= self._config.extra
        return await self._timed(self._client.ask("POST", self._base, dialect.path, body))

    async def _timed(self, work: Any) -> Any:
        try:
            async with asyncio.timeout(self._config.first_token_s):
                return await work
        except TimeoutError:
            seconds = self._config.first_token_s
            raise Trouble("slow", f"{self._base} took more than {seconds:g} s") from None

    def _advice(self, trouble: Trouble) -> str:
        if trouble.status in (_UNAUTHORIZED, _FORBIDDEN):
            return f"{trouble}: name the key's file in remote.key_file, or its variable"
        if trouble.kind == "refused" and self._form == "tokens":
            return (
                f"{trouble}: if it takes no token ids, or another model's, leave remote.tokenizer "
                "out, and messages are sent instead"
            )
        if trouble.kind == "refused":
            return f"{trouble}: check remote.urls and remote.model"
        return str(trouble)


def _is_name(name: Any) -> bool:
    """Whether it can be a model's name, and be shown to people."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= _NAME_CHARACTERS


def _text(answer: Any) -> str | None:
    """The text of an answer in one piece."""
    try:
        choice = answer["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
    except (LookupError, TypeError):
        return None
    return text if isinstance(text, str) and len(text) <= _TRIAL_CHARACTERS else None
