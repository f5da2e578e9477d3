"""A transcript that is kept: whoever goes on with it remembers the same, and no more."""

from hypothesis import given
from hypothesis import strategies as st

from npc.transcript import Audience, Line, Transcript

AUDIENCES: list[Audience] = [None, frozenset({"ann"}), frozenset({"ann", "bob"}), frozenset({"c"})]


class Shelf:
    """Values in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def take(self) -> dict[str, bytes]:
        return dict(sorted(self.values.items()))

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def drop(self, key: str) -> None:
        del self.values[key]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "answer", "amend"]),
        st.integers(0, 14),
        st.sampled_from(AUDIENCES),
    ),
    max_size=40,
)


def view(transcript: Transcript) -> object:
    told = [[entry.line for entry in transcript.told_to(audience)] for audience in AUDIENCES]
    return told, [transcript.seen_by(player) for player in ("ann", "bob", "c", "d")]


@given(steps=STEPS)
def test_a_transcript_goes_on_from_its_shelf(steps: list[tuple[str, int, Audience]]) -> None:
    shelf = Shelf()
    kept, plain = Transcript(4, 2, shelf), Transcript(4, 2)
    for what, number, audience in steps:
        line = Line(f"m{number}", "player", "ann", "Ann", "mira", f"line {number}", 0, audience)
        for transcript in (kept, plain):
            if what == "amend":
                transcript.amend(line.id, "less", 1)
            else:
                transcript.add(line, f"m{number - 1}" if what == "answer" else None)
        kept = Transcript(4, 2, shelf)  # another process
        assert view(kept) == view(plain)
    lines = sum(len(transcript_lines) for transcript_lines in kept._entries.values())
    assert len(shelf.values) == lines, "what is forgotten is not kept"
