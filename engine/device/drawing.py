"""Which rows the device can sample by itself, and with which parameters."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.request import Request, State
from kernels.gpu.changes import Told, record
from kernels.gpu.sampling import Scratch, parameters

Ints = npt.NDArray[np.int32]

#: The sampling table's row of a request whose next token the host draws.
_HOSTS = parameters(temperature=0, top_p=1, min_p=0, top_k=0, seed=0)


class Drawing:
    """Sampling parameters of requests, and the device's records of what changes their logits.

    The device draws with everything that depends on a request's own tokens alone, and within what
    a grammar allows when it is told so. Log-probabilities are the host's, and what finds no room in
    a record; such rows are drawn again from their logits.

    Attributes:
        told: see `kernels.gpu.changes`.
        scratch: see `kernels.gpu.sampling`.
    """

    def __init__(self, vocab_size: int, rows: int, device: torch.device) -> None:
        """For steps of so many rows; twice as many requests may have records."""
        self.told = Told.new(2 * rows, vocab_size, device)
        self.scratch = Scratch.new(rows, vocab_size, device)
        self._free = list(range(2 * rows))
        self._place: dict[Request, int] = {}
        self._entries: dict[Request, Ints] = {}
        self._crowded_out: set[Request] = set()

    @staticmethod
    def bytes_for(vocab_size: int, rows: int) -> int:
        """Bytes that this takes on the device."""
        return Told.bytes_for(2 * rows, vocab_size) + Scratch.bytes_for(rows, vocab_size)

    def by_host(self, request: Request) -> bool:
        """Whether the request's tokens are drawn on the host."""
        return request.params.logprobs is not None or request in self._crowded_out

    def hold(self, requests: Sequence[Request]) -> None:
        """Tell the device what their grammars allow these requests, those among them that have any
        and are drawn there; waits for their masks.
        """
        self.entries(requests)
        held = [r for r in requests if r.constraint is not None and r in self._place]
        if not held:
            return
        words = self.told.allowed.shape[1]
        allowed = np.stack([_bits(~r.constraint.banned(), words) for r in held if r.constraint])
        where = self._sent(np.array([self._place[request] for request in held]))
        self.told.allowed.index_copy_(0, where, self._sent(allowed))

    def entries(self, requests: Sequence[Request]) -> dict[Request, Ints]:
        """Rows of the sampling table; forgets requests that have ended when there are many."""
        if len(self._entries) > 4 * len(requests) + 64:
            self._forget()
        new = [request for request in requests if request not in self._entries]
        if new:
            self._write_records([r for r in new if not (r.plain or self.by_host(r))])
            self._entries |= {request: self._entry(request) for request in new}
        return self._entries

    def _entry(self, request: Request) -> Ints:
        if self.by_host(request):
            return _HOSTS
        params = request.params
        return parameters(
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            top_k=params.top_k,
            seed=request.seed,
            repetition_penalty=params.repetition_penalty,
            record=self._place.get(request, -1),
        )

    def _write_records(self, requests: Sequence[Request]) -> None:
        """Give a record to each request that is about to draw its first token."""
        places, records, seen = [], [], []
        for request in requests:
            found = _record(request)
            if found is None or not self._room():
                self._crowded_out.add(request)
                continue
            places.append(self._free.pop())
            self._place[request] = places[-1]
            records.append(found)
            seen.append(_seen(request, self.told.seen.shape[1]))
        if not places:
            return
        width = max(map(len, records))
        padded = np.zeros((len(records), width), np.int32)
        for row, found in zip(padded, records, strict=True):
            row[: len(found)] = found
        where = self._sent(np.array(places))
        self.told.records[:, :width].index_copy_(0, where, self._sent(padded))
        self.told.seen.index_copy_(0, where, self._sent(np.stack(seen)))

    def _room(self) -> bool:
        if not self._free:
            self._forget()
        return bool(self._free)

    def _sent(self, array: npt.NDArray[np.int32 | np.int64]) -> torch.Tensor:
        """An array on the device, in order of the stream."""
        tensor = torch.from_numpy(array)
        if self.told.seen.is_cuda:  # from pinned memory the host need not wait for the device
            tensor = tensor.pin_memory()
        return tensor.to(self.told.seen.device, non_blocking=True)

    def _forget(self) -> None:
        ended = [r for r in self._entries if r.state is State.FINISHED]
        for request in ended:
            del self._entries[request]
            self._crowded_out.discard(request)
            if request in self._place:
                self._free.append(self._place.pop(request))


def _record(request: Request) -> Ints | None:
    params, changes = request.params, request.changes
    return record(
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
        biases=params.logit_bias,
        bans=changes.bans if changes else (),
        late=changes.late if changes else (),
        min_tokens=params.min_tokens,
        max_tokens=params.max_tokens,
        held=request.constraint is not None,
    )


def _seen(request: Request, words: int) -> Ints:
    """The tokens that a repetition penalty begins with, as bits."""
    flags = np.zeros(words * 32, np.bool_)
    if request.params.repetition_penalty != 1:
        prefix = request.prefix.all_token_ids() if request.prefix else ()
        flags[np.array([*prefix, *request.prompt_ids], np.int64)] = True
    return _bits(flags, words)


def _bits(flags: npt.NDArray[np.bool_], words: int) -> Ints:
    """Flags as bits of so many int32, those that are not there as zeros."""
    bits = np.zeros(words * 4, np.uint8)
    packed = np.packbits(flags, bitorder="little")
    bits[: len(packed)] = packed
    return bits.view("<i4")
