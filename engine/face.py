"""What a server asks of an engine, whichever it is: one of our own, or a cluster elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from engine.chat import ChatFormat
from engine.forecast import UNKNOWN, Expectation
from engine.grammar import Grammar, Kind
from engine.measures import Series
from engine.outputs import Embedding, RequestOutput
from engine.params import SamplingParams
from engine.prefixes import Prefix
from engine.ticket import Ticket
from engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine.pooling import PoolingKind


class AnyEngine(Protocol):
    """An engine that reports to an event loop.

    Apart from `start` and `stop`, the methods may be called before the engine runs; work then
    waits. Those that are not async may be called from the event loop only, and return at once.

    Attributes:
        tokenizer, chat: of the model, or such as the engine understands.
        model_name: for people.
        summary: one line on where and how much it computes, for people.
        notices: what it cannot do that NPCs may want, and what to do about it, for people.
        max_model_len: most tokens of prefix, prompt and output together.
        scripted: whether replies come from a file (`script:FILE`), and `scripted_length`, the
            longest.
        held: whether a reply with a grammar is sure to follow it; else `conforms` says what came of
            it.
        grammar_kinds: what replies can be held to.
        halted: whether the kill switch is on.
    """

    tokenizer: Tokenizer
    chat: ChatFormat
    model_name: str
    summary: str
    notices: Collection[str]
    max_model_len: int
    scripted: bool
    scripted_length: int
    held: bool
    grammar_kinds: Collection[Kind]
    halted: bool

    async def start(self) -> None:
        """Start working. Outputs are delivered in the running event loop."""

    async def stop(self) -> None:
        """End open requests as cancelled, and all work. Idempotent."""

    @property
    def alive(self) -> bool:
        """Whether it works."""

    def create_prefix(self, token_ids: Sequence[int], parent: Prefix | None = None) -> Prefix:
        """A handle for a prompt beginning that many requests share. Computes nothing.

        Raises:
            InvalidRequest: no tokens, or ids outside the vocabulary.
            ContextExceeded: no room for even one token of prompt and output after it.
        """

    def release_prefix(self, prefix: Prefix) -> None:
        """Give a handle back; with the last one the node is no longer kept."""

    async def warm(self, prefix: Prefix) -> None:
        """Compute a prefix now, where that is of use, and keep it until it is released.

        Raises:
            OutOfMemory: it does not fit beside what is pinned, or was released meanwhile.
            EngineStopped: the engine does not run.
        """

    async def prepare(self, grammar: Grammar) -> None:
        """Compile a grammar beside the event loop, so that `submit` need not wait for it.

        `stream` does this by itself.

        Raises:
            InvalidRequest: it cannot be compiled within the bounds, or no text matches it.
        """

    def conforms(self, grammar: Grammar, text: str) -> bool:
        """Whether a text that nothing was held to is one of a grammar's.

        Raises:
            InvalidRequest: it cannot be compiled within the bounds, or no text matches it.
        """

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        on_output: Callable[[RequestOutput], None],
        prefix: Prefix | None = None,
        priority: int = 1,
        salt: str = "",
        shares: tuple[str, ...] = (),
        sibling: Ticket | None = None,
    ) -> Ticket:
        """Queue a request.

        A grammar that was not prepared is compiled first, which may take some hundred milliseconds.

        Args:
            prompt_ids: own tokens, following `prefix`; at least one.
            params: sampling and stopping.
            on_output: called in the event loop; its last output has `finish` set.
            prefix: node the prompt continues.
            priority: class; 0 is most urgent and may take reserved slots.
            salt: requests share cached history only if their salts are equal.
            shares: on whose account it runs (player, then scene), for the `fair` policy.
            sibling: another sample of the same prompt, whose KV this one shares.

        Raises:
            EngineError: at once; nothing was taken.
        """

    def cancel(self, ticket: Ticket) -> None:
        """End a request, queued or running; its last output says `cancelled`. Idempotent."""

    def halt(self) -> None:
        """The kill switch: end every request, queued or running, and take none until `release`.
        Idempotent.
        """

    def release(self) -> None:
        """Take requests again after `halt`. Idempotent."""

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        pooling: "PoolingKind" = "mean",
        normalize: bool = True,
        priority: int = 2,
        shares: tuple[str, ...] = (),
    ) -> list[Embedding]:
        """The vector of each text.

        Args:
            texts: text or token ids.
            pooling: of the states of tokens, where the engine has them.
            normalize: scale vectors to length 1.
            priority: class; 2 is after everybody who waits for a reply.
            shares: on whose account, for the `fair` policy.

        Raises:
            EngineError: one cannot be read; the others are given up.
        """

    def expect(self, priority: int, prefix: Prefix | None = None) -> Expectation:
        """When a request of this class would have its first token if it came now. Cheap. An engine
        that cannot tell says `UNKNOWN`.

        Args:
            prefix: which it would continue; what is not computed of that is to be read, too.
        """
        return UNKNOWN

    def measures(self) -> list[Series]:
        """Histograms of waits, gaps and sizes; see `engine.measures`."""

    def gauges(self) -> dict[str, float]:
        """A recent snapshot of counters by name."""

    async def stream(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        prefix: Prefix | None = None,
        priority: int = 1,
        salt: str = "",
        shares: tuple[str, ...] = (),
    ) -> AsyncIterator[RequestOutput]:
        """The outputs of one request as they come; leaving the iteration cancels it."""
        if params.grammar is not None:
            await self.prepare(params.grammar)
        outputs: asyncio.Queue[RequestOutput] = asyncio.Queue()
        ticket = self.submit(
            prompt_ids,
            params,
            on_output=outputs.put_nowait,
            prefix=prefix,
            priority=priority,
            salt=salt,
            shares=shares,
        )
        try:
            while True:
                output = await outputs.get()
                yield output
                if output.finish is not None:
                    return
        finally:
            self.cancel(ticket)
