"""What comes to mind: only what may be told, the best of it, soon, by either way of searching."""

import sqlite3
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npc.memory.book import Book
from npc.memory.recall import Recall
from npc.memory.records import Memory, Owner, circle_of, circle_text, may_use
from npc.memory.scoring import fades_at, scores, strength
from npc.memory.vectors import HashingVectors
from npc.settings import MemorySettings
from npc.transcript import Audience
from tests.npc.memory.stage import ANNA, START_S, known, memory_settings, spoken

NOW = START_S * 1000
DAY = 86_400_000
VECTORS = HashingVectors()
SETTINGS = memory_settings()


def recalled(
    book: Book,
    text: str = "",
    asker: str = "anna",
    audience: Audience = None,
    now: int = NOW,
    settings: MemorySettings = SETTINGS,
) -> list[str]:
    query = VECTORS.encode([text])[0] if text else None
    recall = Recall(book, settings, VECTORS.name)
    found = recall.about("inn", "mira", asker, audience, query, now)
    return [memory.text for memory in found.memories]


CASES = [
    "My horse Biscuit is hungry.",
    "I lost my ring in the mill.",
    "My sister Lena is ill.",
    "I come from Dunmere.",
    "I hate spiders.",
]


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("How is Lena?", "My sister Lena is ill."),
        ("Did you find a ring?", "I lost my ring in the mill."),
        ("Biscuit!", "My horse Biscuit is hungry."),
        ("DUNMERE is far.", "I come from Dunmere."),
    ],
)
def test_what_fits_the_line_comes_first(asked: str, first: str) -> None:
    book = Book(None, SETTINGS)
    known(book, *CASES)
    assert recalled(book, asked)[0] == first


def test_without_a_vector_what_is_recent_and_important_comes_first() -> None:
    book = Book(None, SETTINGS)
    known(book, "old and small", importance=0.1, ts=NOW - 5 * DAY)
    known(book, "new and small", importance=0.1)
    known(book, "old and large", importance=1.0, ts=NOW - 5 * DAY)
    assert recalled(book) == ["old and large", "new and small", "old and small"]
    assert recalled(book, settings=memory_settings(facts=1)) == ["old and large"]


def test_another_players_words_come_to_mind_where_the_asker_was_there() -> None:
    book = Book(None, SETTINGS)
    bob = Owner("inn", "mira", "bob")
    known(book, "Bob burned the mill.", owner=bob, present=["anna"])
    known(book, "Bob fears the mill.", owner=bob)
    known(book, "I like the mill.")
    assert recalled(book, "the mill") == ["I like the mill.", "Bob burned the mill."]
    assert set(recalled(book, "mill", "bob")) == {"Bob fears the mill.", "Bob burned the mill."}
    assert recalled(book, "the mill", "carl") == []


def test_other_npcs_and_other_running_scenes_know_nothing_of_it() -> None:
    book = Book(None, SETTINGS)
    known(book, "elsewhere", owner=Owner("inn.2", "mira", "anna"))
    known(book, "to harn", owner=Owner("inn", "harn", "anna"))
    assert recalled(book) == []


def test_ids_that_contain_each_other_are_different_people() -> None:
    book = Book(None, SETTINGS)
    known(book, "of ann", owner=Owner("inn", "mira", "ann"), present=["bobby"])
    known(book, "to bobby", circle=frozenset({"anna", "bobby"}))
    assert recalled(book, "", "anna", frozenset({"bob"})) == []
    assert recalled(book, "", "bob", frozenset({"bob"})) == []
    assert recalled(book, "", "ANN") == []


