"""What an NPC may do in one turn, and the grammar that keeps a reply to it.

An action stands in a reply in brackets, between its words:

    Take this with you. [give_item {"item":"lantern"}] And mind the steps.

Speech is free but for the bracket that opens an action: from there on the model can only write one
of the open ones, with arguments that are valid under its schema. In speech the grammar allows all
other tokens, and its mask takes some ten microseconds.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.grammar import Grammar

#: Actions of one turn at most, each another one.
MOST_PER_TURN = 2
#: Tokens that a reply may have beyond its words if it may act.
TOKENS = 48
#: How arguments are written: without the white space that costs a token each.
_COMPACT = {"x-guidance": {"whitespace_flexible": False}}


@dataclass(frozen=True, slots=True)
class Open:
    """One action that is open.

    Attributes:
        name: as in `scenes.actions.Action`.
        schema: JSON text of its arguments' schema, an object; "" for an action without arguments.
    """

    name: str
    schema: str = ""


@dataclass(frozen=True, slots=True)
class Act:
    """An action as an NPC has done it.

    Attributes:
        name: of the action.
        args: valid under its schema.
    """

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offer:
    """What is open in one turn.

    Attributes:
        actions: with different names; none of them leaves the words, and keeps brackets out of
            them: what an NPC may not do now it must not say it does.
    """

    actions: tuple[Open, ...]

    def grammar(self) -> Grammar:
        """Replies with no action, with one, or with two different ones (`MOST_PER_TURN`).

        Raises:
            InvalidRequest: the schemas are too long together.
        """
        rules = [_rule(number, action) for number, action in enumerate(self.actions)]
        numbers = range(len(rules))
        for first in numbers:
            others = " | ".join(f"a{number}" for number in numbers if number != first)
            second = f' ("[" ({others}) "]" TALK?)?' if others else ""
            rules.append(f'f{first}: a{first} "]" TALK?{second}')
        firsts = " | ".join(f"f{number}" for number in numbers)
        act = f' ("[" ({firsts}))?' if firsts else ""
        return Grammar.lark("\n".join([f"start: TALK?{act}", r"TALK: /[^\[]+/", *rules]))

    @property
    def tokens(self) -> int:
        """Tokens that a reply may have for actions, beyond those of its words."""
        return TOKENS if self.actions else 0


def _rule(number: int, action: Open) -> str:
    if not action.schema:
        return f'a{number}: "{action.name}"'
    schema = json.dumps({**_COMPACT, **json.loads(action.schema)})
    return f'a{number}: "{action.name} " %json {schema}'
