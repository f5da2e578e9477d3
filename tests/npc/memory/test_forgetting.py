"""Whoever wants to be forgotten is: in all tables, to the last byte, and where they were quoted."""

from pathlib import Path

from npc.memory.book import Book
from npc.memory.forgetting import export, forget
from npc.memory.inspection import known as whom
from npc.memory.inspection import seen
from npc.memory.records import Draft, Owner
from npc.memory.vectors import HashingVectors
from tests.npc.memory.stage import ANNA, START_S, known, memory_settings, spoken

NOW = START_S * 1000
BOB = Owner("inn", "mira", "bob")
SETTINGS = memory_settings(lines_per_player=10_000)
SECRET = "The xylophone of Quetzalcoatl is buried under the old juniper"


def bytes_of(path: Path) -> bytes:
    """The file and whatever lies beside it."""
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


def test_no_byte_of_a_forgotten_players_text_is_left(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite3"
    book = Book(path, SETTINGS)
    for number in range(200):
        book.write([spoken(f"{SECRET} {number}.", id=f"a{number}")])
        book.write([spoken(f"Bob's line {number}.", BOB, id=f"b{number}")])
    talk = book.due(NOW)
    assert talk is not None
    vector = HashingVectors().encode([SECRET])[0].tobytes()
    fact = Draft(SECRET, 0.9, NOW, frozenset(["anna", "bob"]))
    assert book.keep(talk, [(fact, vector)], Draft(SECRET, 1.0, NOW, frozenset()), "hashing-1")
    quoted = spoken(f"Anna told me: {SECRET.lower()}!", BOB, id="t1", own=True, present=["anna"])
    unquoted = spoken("I dig in the garden.", BOB, id="t2", own=True, present=["anna"])
    circle = frozenset({"anna", "bob"})
    book.write([quoted, unquoted, spoken("Hush.", BOB, id="w", circle=circle)])
    assert SECRET.encode() in bytes_of(path) and vector in bytes_of(path)
    forget(book, "anna")
    book.database.execute("SELECT 1").fetchone()
    for left in (bytes_of(path), _closed(book, path)):
        for start in range(len(SECRET) - 8):
            assert SECRET[start : start + 9].encode() not in left
        assert b"anna" not in left and b"Anna" not in left and vector[:64] not in left
    again = Book(path, SETTINGS)
    kept = again.lines("1", ())
    assert len(kept) == 202
    assert [line.text for line in kept[-2:]] == ["I dig in the garden.", "Hush."]
    assert kept[-1].circle == {"bob"} and kept[-2].present == {"bob"}
    again.close()


def _closed(book: Book, path: Path) -> bytes:
    book.close()
    return bytes_of(path)


def test_one_npc_forgets_and_others_do_not() -> None:
    book = Book(None, SETTINGS)
    harn = Owner("inn", "harn", "anna")
    for owner in (ANNA, harn, Owner("inn.2", "mira", "anna"), BOB):
        known(book, f"of {owner.npc} {owner.player}", owner=owner, present=["anna"])
    assert forget(book, "anna", "mira") == 4
    left = {memory.owner for memory in book.memories("1", ())}
    assert left == {harn, BOB}
    assert "anna" in book.memories("player='bob'", ())[0].present


def test_an_export_has_all_of_a_player_and_nothing_of_others() -> None:
    book = Book(None, SETTINGS)
    known(book, "I like rain.", present=["bob"])
    known(book, "I like snow.", owner=BOB)
    book.write([spoken("psst", circle=frozenset({"anna"}), ts=NOW + 1)])
    found = export(book, "anna")
    assert found["memories"] == [
        {
            "id": 1,
            "scene": "inn",
            "npc": "mira",
            "kind": "fact",
            "name": "Anna",
            "text": "I like rain.",
            "importance": 0.5,
            "ts": NOW,
            "heard_by": None,
            "present": ["anna", "bob"],
        }
    ]
    lines = found["lines"]
    assert isinstance(lines, list)
    assert [(line["text"], line["heard_by"]) for line in lines] == [
        ("I like rain.", None),
        ("psst", ["anna"]),
    ]
    assert export(book, "nobody") == {
        "version": 1,
        "player": "nobody",
        "lines": [],
        "memories": [],
    }


def test_people_see_whom_an_npc_remembers_and_why() -> None:
    book = Book(None, SETTINGS)
    vectors = HashingVectors()
    known(book, "My horse is called Biscuit.", importance=0.8, ts=NOW)
    known(book, "It rains.", importance=0.1, ts=NOW - 86_400_000)
    known(book, "Of Bob.", owner=BOB, ts=NOW + 5)
    first, second = whom(book)
    assert (first.player, first.facts, first.lines, first.last) == ("bob", 1, 1, NOW + 5)
    assert (second.player, second.name, second.facts, second.lines) == ("anna", "Anna", 2, 2)
    query = vectors.encode(["the rains"])[0]
    rain, horse = seen(book, SETTINGS, "mira", "anna", query, vectors.name, NOW)
    assert rain.text == "It rains." and rain.relevance > 0.5 > horse.relevance
    assert rain.strength < horse.strength <= 1
    plain = seen(book, SETTINGS, "mira", "anna", None, vectors.name, NOW)
    assert [memory.text for memory in plain] == ["My horse is called Biscuit.", "It rains."]