PEOPLE = st.sampled_from(["anna", "bob", "carl"])
CIRCLES = st.none() | st.frozensets(PEOPLE)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(PEOPLE, CIRCLES, st.frozensets(PEOPLE)), max_size=12), PEOPLE, CIRCLES)
def test_only_what_the_whole_audience_may_know_comes_to_mind(
    said: list[tuple[str, Audience, frozenset[str]]], asker: str, audience: Audience
) -> None:
    book = Book(None, SETTINGS)
    wide = memory_settings(facts=32, lines=32)
    expected = set()
    for number, (player, others, present) in enumerate(said):
        circle = None if others is None else others | {player}
        text = f"{number} was said"
        known(book, text, owner=Owner("inn", "mira", player), circle=circle, present=[*present])
        heard = {player} | (present if circle is None else circle)
        if may_use(circle, audience) and asker in heard:
            expected.add(text)
    for query in ("", "was said"):
        found = recalled(book, query, asker, audience, settings=wide)
        assert set(found) == expected
    recall = Recall(book, wide, VECTORS.name)
    lines = recall.about("inn", "mira", asker, audience, None, NOW).lines
    for line in lines:
        assert line.owner.player == asker and may_use(line.circle, audience)
    book.close()


@given(CIRCLES, CIRCLES)
def test_circles_survive_the_file_and_are_told_to_nobody_else(
    circle: Audience, a: Audience
) -> None:
    assert circle_of(circle_text(circle)) == circle
    if circle is not None and may_use(circle, a):
        assert a is not None and all(player in circle for player in a)


def test_what_another_embedder_made_counts_as_unknown() -> None:
    class Other(HashingVectors):
        name = "other"

    book = Book(None, SETTINGS)
    known(book, "My ring.", vectors=Other(), importance=0.1)
    known(book, "My spoon.", importance=0.2)
    assert recalled(book, "My ring.") == ["My spoon.", "My ring."]
    ids = [id for id, _ in book.without_vectors(VECTORS.name, 9)]
    assert len(ids) == 1
    book.set_vectors(ids, VECTORS.encode(["My ring."]), VECTORS.name)
    assert book.without_vectors(VECTORS.name, 9) == []
    assert recalled(book, "My ring.") == ["My ring.", "My spoon."]


def test_ten_thousand_memories_are_searched_in_a_moment() -> None:
    book = Book(None, SETTINGS)
    texts = [f"I met number {n} at the ford of {n * 7919 % 10_007}." for n in range(10_000)]
    with book.change() as database:
        rows = VECTORS.encode(texts)
        database.executemany(
            "INSERT INTO memories (stream, npc, player, circle, kind, name, text, importance, ts, "
            "present, vector, vectors) VALUES ('inn', 'mira', 'anna', '', 'fact', 'Anna', ?, 0.5, "
            "?, ',anna,', ?, ?)",
            [
                (text, NOW, row.tobytes(), VECTORS.name)
                for text, row in zip(texts, rows, strict=True)
            ],
        )
    recalled(book, "warm")
    start = time.process_time()
    found = recalled(book, texts[4321])
    seconds = time.process_time() - start
    print(f"{len(texts)} memories in {seconds * 1000:.0f} ms by {book.searches_by}")
    assert found[0] == texts[4321]
    assert seconds < 0.5


def test_sqlite_vec_and_numpy_find_the_same() -> None:
    """Where this Python can load extensions; else numpy is all there is, and the book says why."""
    book = Book(None, SETTINGS)
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        assert book.searches_by.startswith("numpy: the sqlite3 of this Python")
        pytest.skip("this Python's sqlite3 loads no extensions")
    if not book.sqlite_vec:
        pytest.skip(book.searches_by)
    known(book, *CASES, "?!")
    for text in [*CASES, "Lena rides Biscuit to Dunmere", "nothing of all this"]:
        by_sqlite = recalled(book, text)
        book.sqlite_vec = False
        assert recalled(book, text) == by_sqlite
        book.sqlite_vec = True


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 400), st.integers(0, 400))
def test_memories_fade_and_important_ones_slower(a: float, b: float, day: int, more: int) -> None:
    plain = MemorySettings()
    low, high = sorted([a, b])
    now, later = day * DAY, (day + more) * DAY
    assert 0 <= strength(low, later, plain) <= strength(low, now, plain) <= 1
    assert strength(low, now, plain) <= strength(high, now, plain) + 1e-12
    fades = fades_at(a, NOW, plain)
    assert fades is not None
    assert strength(a, fades - NOW - 1000, plain) >= plain.faded
    assert strength(a, fades - NOW + 1000, plain) <= plain.faded
    assert fades_at(a, NOW, MemorySettings(faded=0.0)) is None


