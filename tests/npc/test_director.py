"""A line without an addressee goes to whom it names, else to whom the player last spoke to."""

from dataclasses import dataclass

import pytest

from npc.director import choose
from npc.persona import Persona


@dataclass
class Room:
    npcs: dict[str, Persona]


def room(*people: tuple[str, str]) -> Room:
    return Room({id: Persona(id, name, "ambient", "r", "v") for id, name in people})


TAVERN = room(("mira", "Mira"), ("harn", "Captain Harn"), ("tobb", "Old Tobb"), ("jörg", "Jörg"))


@pytest.mark.parametrize(
    ("text", "last", "npc"),
    [
        ("Hello!", None, "mira"),
        ("Hello!", "tobb", "tobb"),
        ("Hello!", "somebody who left", "mira"),
        ("Harn, any work?", "mira", "harn"),
        ("any work, HARN?", "mira", "harn"),
        ("Captain Harn!", "mira", "harn"),
        ("Captain, my captain!", "mira", "mira"),
        ("Where is Tobb's boat?", "mira", "tobb"),
        ("Mira, have you seen Old Tobb?", "harn", "mira"),
        ("Old Tobb, have you seen Mira?", "harn", "tobb"),
        ("The old mill?", "harn", "harn"),
        ("Admiral!", "harn", "harn"),
        ("miracle", "harn", "harn"),
        ("Grüß dich, jörg", None, "jörg"),
        ("", None, "mira"),
        ("???", "harn", "harn"),
    ],
)
def test_choice(text: str, last: str | None, npc: str) -> None:
    assert choose(TAVERN, text, last) == npc


def test_ids_are_names_too() -> None:
    assert choose(room(("a", "X"), ("guard-2", "Y")), "guard-2!", None) == "guard-2"


def test_the_longer_name_wins_where_two_begin_alike() -> None:
    people = room(("old", "Tobb"), ("young", "Tobb Hale"))
    assert choose(people, "Tobb Hale, come here", None) == "young"
    assert choose(people, "Tobb, come here", None) == "old"
