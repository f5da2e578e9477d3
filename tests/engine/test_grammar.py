"""What a model of pure noise says under a grammar is a text of that grammar, or says it is cut."""

import asyncio
import contextlib
import json
import random
import re
import subprocess
import sys
import threading
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.api import AsyncEngine
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.decoding.compiler import GrammarCompiler
from engine.decoding.constraint import Constraint
from engine.errors import InvalidRequest
from engine.grammar import Grammar
from engine.loop import Engine
from engine.outputs import RequestOutput
from engine.overlap import OverlapEngine
from engine.params import SamplingParams
from engine.request import Request
from engine.scripted import ScriptedModel
from tests.engine.hostile import HOSTILE
from tests.engine.speech import NoisyRunner, byte_tokenizer, gather, make_noisy, run, say
from tests.engine.test_overlap import LaunchingRunner

TOKENIZER = byte_tokenizer()
ENGINE = make_noisy(TOKENIZER)[0]
PERSON = Grammar.json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 4}, "alive": {"type": "boolean"}},
        "required": ["name", "alive"],
        "additionalProperties": False,
    }
)
QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
SEEDS = st.integers(0, 1000)


def reply(grammar: Grammar, seed: int, max_tokens: int = 120, **params: Any) -> RequestOutput:
    return say(ENGINE, SamplingParams(max_tokens=max_tokens, grammar=grammar, seed=seed, **params))


def whole(grammar: Grammar, text: str) -> bool:
    constraint = ENGINE.grammars.constrain(SamplingParams(grammar=grammar))
    assert constraint is not None
    return constraint.is_whole(text)


def check_end(output: RequestOutput, grammar: Grammar) -> None:
    """A reply is complete if and only if it is a text of the grammar; one that ends is complete."""
    assert output.finish in ("stop", "length"), output.error
    if output.finish == "stop":
        assert output.complete
    assert output.complete == whole(grammar, output.text)


# -- grammars of every kind ------------------------------------------------------------------------

_SIMPLE = (
    st.fixed_dictionaries({"type": st.sampled_from(("boolean", "null", "integer", "number"))})
    | st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-2000, 2000),
        st.integers(0, 500),
    )
    | st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(0, 5),
        st.integers(0, 5),
    )
    | st.builds(
        lambda values: {"enum": values},
        st.lists(st.text(max_size=5) | st.integers(-9, 9) | st.none(), min_size=1, max_size=4),
    )
    | st.builds(lambda value: {"const": value}, st.text(max_size=6))
    | st.just({"type": "string", "pattern": "^[a-c]{2}-\\d+$"})
)


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.text(min_size=1, max_size=5)
    return (
        st.builds(
            lambda fields, extra, some: {
                "type": "object",
                "properties": fields,
                "required": sorted(fields)[: some % (len(fields) + 1)],
                "additionalProperties": extra,
            },
            st.dictionaries(keys, inner, max_size=3),
            st.booleans(),
            st.integers(0, 3),
        )
        | st.builds(
            lambda items, low, more: {
                "type": "array",
                "items": items,
                "minItems": low,
                "maxItems": low + more,
            },
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        )
        | st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3))
    )


@QUICK
@given(schema=st.recursive(_SIMPLE, _compound, max_leaves=6), seed=SEEDS)
def test_json_is_valid_under_its_schema(schema: dict[str, Any], seed: int) -> None:
    grammar = Grammar.json_schema(schema)
    output = reply(grammar, seed)
    check_end(output, grammar)
    if output.complete:
        jsonschema.validate(json.loads(output.text), schema)


@QUICK
@given(seed=SEEDS, length=st.integers(1, 60))
def test_a_json_object_that_is_cut_says_so(seed: int, length: int) -> None:
    output = reply(Grammar.json_object(), seed, length)
    check_end(output, Grammar.json_object())
    if output.complete:
        assert isinstance(json.loads(output.text), dict)
    else:
        assert output.finish == "length"
        with pytest.raises(ValueError, match=r"line 1|column"):
            json.loads(output.text)


