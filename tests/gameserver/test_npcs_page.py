"""What docs/npcs.md shows is what happens."""

import re
from pathlib import Path

import msgspec
import pytest

from gameserver.settings import Settings
from npc.dialogue import Dialogue, TurnRequest
from npc.persona import Persona, read_personas
from npc.settings import FeelingSettings, ReplySettings
from scenes.pack import load_pack
from scenes.reactions import MOODS, Happening
from tests.npc.stage import RecordingEngine, dialogue, line
from tests.scenes.packs import MIRA, SCENE, write_pack

PAGE = (Path(__file__).parents[2] / "docs" / "npcs.md").read_text("utf-8")
DOOR = "entities:\n  - id: front_door\n    keys: {open: false}\n"
#: One byte is one token here.
ROOMY = ReplySettings(feelings=FeelingSettings(tokens=800))
RULES, JUDGED, SECRETS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[:3]


@pytest.fixture
def mira(tmp_path: Path) -> Persona:
    pack = load_pack(write_pack(tmp_path, scene=SCENE + DOOR, mira=MIRA + RULES + SECRETS))
    return next(read_personas(pack))


def answer(talk: Dialogue, text: str, *, aloud: bool = False) -> str:
    """The prompt of the answer to Ada's line."""
    said = line(text, "ada", audience=None if aloud else frozenset({"ada"}))
    talk.begin(TurnRequest(text, said, said.audience), print)
    engine = talk._engine
    assert isinstance(engine, RecordingEngine)
    return engine.submitted[-1].text


def test_the_page_names_every_mood() -> None:
    comment = re.sub(r"[#\n ]+", " ", RULES.partition("resting: content")[2].partition("half")[0])
    assert comment.replace(" or ", ", ").strip(" .").split(", ") == [*MOODS]


def test_the_rules_of_the_page_move_what_it_says(mira: Persona) -> None:
    talk = dialogue(RecordingEngine(), mira, ROOMY)
    shown = Happening("event", "shows", {"item": "whistle", "npc": "mira"})
    talk.feelings.happened(shown, "ada", 0)
    assert "(Mira feels: sad, trustful of Ada)" in answer(talk, "Look at this.")
    talk.feelings.happened(Happening("action", "trade", {"ok": True, "item": "pie"}), "ada", 0)
    talk.feelings.happened(Happening("quest", "light_in_the_mill", {"stage": "home"}), "ada", 0)
    relation = talk.feelings.relations.of("ada")
    assert (relation.trust, relation.affection, relation.fear) == (55, 5, 0)
    assert talk.feelings.relations.of("bob").trust == -10


def test_the_secrets_of_the_page_are_told_as_it_says(mira: Persona) -> None:
    ledger, key, bell = (secret.text for secret in mira.secrets)
    talk = dialogue(RecordingEngine(), mira, ROOMY)
    assert not any(text in answer(talk, "Well?") for text in (ledger, key, bell))
    talk.feelings.happened(Happening("event", "shows", {"item": "whistle"}), "ada", 0)
    assert key in (prompt := answer(talk, "And now?"))
    assert ledger not in prompt
    talk.feelings.happened(Happening("event", "bell_rings"), None, 0)
    talk.feelings.happened(
        Happening("quest", "light_in_the_mill", {"stage": "home"}), "ada", 0, private=True
    )
    assert all(text in answer(talk, "And then?") for text in (ledger, key, bell))
    prompt = answer(talk, "Tell us all.", aloud=True)
    assert bell in prompt
    assert ledger not in prompt
    assert key not in prompt


def test_the_settings_of_the_page_are_the_defaults_but_for_the_switch(tmp_path: Path) -> None:
    (tmp_path / "troupe.yaml").write_text(JUDGED)
    feelings = Settings.load(tmp_path / "troupe.yaml").replies.feelings
    assert feelings.judge
    assert msgspec.structs.replace(feelings, judge=False) == Settings().replies.feelings
