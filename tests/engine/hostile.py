"""Grammars made to exhaust whoever compiles them. Run as a program, so that a crash is seen.

Prints, for each: its name, what became of it, and the most seconds that compiling it or one of its
masks took.
"""

import json
import resource
import sys
import time

from engine.errors import InvalidRequest
from engine.grammar import MAX_DEFINITIONS, MAX_SOURCE, Grammar
from engine.params import SamplingParams
from tests.engine.speech import byte_tokenizer, make_noisy

_N = MAX_DEFINITIONS - 2


def _chain(name: str, line: str) -> Grammar:
    """Definitions that each lead to the next."""
    lines = [line.format(f"{name}{n}", f"{name}{n + 1}") for n in range(_N)]
    return Grammar.lark("\n".join([f"start: {name}0", *lines, f'{name}{_N}: "a"']))


def _references(body: str, count: int = _N) -> Grammar:
    """Schemas that each refer to the next; `body` has one hole for the name."""
    chain = {f"d{n}": json.loads(body % f"#/$defs/d{n + 1}") for n in range(count)}
    return Grammar.json_schema({"$defs": {**chain, f"d{count}": {"type": "string"}}, **chain["d0"]})


def _nested(levels: int) -> str:
    return '{"allOf":[' * levels + '{"$ref":"%s"}' + "]}" * levels


HOSTILE = {
    "parentheses": lambda: Grammar.regex("(" * 32_000 + "a" + ")" * 32_000),
    "groups": lambda: Grammar.regex("(?:" * 200 + "a" + ")*" * 200),
    "stars": lambda: Grammar.regex("a" + "*" * 60_000),
    "plus of plus": lambda: Grammar.regex("((a+)+)+b"),
    "repetitions": lambda: Grammar.regex("((a{1000}){1000}){1000}"),
    "long repetition": lambda: Grammar.regex("a{1000000}"),
    "optional": lambda: Grammar.regex("(a?){500}a{500}"),
    "exponential": lambda: Grammar.regex("(.*a){300}"),
    "exponential tail": lambda: Grammar.regex("(a|b)*a(a|b){40}"),
    "unicode": lambda: Grammar.regex(r"(\p{L}{1,90}){1,90}" * 90),
    "unicode run": lambda: Grammar.regex(r"\p{L}" * 10_000),
    "negated": lambda: Grammar.regex(r"[^\p{L}]{0,1000}" * 200),
    "alternatives": lambda: Grammar.regex("|".join(f"a{n}" for n in range(9000))),
    "and of many": lambda: Grammar.json_schema(
        {"allOf": [{"type": "string", "pattern": f"(.*{c}){{3,}}"} for c in "abcdefghijkl"]}
    ),
    "lark parentheses": lambda: Grammar.lark("start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
    "lark brackets": lambda: Grammar.lark("start: " + "[" * 30_000 + '"a"' + "]" * 30_000),
    "lark rules": lambda: _chain("r", '{0}: "x" ({1} | "y")*'),
    "lark terminals": lambda: _chain("T", '{0}: "x" ({1} | "y")*'),
    "lark doubling rules": lambda: _chain("r", "{0}: {1} {1}"),
    "lark doubling terminals": lambda: _chain("T", "{0}: {1} {1}"),
    "lark choice of same": lambda: _chain("r", "{0}: {1} | {1}"),
    "lark loop": lambda: Grammar.lark('start: (""*)*'),
    "lark ambiguous": lambda: Grammar.lark('start: e e e e e e\ne: e e e | "a" | ""'),
    "lark repeated rules": lambda: Grammar.lark(
        'start: e{0,1000}\ne: f{0,1000}\nf: g{0,1000}\ng: "a"'
    ),
    "lark spaces": lambda: Grammar.lark("a" + " " * (MAX_SOURCE - 1)),
    "lark lines": lambda: Grammar.lark("\n" * MAX_SOURCE),
    "lark open string": lambda: Grammar.lark('"' + '\\"' * (MAX_SOURCE // 2 - 1)),
    "lark open expression": lambda: Grammar.lark("/" + "\\/" * (MAX_SOURCE // 2 - 1)),
    "lark open brackets": lambda: Grammar.lark("a[\n" * (MAX_SOURCE // 3)),
    "references": lambda: _references('{"$ref":"%s"}'),
    "nested references": lambda: _references(_nested(4), 399),
    "deeply nested references": lambda: _references(_nested(25), 80),
    "doubling references": lambda: _references(
        '{"type":"object","properties":{"a":{"$ref":"%s"}},"required":["a"]}'
    ),
    "references in unions": lambda: _references(
        '{"allOf":[{"type":"string"},{"anyOf":[{"$ref":"%s"},{"maxLength":3}]}]}'
    ),
    "required forever": lambda: Grammar.json_schema(
        {
            "$defs": {
                "n": {
                    "type": "object",
                    "properties": {"n": {"$ref": "#/$defs/n"}},
                    "required": ["n"],
                }
            },
            "$ref": "#/$defs/n",
        }
    ),
    "properties": lambda: Grammar.json_schema(
        {"type": "object", "properties": {f"k{n}": {"type": "string"} for n in range(1900)}}
    ),
    "one of": lambda: Grammar.json_schema(
        {"anyOf": [{"type": "object", "required": [f"k{n}"]} for n in range(1000)]}
    ),
    "items": lambda: Grammar.json_schema({"type": "array", "minItems": 10**9}),
    "length": lambda: Grammar.json_schema({"type": "string", "minLength": 10**9}),
    "multiple": lambda: Grammar.json_schema({"type": "integer", "multipleOf": 99_991}),
    "range": lambda: Grammar.json_schema({"minimum": -1e300, "maximum": 1e300, "type": "number"}),
    "long value": lambda: Grammar.json_schema({"const": "x" * (MAX_SOURCE - 100)}),
    "choice": lambda: Grammar.choice(f"{n:030}" for n in range(1900)),
}


def main() -> None:
    engine = make_noisy(byte_tokenizer(), max_model_len=500, blocks=256)[0]
    for name, make in HOSTILE.items():
        began = time.perf_counter()
        try:
            engine.submit((1,), SamplingParams(max_tokens=40, grammar=make(), seed=3))
            fate = "taken"
        except InvalidRequest:
            fate = "refused"
        slowest = time.perf_counter() - began
        while engine.has_work:
            began = time.perf_counter()
            outputs = engine.step()
            slowest = max(slowest, time.perf_counter() - began)
            fate = next((str(o.finish) for o in outputs if o.finish), fate)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"name": name, "fate": fate, "seconds": slowest, "peak_mib": peak}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