_PIECE = st.sampled_from(
    ("a", "bc", "é", "日本", "🐈", "[a-f]", "[^a-y]", r"\d", "[α-ω]", "(?:cat|dog)", "(x|yy)*", ".")
)
_REGEX = st.recursive(
    _PIECE,
    lambda inner: (
        st.builds("{}{}".format, inner, inner)
        | st.builds("(?:{}|{})".format, inner, inner)
        | st.builds("(?:{}){}".format, inner, st.sampled_from(("?", "{1,3}", "+", "{2}", "*")))
    ),
    max_leaves=8,
)


@QUICK
@given(pattern=_REGEX, seed=SEEDS)
def test_a_text_matches_its_pattern_from_end_to_end(pattern: str, seed: int) -> None:
    grammar = Grammar.regex(pattern)
    output = reply(grammar, seed, 60)
    check_end(output, grammar)
    if output.complete:
        # Rust's \d is any digit, and its dot stops at \n alone, as in Python.
        assert re.fullmatch(pattern, output.text), output.text


@QUICK
@given(
    options=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
        min_size=1,
        max_size=8,
    ),
    seed=SEEDS,
)
def test_a_choice_is_one_of_its_options(options: list[str], seed: int) -> None:
    output = reply(Grammar.choice(options), seed, 80)
    assert output.finish == "stop"
    assert output.text in options


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ('start: "a" start | "b"', "a*b"),
        ('start: start "a" | "b"', "ba*"),
        ('start: greeting " " NAME "!"\ngreeting: "hi" | "oh"\nNAME: /[A-Z][a-z]{1,3}/', "(hi|oh)"),
        ('start: "é" ("ü" | "🐈")~2..3', "é(ü|🐈){2,3}"),
    ],
)
def test_lark_rules_may_recurse_on_either_side(text: str, pattern: str) -> None:
    grammar = Grammar.lark(text)
    for seed in range(8):
        output = reply(grammar, seed, 40)
        check_end(output, grammar)
        assert output.finish == "length" or re.match(pattern, output.text)


def test_lark_may_hold_a_schema() -> None:
    grammar = Grammar.lark('start: "give " %json {"type": "integer", "minimum": 1, "maximum": 9}')
    assert re.fullmatch("give [1-9]", reply(grammar, 3).text)


# -- what else is asked for ------------------------------------------------------------------------

_EXTRAS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from((0.0, 1e-3, 1.0, 50.0)),
        "top_k": st.sampled_from((1, 3, 400)),
        "top_p": st.sampled_from((1e-9, 0.5)),
        "min_p": st.just(1.0),
        "repetition_penalty": st.sampled_from((0.1, 30.0)),
        "presence_penalty": st.just(2.0),
        "frequency_penalty": st.just(-2.0),
        "logit_bias": st.dictionaries(
            st.integers(0, TOKENIZER.vocab_size - 1), st.sampled_from((-1e30, 1e30)), max_size=9
        ),
        "bad_words": st.lists(st.sampled_from(["{", "}", '"', "a", "true", ":", "1"]), max_size=4),
        "min_tokens": st.integers(0, 60),
        "ignore_eos": st.booleans(),
        "stop": st.lists(st.sampled_from(["}", '"', "a", ". ", "}\n"]), max_size=2),
        "sentence_after": st.integers(0, 5),
        "logprobs": st.integers(0, 3),
    },
)
_GRAMMARS = (
    PERSON,
    Grammar.json_object(),
    Grammar.choice(["true", "a. b", "a.", "}"]),
    Grammar.regex(r"(a|\}|1)+(\. [a-z]+)*"),
)


@settings(QUICK, max_examples=150)
@given(grammar=st.sampled_from(_GRAMMARS), extras=_EXTRAS, seed=SEEDS)
def test_the_grammar_has_the_last_word(grammar: Grammar, extras: dict[str, Any], seed: int) -> None:
    check_end(reply(grammar, seed, 60, **extras), grammar)


def test_bans_that_leave_nothing_are_lifted() -> None:
    grammar = Grammar.choice(["yes", "no"])
    banned = {"bad_words": ["y", "ye", "yes", "n", "no"], "min_tokens": 100}
    assert reply(grammar, 1, 100, **banned).text in ("yes", "no")


def test_bans_are_followed_where_the_grammar_leaves_a_choice() -> None:
    grammar = Grammar.choice(["yes", "no"])
    for seed in range(10):
        assert reply(grammar, seed, bad_words=["y", "ye", "yes"]).text == "no"


