"""A secret's words are in no prompt whose answer somebody hears who may not know it."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npc.dialogue import Dialogue, TurnRequest
from npc.persona import load_persona, read_personas
from npc.relations import Relation
from npc.secrets import Secret
from npc.transcript import Audience
from scenes.conditions import Condition, WorldState
from scenes.document import PackError
from scenes.pack import load_pack
from scenes.reactions import Happening, Reaction, Shift
from tests.npc.stage import MIRA, RecordingEngine, dialogue, line
from tests.scenes.packs import MIRA as MIRA_FILE
from tests.scenes.packs import write_pack

PLAYERS = ("anna", "bob", "carl")
DAY = 24 * 3600 * 1000
KEEPER = replace(
    MIRA,
    reactions=(
        Reaction("gift", "event", ("gift",), shift=Shift(trust=15), per_day=2),
        Reaction("hit", "event", ("hit",), shift=Shift(trust=-25, fear=40)),
        Reaction("locket", "event", ("shows",), (("item", ("locket",)),)),
        Reaction("bell", "event", ("bell",)),
        Reaction("elm", "said", ("elm",), shift=Shift(trust=1)),
    ),
    secrets=(
        Secret("trusted", "SECRET-TRUSTED", (Condition("relation", "trust", (30,)),)),
        Secret("calm", "SECRET-CALM", (Condition("relation", "fear", (0, 39)),), ("locket",)),
        Secret("shown", "SECRET-SHOWN", after=("locket",)),
        Secret("password", "SECRET-PASSWORD", after=("elm",)),
        Secret("rung", "SECRET-RUNG", happened=("bell",)),
        Secret("rainy", "SECRET-RAINY", (Condition("world", "weather", ("rain",)),)),
        Secret("quest", "SECRET-QUEST", (Condition("quests", "robin", ("found",)),)),
    ),
)


@dataclass(frozen=True)
class Step:
    """Something that happens, and a line that is answered after it."""

    who: str
    audience: Audience
    event: str
    private: bool
    password: bool
    days: int


@st.composite
def steps(draw: st.DrawFn) -> Step:
    who = draw(st.sampled_from(PLAYERS))
    circle = draw(st.none() | st.sets(st.sampled_from(PLAYERS)))
    return Step(
        who,
        None if circle is None else frozenset(circle | {who}),
        draw(st.sampled_from(["", "gift", "gift", "gift", "hit", "shows", "bell"])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 1)),
    )


def caused(history: list[Step], player: str, event: str) -> int:
    """How often a player has caused something, told from the script alone."""
    return sum(step.who == player and step.event == event for step in history)


def may_know(history: list[Step], player: str, relation: Relation) -> set[str]:
    """What a player may know, told from the script and the relation alone."""
    known = set()
    if relation.trust >= 30:
        known.add("SECRET-TRUSTED")
    if caused(history, player, "shows"):
        known.add("SECRET-SHOWN")
        if relation.fear < 40:
            known.add("SECRET-CALM")
    if any(step.who == player and step.password for step in history):
        known.add("SECRET-PASSWORD")
    if any(step.event == "bell" and not step.private for step in history):
        known.add("SECRET-RUNG")
    return known


@settings(max_examples=200, deadline=None)
@given(st.lists(steps(), min_size=1, max_size=25))
def test_no_secret_is_in_a_prompt_that_somebody_hears_who_may_not_know_it(
    script: list[Step],
) -> None:
    """The NPC blurts out every secret that its prompt holds, so history must not carry it either.
    What a player was told once, that player may be told again.
    """
    engine = RecordingEngine()
    talk, now = dialogue(engine, KEEPER), 0
    ever: dict[str, set[str]] = {player: set() for player in PLAYERS}
    for number, step in enumerate(script):
        now += step.days * DAY
        if step.event:
            what = Happening("event", step.event, {"item": "locket"})
            talk.feelings.happened(what, step.who, now, private=step.private)
        text = f"[{number}] elm" if step.password else f"[{number}]"
        said = replace(line(text, step.who, audience=step.audience), ts=now)
        request = TurnRequest(f"t{number}", said, step.audience)
        talk.begin(request, print)
        prompt = engine.submitted[-1].text
        history = script[: number + 1]
        for player in PLAYERS:
            ever[player] |= may_know(history, player, talk.feelings.relations.of(player))
        hearers = PLAYERS if step.audience is None else step.audience
        allowed = set.intersection(*(ever[player] for player in hearers))
        if step.audience is None:
            allowed &= {"SECRET-RUNG"}
        told = {secret.text for secret in KEEPER.secrets if secret.text in prompt}
        assert told <= allowed
        talk.commit(request, " ".join(sorted(told)), 1, "completed", now)


def whisper(talk: Dialogue, text: str, *circle: str, state: WorldState | None = None) -> str:
    """What the prompt of the answer to Anna's whisper says."""
    talk.state = state or WorldState()
    said = line(text, "anna", audience=frozenset({"anna", *circle}))
    request = TurnRequest(f"t {text} {circle}", said, said.audience)
    engine = talk._engine
    talk.begin(request, print)
    assert isinstance(engine, RecordingEngine)
    return engine.submitted[-1].text


