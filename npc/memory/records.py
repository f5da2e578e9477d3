"""What memory is made of.

Whatever is remembered carries the circle that heard it: None for the whole scene, else the players
of a whisper. Nothing ever combines two circles: a summary of what was whispered is of that circle.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from npc.transcript import Audience

Kind = Literal["fact", "summary"]
#: Which running scenes are meant, by id; any thread may ask.
Scenes = Callable[[str], bool]


def everywhere(stream: str) -> bool:
    """All scenes are."""
    return True


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose talk it is: memory never mixes running scenes, and names are not identities.

    Attributes:
        stream: id of the running scene.
        npc: id of the NPC who remembers.
        player: id of the player who is remembered.
    """

    stream: str
    npc: str
    player: str


@dataclass(frozen=True, slots=True)
class Spoken:
    """A line of a talk between an NPC and a player.

    Attributes:
        id: of the message or turn; unique for an NPC of a running scene.
        owner, circle: whose talk it is, and who heard it.
        own: whether the NPC said it.
        name: of the speaker, as shown.
        text: the words that were heard; "" if none were (yet).
        ts: wall clock, ms.
        present: players who could hear it.
    """

    id: str
    owner: Owner
    circle: Audience
    own: bool
    name: str
    text: str
    ts: int
    present: frozenset[str]


@dataclass(frozen=True, slots=True)
class Draft:
    """Something to remember, as found in a talk.

    Attributes:
        text: the words; of a fact what the player said, of a summary what the talk was about.
        importance: from 0 to 1.
        ts: when it was said, ms.
        present: players who could hear it.
    """

    text: str
    importance: float
    ts: int
    present: frozenset[str]


@dataclass(frozen=True, slots=True)
class Memory:
    """Something remembered.

    Attributes:
        id: of the record.
        owner, circle: whose talk it is from, and who heard it.
        kind: a fact, or the summary of a talk so far.
        name: of the player, as shown when it was said.
        text, importance, ts, present: see `Draft`.
        relevance: to what was asked, from 0 to 1; 0 if nothing was.
        score: by which it was chosen.
    """

    id: int
    owner: Owner
    circle: Audience
    kind: Kind
    name: str
    text: str
    importance: float
    ts: int
    present: frozenset[str]
    relevance: float = 0.0
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Talk:
    """Lines of one circle that nothing was made of yet, oldest first.

    Attributes:
        owner, circle: see `Spoken`.
        lines: at least one.
        summary: of what was said before them; "" for nothing.
    """

    owner: Owner
    circle: Audience
    lines: tuple[Spoken, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class Recollection:
    """What came up for one player's line.

    Attributes:
        memories: best first.
        lines: the last ones said, oldest first.
        more: whether there are facts that were not chosen.
    """

    memories: tuple[Memory, ...] = ()
    lines: tuple[Spoken, ...] = ()
    more: bool = False


def joined(players: Iterable[str]) -> str:
    """A set of ids as text in which each stands between commas; ids have none."""
    names = sorted(players)
    if any("," in name for name in names):
        raise ValueError("a player's id has no comma")
    return "".join(f",{name}" for name in names) + "," if names else ""


def players_of(text: str) -> frozenset[str]:
    """The ids that `joined` wrote."""
    return frozenset(filter(None, text.split(",")))


def circle_text(circle: Audience) -> str:
    """A circle as it is stored: "" for the whole scene. Nobody's circle is ","."""
    return "" if circle is None else joined(circle) or ","


def circle_of(text: str) -> Audience:
    """The circle that `circle_text` wrote."""
    return players_of(text) if text else None


def may_use(circle: Audience, audience: Audience) -> bool:
    """Whether a turn that `audience` hears may tell what `circle` heard."""
    return circle is None or (audience is not None and audience <= circle)
