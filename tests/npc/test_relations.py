"""Relations never leave their bounds, players do not disturb each other, and a day has limits."""

from hypothesis import given
from hypothesis import strategies as st

from npc.relations import AXES, Change, Relation, Relations
from scenes.reactions import MOST, Reaction, Shift

DAY = 24 * 3600 * 1000
STEPS = st.integers(-MOST, MOST)
SHIFTS = st.builds(Shift, STEPS, STEPS, STEPS)
REACTIONS = st.builds(
    Reaction,
    st.sampled_from("abc"),
    st.just("event"),
    st.just(("x",)),
    shift=SHIFTS,
    per_day=st.integers(1, 3),
)
PLAYERS = st.sampled_from(["ada", "bob"])
CAUSED = st.lists(st.tuples(PLAYERS, st.lists(REACTIONS, max_size=3), st.integers(0, 3 * DAY)))
JUDGED = st.lists(st.tuples(SHIFTS, st.integers(0, 3 * DAY)))


def within_bounds(relation: Relation) -> bool:
    return (
        abs(relation.trust) <= MOST
        and abs(relation.affection) <= MOST
        and 0 <= relation.fear <= MOST
    )


@given(CAUSED, JUDGED)
def test_no_relation_leaves_its_bounds(
    caused: list[tuple[str, list[Reaction], int]], judged: list[tuple[Shift, int]]
) -> None:
    relations = Relations(10)
    for player, reactions, now in caused:
        relations.react(player, reactions, now)
    for shift, now in judged:
        relations.judge("ada", shift, 50, now)
    assert within_bounds(relations.of("ada"))
    assert within_bounds(relations.of("bob"))


@given(st.permutations([Shift(60), Shift(60), Shift(-50, 3), Shift(-80, 90), Shift(20, 40)]))
def test_reactions_to_one_thing_may_stand_in_any_order_even_at_the_bounds(
    order: list[Shift],
) -> None:
    relations = Relations(10)
    relations.react("ada", [Reaction(str(s), "event", ("x",), shift=s) for s in order], 0)
    assert relations.of("ada") == Relation(10, MOST, 0)


@given(CAUSED)
def test_what_one_player_does_changes_nothing_between_the_npc_and_another(
    caused: list[tuple[str, list[Reaction], int]],
) -> None:
    everybody, only_ada = Relations(10), Relations(10)
    for player, reactions, now in caused:
        everybody.react(player, everybody.open(player, reactions, now), now)
        if player == "ada":
            only_ada.react(player, only_ada.open(player, reactions, now), now)
    assert everybody.of("ada") == only_ada.of("ada")
    assert everybody.caused("ada") == only_ada.caused("ada")
    assert everybody.history("ada") == only_ada.history("ada")


@given(st.lists(st.integers(0, 4 * DAY), max_size=60))
def test_a_reaction_is_caused_so_many_times_a_day_even_if_the_clock_runs_backwards(
    times: list[int],
) -> None:
    flattery = Reaction("flattery", "said", ("fair",), shift=Shift(affection=1), per_day=3)
    relations = Relations(10)
    for now in times:
        relations.react("ada", relations.open("ada", [flattery], now), now)
    days = len({now // DAY for now in times})
    assert relations.of("ada").affection <= 3 * days
    if times:
        assert relations.of("ada").affection >= min(len(times), 3)


@given(JUDGED)
def test_judgements_move_nothing_by_more_than_the_day_allows(
    judged: list[tuple[Shift, int]],
) -> None:
    relations = Relations(10)
    for shift, now in judged:
        relations.judge("ada", shift, 7, now)
    days = len({now // DAY for _, now in judged})
    assert all(abs(getattr(relations.of("ada"), axis)) <= 7 * days for axis in AXES)


@given(CAUSED, JUDGED, st.integers(0, 4 * DAY))
def test_a_snapshot_brings_back_relations_and_what_is_left_of_the_day(
    caused: list[tuple[str, list[Reaction], int]], judged: list[tuple[Shift, int]], now: int
) -> None:
    first, second = Relations(10), Relations(10)
    for player, reactions, at in caused:
        first.react(player, reactions, at)
    for shift, at in judged:
        first.judge("ada", shift, 50, at)
    second.restore(first.snapshot())
    assert second.snapshot() == first.snapshot()
    again = [Reaction(name, "event", ("x",), shift=Shift(1), per_day=2) for name in "abc"]
    for player in ("ada", "bob"):
        assert second.open(player, again, now) == first.open(player, again, now)
    first.judge("ada", Shift(30), 40, now)
    second.judge("ada", Shift(30), 40, now)
    assert second.of("ada") == first.of("ada")


def test_the_ones_that_changed_last_are_kept_and_a_forgotten_player_is_a_stranger() -> None:
    relations = Relations(2)
    relations.stranger = Relation(5)
    for player in ("ada", "bob", "ada", "carl"):
        relations.react(player, [Reaction("a", "event", ("x",), shift=Shift(10))], 0)
    assert [*relations] == ["ada", "carl"]
    assert relations.of("bob") == Relation(5)
    relations.forget("ada")
    assert relations.of("ada") == Relation(5)
    assert not relations.caused("ada")
    assert len(relations) == 1


def test_the_history_begins_with_what_was_before_the_first_change() -> None:
    relations = Relations(2)
    hit = Reaction("hit", "event", ("x",), shift=Shift(-10), per_day=100)
    relations.react("ada", [hit], 7)
    relations.react("ada", [Reaction("nod", "event", ("x",))], 8)
    assert relations.history("ada") == (Change(7, Relation()), Change(7, Relation(-10)))
    for now in range(200):
        relations.react("ada", [hit], now)
    assert len(relations.history("ada")) <= 64


def test_strong_feelings_are_told_in_strong_words_and_weak_ones_are_not() -> None:
    assert Relation(24, -24, 24).told("Ada") == []
    assert Relation(25, -25, 25).told("Ada") == [
        "trustful of Ada",
        "cold towards Ada",
        "afraid of Ada",
    ]
    assert Relation(-25, 25).told("Ada") == ["wary of Ada", "fond of Ada"]
    assert Relation(-60, 60, 60).told("Ada") == [
        "sure that Ada lies",
        "full of love for Ada",
        "terrified of Ada",
    ]