def test_the_half_lives_are_those_of_the_settings() -> None:
    plain = MemorySettings(half_life_days=2.0, strong_half_life_days=50.0)
    assert strength(0.0, 2 * DAY, plain) == pytest.approx(0.5)
    assert strength(1.0, 50 * DAY, plain) == pytest.approx(0.5)
    assert strength(1.0, -DAY, plain) == 1.0  # a clock that was set back


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 99)), min_size=1))
def test_what_is_no_worse_in_anything_scores_no_less(rows: list[tuple[float, float, int]]) -> None:
    plain = MemorySettings()
    importance, relevance, days = zip(*rows, strict=True)
    ages = [day * DAY for day in days]
    base = scores(importance, ages, relevance, [True] * len(rows), plain)
    for better in (
        scores([min(i + 0.1, 1) for i in importance], ages, relevance, [True] * len(rows), plain),
        scores(importance, [age / 2 for age in ages], relevance, [True] * len(rows), plain),
        scores(importance, ages, [r + 0.1 for r in relevance], [True] * len(rows), plain),
    ):
        assert np.all(better >= base - 1e-12)
    assert np.all(base >= scores(importance, ages, relevance, [False] * len(rows), plain))


@given(st.lists(st.text(max_size=60), max_size=8))
def test_hashing_vectors_have_length_one_or_nothing_to_say(texts: list[str]) -> None:
    vectors = VECTORS.encode(texts)
    assert vectors.shape == (len(texts), VECTORS.DIM) and vectors.dtype == np.float32
    lengths = np.linalg.norm(vectors, axis=1)
    assert np.all((lengths == 0) | (np.abs(lengths - 1) < 1e-4))


def test_the_latest_lines_come_with_it() -> None:
    book = Book(None, SETTINGS)
    book.write([spoken(f"line {n}", ts=NOW + n) for n in range(9)])
    book.write([spoken("whisper", circle=frozenset({"anna", "bob"}))])
    book.write([spoken("of bob", Owner("inn", "mira", "bob"))])
    recall = Recall(book, SETTINGS, VECTORS.name)
    public = recall.about("inn", "mira", "anna", None, None, NOW).lines
    assert [line.text for line in public] == [f"line {n}" for n in range(5, 9)]
    private = recall.about("inn", "mira", "anna", frozenset({"anna"}), None, NOW).lines
    assert [line.text for line in private][-1] == "whisper"
    assert all(line.owner == ANNA for line in private)


def test_a_summary_is_of_one_player_and_one_circle() -> None:
    book = Book(None, SETTINGS)
    circle = frozenset({"anna", "bob"})
    for owner, heard_by, text in (
        (ANNA, None, "Of public talk."),
        (ANNA, circle, "Of whispers."),
        (Owner("inn", "mira", "bob"), None, "Of Bob's talk."),
    ):
        known(book, f"fact {text}", owner=owner, circle=heard_by, present=["anna", "bob"])
        with book.change() as database:
            database.execute(
                "UPDATE memories SET kind='summary', text=? WHERE text=?", (text, f"fact {text}")
            )
    assert recalled(book) == ["Of public talk."]
    assert set(recalled(book, "", "anna", circle)) == {"Of public talk.", "Of whispers."}
    assert recalled(book, "", "anna", frozenset({"anna", "carl"})) == ["Of public talk."]
    assert all(isinstance(memory, Memory) for memory in book.memories("1", ()))
