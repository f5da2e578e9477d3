"""How far a node is on its way up, for people and for whoever asks `/readyz`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "ready", "draining"]


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of the work before a node can answer.

    Attributes:
        message: what is being done, for people.
        done, total: how much of it, in any unit; total 0 means that nobody can tell.
    """

    message: str
    done: int = 0
    total: int = 0


class Readiness:
    """The node's state. May be advanced from any thread: a step is replaced as a whole.

    Attributes:
        hindrance: tells why a node that is up can serve no players just now; "" if it can.
    """

    def __init__(self, on_step: Callable[[Step], None] | None = None) -> None:
        self.state: State = "starting"
        self.step = Step("Starting")
        self.hindrance: Callable[[], str] = lambda: ""
        self._on_step = on_step or (lambda step: None)

    @property
    def ready(self) -> bool:
        """Whether it is up."""
        return self.state == "ready"

    @property
    def takes_players(self) -> bool:
        """Whether players should be sent here."""
        return self.ready and not self.hindrance()

    def advance(self, message: str, done: int = 0, total: int = 0) -> None:
        """Note what is being done now; its parameters are those of `Step`."""
        self.step = Step(message, done, total)
        self._on_step(self.step)

    def report(self) -> dict[str, object]:
        """The JSON that `/readyz` answers."""
        body: dict[str, object] = {"ready": self.takes_players, "state": self.state}
        if self.ready and (hindrance := self.hindrance()):
            body["hindrance"] = hindrance
        if self.state == "starting":
            step = self.step
            body["progress"] = {"message": step.message, "done": step.done, "total": step.total}
        return body
