"""A remote request's life."""

from collections.abc import Sequence
from functools import cached_property

from engine.outputs import FinishReason, Usage
from engine.params import SamplingParams
from engine.prefixes import Prefix
from engine.remote.events import Bill
from engine.remote.reply import Reply

#: A prompt may have so many times the tokens that are counted here (text that is only estimated has
#: four bytes a token, and a model may need one for each), and so many that templates add to it.
_MOST_TIMES, _SPARE_TOKENS = 4, 4096


class RemoteRequest:
    """A prompt, how to continue it, and how far that has come; see `engine.policy.Waiter` for
    `priority`, `arrived`, `chain` and `shares`. Touched by the engine's thread only.

    Attributes:
        tries: how often a server was asked.
        scheduled_at, first_token_at, last_token_at: monotonic seconds; None before.
        finish: how the server says it ended.
        bill: what the server has counted.
        ended: whether it has had its last output.
    """

    def __init__(
        self,
        request_id: int,
        prompt_ids: tuple[int, ...],
        params: SamplingParams,
        reply: Reply,
        *,
        prefix: Prefix | None,
        priority: int,
        salt: str,
        shares: tuple[str, ...],
        arrived: float,
    ) -> None:
        self.id = request_id
        self.prompt_ids = prompt_ids
        self.params = params
        self.reply = reply
        self.prefix = prefix
        self.priority = priority
        self.salt = salt
        self.shares = shares
        self.arrived = arrived
        self.tries = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.finish: FinishReason | None = None
        self.bill: Bill | None = None
        self.ended = False

    @cached_property
    def chain(self) -> Sequence[Prefix]:
        """See `engine.policy.Waiter`."""
        return self.prefix.chain() if self.prefix else ()

    def all_prompt_ids(self) -> tuple[int, ...]:
        """The whole prompt, prefix included."""
        return (self.prefix.all_token_ids() if self.prefix else ()) + self.prompt_ids

    def usage(self, now: float) -> Usage:
        """The bill, as of `now` (seconds, monotonic): the server's, or one by the local tokenizer
        where it gave none, as for a reply that was cut short.
        """
        length = len(self.prompt_ids) + (self.prefix.total if self.prefix else 0)
        bill = self.bill
        if bill is None or not self._credible(bill, length):
            bill = Bill(length, 0, self.reply.tokens)
        return Usage(
            prompt_tokens=bill.prompt,
            cached_tokens=min(bill.cached, bill.prompt),
            completion_tokens=bill.completion,
            arrived=self.arrived,
            scheduled=self.scheduled_at,
            first_token=self.first_token_at,
            finished=now,
        )

    def _credible(self, bill: Bill, length: int) -> bool:
        """Whether a bill can be one of a prompt of `length` tokens, as they are counted here: a
        wrong one would use up what players may have in a day.
        """
        return (
            bill.prompt <= _MOST_TIMES * length + _SPARE_TOKENS
            and bill.completion <= self.params.max_tokens + _SPARE_TOKENS
        )