def test_a_model_that_finds_everything_impossible_still_answers() -> None:
    engine, runner, _ = make_noisy(TOKENIZER)
    runner.logits = lambda seed, position: np.full(runner._width, -np.inf, np.float32)  # type: ignore[method-assign]
    output = say(engine, SamplingParams(max_tokens=60, grammar=Grammar.choice(["yes"]), seed=1))
    assert output.text == "yes"


def test_ignore_eos_goes_on_as_long_as_the_grammar_does() -> None:
    grammar = Grammar.regex("[ab]{0,30}")
    for seed in range(10):
        free = reply(grammar, seed, 60, logit_bias=dict.fromkeys(TOKENIZER.eos_ids, 1e9))
        assert (free.text, free.finish, free.complete) == ("", "stop", True)
        ignored = reply(grammar, seed, 60, ignore_eos=True)
        assert (len(ignored.text), ignored.finish) == (30, "stop")


def test_a_reply_ends_with_its_last_possible_token() -> None:
    """Nobody has to draw an end-of-sequence token when nothing else is left."""
    output = reply(Grammar.regex("[ab]{3}"), 1, 3)
    assert len(output.token_ids) <= 3
    assert not TOKENIZER.eos_ids.intersection(output.token_ids)
    assert (output.finish, output.complete) == ("stop", True)


def test_a_stop_string_ends_a_reply_only_where_that_is_whole() -> None:
    inside = reply(Grammar.choice(["a|b"]), 1, stop=["|"])
    assert (inside.text, inside.finish) == ("a|b", "stop")
    at_the_end = reply(Grammar.regex(r"a(\|b)?"), 1, stop=["|"], ignore_eos=True)
    assert (at_the_end.text, at_the_end.complete) == ("a", True)


def test_a_sentence_ends_a_reply_only_where_that_is_whole() -> None:
    grammar = Grammar.regex("One\\. Two\\.( Three\\.)*")
    output = reply(grammar, 1, sentence_after=0, ignore_eos=True)
    assert (output.text, output.finish) == ("One. Two.", "stop")


def test_characters_the_tokenizer_cannot_show_alone_are_whole() -> None:
    """Also U+FFFD, which elsewhere stands for half a character."""
    for text in ("\ufffd", "a\ufffd\ufffdb", "é🐈", "\x00\x1f"):
        assert reply(Grammar.choice([text]), 1, 60).text == text


