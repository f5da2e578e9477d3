"""How NPCs speak and how much they remember, each setting with the reason for its default."""

from typing import Annotated, Literal

import msgspec

from npc.priority import Priorities

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=0, le=2)]


class FeelingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What NPCs feel, and how much of it they tell."""

    #: Most tokens of mood, relation and secrets in one turn; only NPCs with any of these need them.
    tokens: Count = 160
    #: Players one NPC has a relation to; beyond, those whose relation changed last are kept.
    players: Count = 10_000
    #: Whether the model judges after each turn what it has changed between NPC and player, in a
    #: request of its own behind all others. Off: it costs about as much as a short reply.
    judge: bool = False
    #: How far one judgement moves trust, affection and fear at most, and how far all of a day move
    #: each: enough to notice, too little to be talked into anything.
    judge_step: Annotated[int, msgspec.Meta(ge=1, le=100)] = 2
    judge_per_day: Annotated[int, msgspec.Meta(ge=1, le=200)] = 10
    #: How much one judgement stirs a mood.
    judge_mood: Share = 0.4

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        if self.judge_step > self.judge_per_day:
            raise ValueError(
                f"judge_step must not be above judge_per_day ({self.judge_per_day}), as "
                f"{self.judge_step} is"
            )


class ReplySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `replies:` section of the config file. Sampling suits the default model, of 135 million
    parameters; a larger one takes more freedom well.
    """

    #: Longest reply in tokens: some seconds of speech, and small models ramble after that.
    max_tokens: Count = 60
    #: From here on a reply ends with its sentence. The first two sentences of a small model are
    #: its best, and what it says after them drifts out of character.
    sentence_after: Annotated[int, msgspec.Meta(ge=0)] = 12
    #: Low, because a small model leaves its character as soon as it is free to.
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.3
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 40
    top_p: Share = 0.95
    #: Drops the long tail of unlikely words, of which one is enough to derail a sentence.
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    #: Counts the prompt too, lore included: above 1 an NPC avoids the very names it should say.
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    #: These two count the reply alone, and keep a small model from going round in circles.
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.3
    #: So many words in a row are not taken from the NPC's latest replies; 0 allows it. Without this
    #: a small model finds one good line and never says another, whatever it is asked.
    repeat_words: Annotated[int, msgspec.Meta(ge=0)] = 3
    #: How many of its replies are kept from being repeated.
    repeat_replies: Annotated[int, msgspec.Meta(ge=0, le=16)] = 4
    #: Speech is one paragraph; what small models write after it is lists and other speakers.
    #: The names of others present always end a reply.
    stop: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ("\n",)
    #: Examples told again because they are close to the line. Costs some 30 tokens each and turn,
    #: and makes the default model twice as likely to answer with the right fact.
    recalled_examples: Annotated[int, msgspec.Meta(ge=0, le=8)] = 2
    #: Lore that comes to mind in one turn, where neither scene nor NPC says another number. It is
    #: read anew in every turn it is told, and a small model loses the line behind much more.
    lore_tokens: Count = 200
    #: How many of the last lines are searched for its keys, the newest included.
    lore_lines: Annotated[int, msgspec.Meta(ge=1, le=32)] = 3
    #: Added to the logit of the bracket that opens an action, where any is open. A small model
    #: hesitates: with 1.5 the default one acts on 5 or 6 of 8 lines that ask for it and on none
    #: of 36 others, with 0 on 1 to 4 of 8, and with 2.5 on some that do not ask. No other model was
    #: measured.
    act_bias: Annotated[float, msgspec.Meta(ge=-100, le=100)] = 1.5
    #: Longest line in tokens.
    line_tokens: Count = 1500
    #: Most tokens of earlier talk in a prompt; older turns are left out of it.
    history_tokens: Count = 1024
    #: What is kept when that is full. Cutting rarely and much leaves the beginning of the prompt
    #: the same for many turns, so that the engine finds it in its cache.
    history_kept: Share = 0.5
    #: Lines of one audience that an NPC of a running scene remembers at most.
    transcript_lines: Count = 400
    #: Whispering circles whose lines it remembers at most.
    circles: Count = 64
    #: How long a line waits for what it brings to mind; later, what came to mind before is used.
    #: The sentence model takes 8 ms for a short line. A quest-giver waits at a player's first line
    #: only, and never for vectors.
    notes_wait_ms: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 25
    #: Moods, relations and secrets.
    feelings: FeelingSettings = FeelingSettings()
    #: Whose words are computed first.
    priorities: Priorities = Priorities()
    #: Whether that follows quests: an NPC is as urgent as a quest-giver to players for whom it has
    #: a quest that has not ended, and to nobody else. Off, because a quest-giver's first word
    #: matters to newcomers, too.
    urgent_by_quest: bool = False


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `memory:` section of the config file: what NPCs remember over days."""

    #: Whether they do at all. What was said in a running scene is known there in any case.
    enabled: bool = True
    #: What makes vectors: "sentence" (all-MiniLM-L6-v2, fetched once, 91 MB), "hashing" (finds
    #: shared words only), or "auto": the sentence model if it lies in the data folder already.
    vectors: Literal["auto", "sentence", "hashing"] = "auto"
    #: Tokens of memory in one turn. They are read anew in each; a small model loses the line behind
    #: more.
    tokens: Annotated[int, msgspec.Meta(ge=0)] = 160
    #: Facts that may come to mind at one line, and the latest lines that are told again after a
    #: restart, or when the talk that the prompt holds no longer has them.
    facts: Annotated[int, msgspec.Meta(ge=0, le=32)] = 4
    lines: Annotated[int, msgspec.Meta(ge=0, le=32)] = 4
    #: Days in which a memory of importance 0, and one of importance 1, loses half its strength.
    half_life_days: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    strong_half_life_days: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    #: A memory weaker than this is forgotten: small talk after a week, what matters in half a year.
    faded: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.01
    #: What recency and importance count beside relevance, which is some 0.5 for what fits and 0.1
    #: for what does not: they decide only among the rest.
    recency_weight: Annotated[float, msgspec.Meta(ge=0)] = 0.2
    importance_weight: Annotated[float, msgspec.Meta(ge=0)] = 0.2
    #: Facts that an NPC keeps of one player and circle, and of all players together. The weakest
    #: make room, so that remembering never ends with "full".
    facts_per_player: Count = 200
    facts_per_npc: Count = 10_000
    #: Lines that are kept of one player and circle.
    lines_per_player: Count = 200
    #: Facts and a summary are made of a talk after so many lines, or once it has been quiet for so
    #: many seconds.
    distil_lines: Annotated[int, msgspec.Meta(ge=2, le=64)] = 16
    distil_quiet_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    #: By the served model, where it is useful, or by rules alone.
    distil_by: Literal["model", "rules"] = "model"
    #: Tokens that the model may read and write for it, how long it may take, and the pause before
    #: the next: one talk at a time, after everybody who waits for a reply.
    distil_prompt_tokens: Count = 700
    distil_tokens: Count = 200
    distil_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    distil_pause_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    #: Changes that may wait for the file. If a disk hangs longer, the oldest are lost, and counted.
    waiting_changes: Count = 10_000
