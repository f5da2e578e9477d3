"""Who has a slot, and what each does with it."""

from collections.abc import Callable

from engine.request import Request, State


class Slots:
    """Requests that run: some read, some speak, some are through and wait for their last token.

    Nothing here is looked for step by step; it is told when something changes.

    Attributes:
        running: all of them, in order of admission.
        reading: those that have something to catch up with, in that order.
        ordinary: how many of all are not of class 0.
    """

    def __init__(self) -> None:
        self.running: list[Request] = []
        self.reading: dict[Request, None] = {}
        self.ordinary = 0
        self._speaking: dict[Request, None] = {}
        self._speakers: tuple[Request, ...] | None = ()
        self._watched: list[Request] = []

    @property
    def speakers(self) -> tuple[Request, ...]:
        """Those that are fed a token in every step; the same tuple until somebody comes or goes."""
        if self._speakers is None:
            self._speakers = tuple(self._speaking)
            self._watched = [request for request in self._speakers if not request.plain]
        return self._speakers

    def present(self, absent: Callable[[Request], bool]) -> tuple[Request, ...]:
        """Speakers that are not `absent`, which plain requests never are."""
        speakers = self.speakers
        missing = {request for request in self._watched if absent(request)}
        return tuple(r for r in speakers if r not in missing) if missing else speakers

    def speaks_now(self, request: Request) -> bool:
        """Whether it is among the speakers."""
        return request in self._speaking

    def takes(self, request: Request) -> None:
        """A request has a slot from now on, and reads."""
        request.state = State.RUNNING
        self.running.append(request)
        self.reading[request] = None
        self.ordinary += request.priority > 0

    def leaves(self, request: Request) -> None:
        """A request has no slot any more; its state is the caller's business."""
        self.running.remove(request)
        self.ordinary -= request.priority > 0
        self.is_silent(request)

    def speaks(self, request: Request) -> None:
        """A request has read, and a next token to be fed in every step from now on. Idempotent."""
        self.reading.pop(request, None)
        if request not in self._speaking:
            self._speaking[request] = None
            self._speakers = None

    def is_silent(self, request: Request) -> None:
        """A request has nothing to be fed any more. Idempotent."""
        self.reading.pop(request, None)
        if request in self._speaking:
            del self._speaking[request]
            self._speakers = None

    def check(self) -> None:
        """Raise AssertionError if what was told is not what is. For tests."""
        active = [request for request in self.running if not request.complete]
        assert {r for r in active if r.speaking} == set(self._speaking), "who speaks"
        assert {r for r in active if not r.speaking} == set(self.reading), "who reads"
        assert self.ordinary == sum(request.priority > 0 for request in self.running)