def test_equal_seeds_give_equal_replies_and_samples_differ() -> None:
    texts = [reply(PERSON, seed).text for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_samples_of_a_prompt_have_a_state_each() -> None:
    engine = make_noisy(TOKENIZER)[0]
    first = engine.submit((1, 2, 3), SamplingParams(max_tokens=60, grammar=PERSON, seed=1))
    others = [
        engine.submit(
            (1, 2, 3), SamplingParams(max_tokens=60, grammar=PERSON, seed=seed), sibling=first
        )
        for seed in (2, 3)
    ]
    outputs = run(engine)
    for request, seed in zip((first, *others), (1, 2, 3), strict=True):
        assert gather(outputs, request).text == reply(PERSON, seed, 60).text


# -- in the crowd ----------------------------------------------------------------------------------


class NoisyLauncher(LaunchingRunner, NoisyRunner):
    """Noise one step ahead; replies with a grammar are drawn by the host."""

    def __init__(self, block_size: int, slots: int, most_rows: int) -> None:
        NoisyRunner.__init__(self, TOKENIZER, block_size, slots, most_rows)
        self.under_way: dict[Request, int] = {}
        self.fail_landing = False

    def needs_host(self, request: Request) -> bool:
        return request.constraint is not None

    @property
    def by_host(self) -> Any:
        return [request for request in self.under_way if request.constraint is not None]


def make_launching(blocks: int) -> Engine:
    config = EngineConfig(
        max_num_seqs=4,
        reserved_slots=1,
        max_num_batched_tokens=24,
        min_prefill_tokens=4,
        block_size=4,
    )
    runner = NoisyLauncher(4, blocks * 4, config.max_num_batched_tokens)
    return OverlapEngine(runner, TOKENIZER, BlockPool(blocks, 4), 400, config, clock=lambda: 0.0)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_crowds_parking_and_lost_memory_change_no_reply(seed: int, ahead: bool) -> None:
    """Also not the replies without a grammar beside them."""
    chance = random.Random(seed)
    engine = make_launching(40) if ahead else make_noisy(TOKENIZER, blocks=40)[0]
    wanted: dict[Request, SamplingParams] = {}
    outputs: list[RequestOutput] = []

    def ask(grammar: Grammar | None, tokens: int, priority: int) -> None:
        params = SamplingParams(
            max_tokens=tokens, grammar=grammar, seed=len(wanted), ignore_eos=True
        )
        wanted[engine.submit((1, 2, 3), params, priority=priority)] = params

    for number in range(60):
        if number == 30:  # all slots are taken when somebody comes who goes first
            for _ in range(8):
                ask(None, 40, 1)
            outputs += engine.step() + engine.step() + engine.step()
            ask(PERSON, 40, 0)
            ask(None, 40, 0)
        if chance.random() < 0.5:
            grammar = chance.choice([None, PERSON, *_GRAMMARS])
            ask(grammar, chance.randint(1, 40), chance.choice((0, 1, 1, 2)))
        outputs += engine.step()
    outputs += run(engine)
    assert engine.gauges["parks"] > 0
    for request, params in wanted.items():
        crowded, alone = gather(outputs, request), say(ENGINE, params)
        assert (crowded.text, crowded.finish, crowded.complete, crowded.token_ids) == (
            alone.text,
            alone.finish,
            alone.complete,
            alone.token_ids,
        )


def test_replies_without_a_grammar_touch_none_of_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("push", "begin_mask", "restrict"):
        real = getattr(Constraint, name)

        def counted(self: Constraint, *args: Any, _real: Any = real, _name: str = name) -> Any:
            calls.append(_name)
            return _real(self, *args)

        monkeypatch.setattr(Constraint, name, counted)
    engine = make_noisy(TOKENIZER, max_num_seqs=8)[0]
    free = [
        engine.submit((n, 2), SamplingParams(max_tokens=20, seed=n, ignore_eos=True))
        for n in range(5)
    ]
    held = engine.submit((9, 9), SamplingParams(max_tokens=60, seed=3, grammar=PERSON))
    outputs = run(engine)
    tokens = len(gather(outputs, held).token_ids)
    assert all(len(gather(outputs, request).token_ids) == 20 for request in free)
    assert calls.count("push") == calls.count("restrict") == tokens
    assert calls.count("begin_mask") == tokens - 1


def test_nothing_is_loaded_before_the_first_grammar() -> None:
    engine = make_noisy(TOKENIZER)[0]
    say(engine, SamplingParams(max_tokens=3))
    assert engine.grammars._workers is engine.grammars._vocabulary is None


def test_masks_are_begun_before_the_forward_pass_they_belong_to() -> None:
    engine, runner, _ = make_noisy(TOKENIZER)
    request = engine.submit((1, 2), SamplingParams(max_tokens=9, grammar=PERSON, seed=1))
    begun: list[bool] = []
    forward = runner.run

    def watched(plan: Any) -> Any:
        assert request.constraint is not None
        begun.append(request.constraint._next is not None)
        return forward(plan)

    runner.run = watched  # type: ignore[method-assign]
    run(engine)
    assert begun[0] is False, "the first mask is the grammar's own"
    assert all(begun[1:])


def test_a_reply_that_becomes_too_complex_fails_alone() -> None:
    engine = make_noisy(TOKENIZER)[0]
    other = engine.submit((5, 5), SamplingParams(max_tokens=30, seed=1, ignore_eos=True))
    request = engine.submit((1, 2), SamplingParams(max_tokens=30, seed=1, grammar=PERSON))
    assert request.constraint is not None
    request.constraint._matcher.consume_token(TOKENIZER.vocab_size + 1)  # an error, as at a limit
    outputs = run(engine)
    failed = gather(outputs, request)
    assert (failed.finish, failed.complete) == ("failed", False)
    assert failed.error
    assert len(gather(outputs, other).token_ids) == 30


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Grammar.json_schema("{"), "no JSON"),
        (lambda: Grammar.json_schema("[]"), "JSON object"),
        (lambda: Grammar.json_schema({"const": float("nan")}), "no JSON"),
        (lambda: Grammar.json_schema('{"const": NaN}'), "no JSON"),
        (lambda: Grammar.json_schema({"a": object()}), "no JSON"),
        (lambda: Grammar.json_schema({"x-guidance": {}}), "x-guidance"),
        (lambda: Grammar.json_schema('{"a":' * 99 + "1" + "}" * 99), "nested"),
        (lambda: Grammar.json_schema('{"a":' * 9999 + "1" + "}" * 9999), "nested"),
        (lambda: Grammar.json_schema({"enum": ["x" * 70_000]}), "characters"),
        (lambda: Grammar.json_schema('{"enum": ["\ud800"]}'), "Unicode"),
        (
            lambda: Grammar.json_schema({"allOf": [{"$ref": f"#/{n}"} for n in range(401)]}),
            "refs",
        ),
        (lambda: Grammar.regex(""), "empty"),
        (lambda: Grammar.regex(5), "text"),  # type: ignore[arg-type]
        (lambda: Grammar.regex("\udfff"), "Unicode"),
        (lambda: Grammar.choice("yes"), "several"),
        (lambda: Grammar.choice([]), "non-empty"),
        (lambda: Grammar.choice(["a", ""]), "non-empty"),
        (lambda: Grammar.choice(["a", 1]), "non-empty"),  # type: ignore[list-item]
        (lambda: Grammar.choice(["\udc00"]), "Unicode"),
        (lambda: Grammar.choice(map(str, range(3000))), "options"),
        (lambda: Grammar.lark("start: <think>"), "control tokens"),
        (lambda: Grammar.lark('start[max_tokens=3]: "a"'), "attributes"),
        (lambda: Grammar.lark("\n".join(f'r{n}: "a"' for n in range(401))), "definitions"),
        (lambda: Grammar.lark('start: "open'), "does not end"),
        (lambda: Grammar.lark('start: "a\n<eos>" "b"'), "does not end"),
        (lambda: Grammar.lark("start: /open"), "does not end"),
        (lambda: SamplingParams(grammar="[a-z]"), "grammar"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_grammar_is_refused_when_made(make: Any, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        make()


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (Grammar.json_schema({"type": "object", "if": {}}), "if"),
        (Grammar.json_schema({"not": {"type": "string"}}), "not"),
        (Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (Grammar.json_schema({"type": "array", "contains": {}}), "contains"),
        (Grammar.json_schema({"oneOf": [{"minLength": 1}, {"maxLength": 1}]}), "oneOf"),
        (Grammar.json_schema({"$ref": "https://example.org/s.json"}), "example.org"),
        (Grammar.json_schema({"$ref": "#"}), "no text"),
        (Grammar.json_schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
        (Grammar.json_schema({"enum": ["\ud800"]}), "hex escape"),
        (Grammar.regex("("), "unclosed"),
        (Grammar.regex("(?=a)b"), "look-around"),
        (Grammar.regex(r"(a)\1"), "backreferences"),
        (Grammar.lark("start: missing"), "missing"),
        (Grammar.lark("start: start"), "no text"),
        (Grammar.lark("start: a\na: b\nb: a"), "no text"),
        (Grammar.lark('start: A\nA: A "x"'), "circular"),
    ],
)
def test_what_cannot_be_compiled_is_refused_at_submit(grammar: Grammar, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{grammar.kind} cannot be followed.*{problem}"):
        ENGINE.submit((1,), SamplingParams(grammar=grammar))
    assert not ENGINE.has_work, "nothing was taken"


def test_control_tokens_may_be_spelt_as_text() -> None:
    assert reply(Grammar.lark('start: "<eos>" /<b>/ // not <this>'), 1, 60).text == "<eos><b>"


def test_a_model_without_an_end_refuses_grammars() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.eos_ids = frozenset()
    with pytest.raises(InvalidRequest, match="end-of-sequence"):
        make_noisy(tokenizer)[0].submit((1,), SamplingParams(grammar=PERSON))


def test_compiled_grammars_are_kept_but_not_all() -> None:
    engine = make_noisy(TOKENIZER)[0]
    with engine.grammars.compiling(PERSON) as first, engine.grammars.compiling(PERSON) as again:
        assert first is again
    for number in range(100):
        engine.grammars.check(Grammar.choice([str(number)]))
    assert len(engine.grammars._known) == 64


@given(st.text(max_size=60) | st.sampled_from(['start: "a"', "start: /a", "%json", "start: a~9"]))
@QUICK
def test_any_text_is_a_grammar_or_is_refused(text: str) -> None:
    assume(text)
    for make in (Grammar.regex, Grammar.lark, Grammar.json_schema):
        with contextlib.suppress(InvalidRequest):
            ENGINE.grammars.check(make(text))


def test_hostile_grammars_cost_little_and_crash_nothing() -> None:
    """A crash is native code running out of stack: it would end the whole server."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.hostile"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-2000:]
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == len(HOSTILE)
    for report in reports:
        assert report["seconds"] < 5, report  # a fifth of that was measured on a busy machine
        assert report["fate"] in ("refused", "stop", "length", "failed"), report
    assert reports[-1]["peak_mib"] - reports[0]["peak_mib"] < 600


# -- through the server's face ---------------------------------------------------------------------


def scripted(*replies: str) -> AsyncEngine:
    script = [TOKENIZER.encode(reply) for reply in replies]
    model = ScriptedModel(script, TOKENIZER, None)  # type: ignore[arg-type]
    return AsyncEngine(model, EngineConfig(script_step_ms=0))


async def test_the_event_loop_goes_on_while_a_grammar_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compiler here waits for the loop: were the loop waiting for it, neither would end."""
    may_compile = threading.Event()
    compile_it = GrammarCompiler._compile

    def slow(self: GrammarCompiler, grammar: Grammar) -> Any:
        assert may_compile.wait(20)
        return compile_it(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "_compile", slow)
    engine = scripted("yes")
    await engine.start()
    try:
        outputs: list[RequestOutput] = []

        async def ask() -> None:
            params = SamplingParams(grammar=Grammar.choice(["yes", "no"]))
            async for output in engine.stream((1, 2), params):
                outputs.append(output)

        asking = asyncio.create_task(ask())
        refused = asyncio.create_task(engine.prepare(Grammar.regex("(")))
        await asyncio.sleep(0)
        may_compile.set()
        await asking
        with pytest.raises(InvalidRequest, match="unclosed"):
            await refused
    finally:
        await engine.stop()
    assert "".join(output.text for output in outputs) == "yes"
    assert (outputs[-1].finish, outputs[-1].complete) == ("stop", True)


@pytest.mark.parametrize("all_leave", [False, True])
async def test_whoever_leaves_takes_a_grammar_from_nobody(
    monkeypatch: pytest.MonkeyPatch, all_leave: bool
) -> None:
    """What nobody waits for is not compiled, and whoever asks for it later gets it all the same."""
    compiler_is_free, compiled = threading.Event(), []
    compile_it = GrammarCompiler._compile

    def slow(self: GrammarCompiler, grammar: Grammar) -> Any:
        assert compiler_is_free.wait(20)
        compiled.append(grammar)
        return compile_it(self, grammar)

    monkeypatch.setattr(GrammarCompiler, "_compile", slow)
    engine, other = scripted("yes"), Grammar.choice(["other"])
    before_it = asyncio.create_task(engine.prepare(other))
    leaving, staying = (asyncio.create_task(engine.prepare(PERSON)) for _ in range(2))
    await asyncio.sleep(0)
    for task in [leaving, staying] if all_leave else [leaving]:
        task.cancel()
    await asyncio.wait([leaving])
    compiler_is_free.set()
    await before_it
    if not all_leave:
        await staying
    assert compiled == ([other] if all_leave else [other, PERSON])
    await engine.prepare(PERSON)
    assert compiled == [other, PERSON]


async def test_a_model_that_ignores_the_mask_is_never_called_complete() -> None:
    """Scripted models draw nothing."""
    engine = scripted("yonder")
    await engine.start()
    try:
        params = SamplingParams(max_tokens=20, grammar=Grammar.choice(["yes", "no"]))
        last = [output async for output in engine.stream((1, 2), params)][-1]
    finally:
        await engine.stop()
    assert (last.finish, last.complete) == ("failed", False)
    assert last.error