def test_a_secret_is_told_when_its_time_has_come() -> None:
    talk = dialogue(RecordingEngine(), KEEPER)
    assert "SECRET" not in whisper(talk, "one")
    talk.feelings.happened(Happening("event", "gift"), "anna", 0)
    assert "SECRET" not in whisper(talk, "two")
    talk.feelings.happened(Happening("event", "gift"), "anna", 0)
    assert "(Mira knows: SECRET-TRUSTED)" in whisper(talk, "three")
    assert "(Mira knows: SECRET-RAINY)" in whisper(
        talk, "four", state=WorldState({"weather": "rain"})
    )
    found = WorldState(quests={"robin": "found"})
    assert "(Mira knows: SECRET-QUEST)" in whisper(talk, "five", state=found)


def test_a_password_opens_the_very_answer_to_it() -> None:
    talk = dialogue(RecordingEngine(), KEEPER)
    assert "SECRET-PASSWORD" in whisper(talk, "Elm!")


def test_quests_and_things_of_others_are_not_known_so_nobody_hears_in_a_circle() -> None:
    talk = dialogue(RecordingEngine(), KEEPER)
    found = WorldState(quests={"robin": "found"})
    assert "SECRET-QUEST" not in whisper(talk, "one", "bob", state=found)


def test_in_a_circle_everybody_must_stand_as_the_secret_asks() -> None:
    talk = dialogue(RecordingEngine(), KEEPER)
    stages = {"anna": "found", "bob": "asked"}
    talk.feelings.states = lambda player: WorldState(quests={"robin": stages[player]})
    found = WorldState(quests={"robin": "found"})
    assert "SECRET-QUEST" not in whisper(talk, "one", "bob", state=found)
    stages["bob"] = "found"
    assert "SECRET-QUEST" in whisper(talk, "two", "bob", state=found)


def test_aloud_the_npc_only_knows_that_there_is_something_to_tell() -> None:
    engine = RecordingEngine()
    talk = dialogue(engine, KEEPER)
    talk.feelings.happened(Happening("event", "shows", {"item": "locket"}), "anna", 0)
    talk.begin(TurnRequest("t", line("Well?")), print)
    assert "SECRET" not in engine.submitted[-1].text
    assert "(Mira knows: something to tell Anna when nobody else listens)" in (
        engine.submitted[-1].text
    )
    talk.begin(TurnRequest("u", line("And me?", "bob")), print)
    assert "something to tell" not in engine.submitted[-1].text


def test_secrets_are_read_and_their_mistakes_are_named(tmp_path: Path) -> None:
    text = """\
secrets:
  - id: key
    text: The key is under the stone.
    when:
      relation: {trust: 40, fear: [0, 20]}
    after: [locket]
    happened: [bell]
    priority: 3
reactions:
  - {id: locket, event: shows}
  - {id: bell, event: bell}
"""
    folder = write_pack(tmp_path, mira=MIRA_FILE + text)
    (secret,) = load_persona(folder / "npcs" / "mira.yaml").secrets
    assert secret.after == ("locket",)
    assert secret.happened == ("bell",)
    assert secret.priority == 3
    assert secret.when == (
        Condition("relation", "trust", (40,)),
        Condition("relation", "fear", (0, 20)),
    )
    for old, new, words in (
        (
            "after: [locket]",
            "after: [ring]",
            "neither this NPC nor its scene has a reaction",
        ),
        ("after: [locket]", "after: ['a b']", "must be 1 to 64 of"),
        ("text: The key is under the stone.", "note: x", "is missing"),
    ):
        folder = write_pack(tmp_path, mira=MIRA_FILE + text.replace(old, new))
        with pytest.raises(PackError, match=words):
            list(read_personas(load_pack(folder)))
    bare = "secrets:\n  - {id: key, text: Everybody knows.}\n"
    folder = write_pack(tmp_path, mira=MIRA_FILE + bare)
    with pytest.raises(PackError, match="needs when, after or happened"):
        list(read_personas(load_pack(folder)))
