"""Answers outlive the process; what is stored for that tells nothing of what was said."""

import hashlib
import itertools

import pytest

from gameserver.messages import Ack
from gameserver.protocol import Refusal, encode
from gameserver.receipts import Receipts

BODY = b'["say","inn",{"npc":"mira","text":"4111 1111 1111 1111"}]'
ANSWER = encode("ack", Ack(), re=7)


class Drawer:
    """A shelf in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def take(self) -> dict[str, bytes]:
        return dict(self.values)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def drop(self, key: str) -> None:
        del self.values[key]


def test_the_right_token_opens_the_answers_again_each_time_under_a_new_one() -> None:
    drawer = Drawer()
    receipts = Receipts(9, 9_999, drawer)
    receipts.keep(7, BODY, ANSWER)
    for token, following in itertools.pairwise(["first", "second", "third"]):
        sealed = receipts.seal(token)
        receipts = Receipts(9, 9_999, drawer)
        receipts.unseal(sealed, token)
        known = receipts.recall(7, BODY)
        assert known is not None
        assert known.json == ANSWER.json
        assert receipts.seal(following) != sealed


def test_without_the_token_a_stored_digest_fits_no_guess() -> None:
    """Neither by itself, nor under anything else that lies in the store."""
    drawer = Drawer()
    receipts = Receipts(9, 9_999, drawer)
    receipts.keep(7, BODY, ANSWER)
    sealed, token_hash = receipts.seal("token"), hashlib.sha256(b"token").digest()
    (stored,) = drawer.values.values()
    for key in (b"", sealed, token_hash):
        for size in (16, 32, 64):
            assert hashlib.blake2b(BODY, digest_size=size, key=key).digest() not in stored
    other = Receipts(9, 9_999, Drawer())
    with pytest.raises(Refusal, match="another command"):
        Receipts(9, 9_999, drawer).recall(7, BODY)
    other.unseal(sealed, "guess")
    assert other.seal("token") != sealed


def test_the_same_words_look_different_in_each_session() -> None:
    drawers = Drawer(), Drawer()
    for drawer in drawers:
        Receipts(9, 9_999, drawer).keep(7, BODY, ANSWER)
    assert drawers[0].values != drawers[1].values
