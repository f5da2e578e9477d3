"""Which rows the device can sample by itself, and with which parameters."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.request import Request, State
from kernels.gpu.sampling import parameters

Ints = npt.NDArray[np.int32]


#: The sampling table's row of a request whose next token the host draws.
_HOSTS = parameters(temperature=0, top_p=1, min_p=0, top_k=0, seed=0)


class Drawing:
    """Sampling parameters of requests, and the device's table of tokens they have seen.

    The device draws with temperature, top-k, top-p, min-p and a repetition penalty. What else may
    change logits, and log-probabilities, are the host's; such rows are drawn again from their
    logits.

    Attributes:
        seen: int32 [rows, ⌈vocab / 32⌉], bit t of a row says that the request met token t.
    """

    def __init__(self, vocab_size: int, rows: int, device: torch.device) -> None:
        words = -(-vocab_size // 32)
        self.seen = torch.zeros(rows, words, dtype=torch.int32, device=device)
        self._free = list(range(rows))
        self._row_of: dict[Request, int] = {}
        self._entries: dict[Request, Ints] = {}
        self._crowded_out: set[Request] = set()

    def by_host(self, request: Request) -> bool:
        """Whether the request's next token is drawn on the host. That may end: what must not be
        empty asks the host for its first tokens alone.
        """
        return (
            request.params.logprobs is not None
            or request.constraint is not None
            or (request.changes is not None and not _only_repetition(request))
            or request in self._crowded_out
        )

    def entries(self, requests: Sequence[Request]) -> dict[Request, Ints]:
        """Rows of the sampling table; forgets requests that have ended when there are many."""
        if len(self._entries) > 4 * len(requests) + 64:
            self._forget()
        for request in requests:
            known = self._entries.get(request)
            if known is None or (known is _HOSTS and not self.by_host(request)):
                self._entries[request] = self._entry(request)
        return self._entries

    def _entry(self, request: Request) -> Ints:
        params = request.params
        seen_row = -1
        if params.repetition_penalty != 1 and not self.by_host(request):
            seen_row = self._seen_row(request)
            if seen_row < 0:
                self._crowded_out.add(request)
        if self.by_host(request):
            return _HOSTS
        return parameters(
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            top_k=params.top_k,
            seed=request.seed,
            repetition_penalty=params.repetition_penalty,
            seen_row=seen_row,
        )

    def _seen_row(self, request: Request) -> int:
        if not self._free:
            self._forget()
        if not self._free:
            return -1
        row = self._row_of[request] = self._free.pop()
        prefix = request.prefix.all_token_ids() if request.prefix else ()
        known = np.array([*prefix, *request.tokens], np.int64)
        flags = np.zeros(self.seen.shape[1] * 32, np.uint8)
        flags[known[known >= 0]] = 1
        words = np.packbits(flags, bitorder="little").view("<i4")
        bits = torch.from_numpy(words)
        if self.seen.is_cuda:  # from pinned memory the host need not wait for the device
            bits = bits.pin_memory()
        self.seen[row].copy_(bits, non_blocking=True)
        return row

    def _forget(self) -> None:
        ended = [r for r in self._entries if r.state is State.FINISHED]
        for request in ended:
            del self._entries[request]
            self._crowded_out.discard(request)
            if request in self._row_of:
                self._free.append(self._row_of.pop(request))


def _only_repetition(request: Request) -> bool:
    params = request.params
    return not (
        params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
        or params.bad_words
        or request.outputs < params.min_tokens
    )
