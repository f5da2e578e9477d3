"""A submitted request, as its caller sees it."""

from dataclasses import dataclass

from engine.prefixes import Prefix


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a request is called, and what its prompt was.

    Attributes:
        id: the `request_id` of its outputs.
        prompt_ids: its own prompt tokens, without the prefix.
        prefix: the node its prompt starts with.
    """

    id: int
    prompt_ids: tuple[int, ...]
    prefix: Prefix | None

    def all_prompt_ids(self) -> tuple[int, ...]:
        """The whole prompt as the model sees it, prefix included."""
        return (self.prefix.all_token_ids() if self.prefix else ()) + self.prompt_ids
