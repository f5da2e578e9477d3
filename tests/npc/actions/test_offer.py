"""Whatever a model says under an offer, its actions are open ones with valid arguments."""

import json
import random
from typing import Any

import jsonschema
import pytest

from engine.params import SamplingParams
from npc.actions.channels import Channels, Piece
from npc.actions.offer import MOST_PER_TURN, Act, Offer, Open
from scenes.actions import markup
from tests.engine.speech import byte_tokenizer, make_noisy, say

#: Words that make a model of noise open a bracket now and then.
WORDS = ("[", " [", '{"', '"}]', "}]", '":', "the", "bell", "a0", "item")
ENGINE = make_noisy(byte_tokenizer(WORDS), max_model_len=700, blocks=256)[0]
#: As if the model were fond of acting: noise alone hardly ever opens a bracket.
BRACKETS = {byte_tokenizer(WORDS).encode(text)[-1]: 14.0 for text in ("[", " [")}


def _object(**args: Any) -> str:
    return json.dumps(
        {
            "type": "object",
            "properties": args,
            "required": list(args),
            "additionalProperties": False,
        }
    )


HOSTILE = {
    "brackets": _object(item={"enum": ["]", "[x]", '"]', "\\", "[a0 {}]"]}),
    "text": _object(item={"type": "string", "maxLength": 8}),
    "pattern": _object(item={"type": "string", "pattern": r"^[\[\]]{2}-\d+$"}),
    "numbers": _object(price={"type": "integer", "minimum": 0, "maximum": 20}),
    "nested": _object(cart={"type": "array", "items": {"enum": ["[", "]"]}, "maxItems": 3}),
    "odd keys": _object(**{"]": {"type": "boolean"}, '"': {"type": "null"}}),
    "anything": _object(any={}),
    "none": "",
}


def test_actions_of_a_model_of_noise_are_valid() -> None:
    dice, done = random.Random(7), 0
    for seed in range(60):
        kinds = dice.sample(sorted(HOSTILE), dice.randint(1, len(HOSTILE)))
        offer = Offer(tuple(Open(f"a{n}", HOSTILE[kind]) for n, kind in enumerate(kinds)))
        grammar = offer.grammar()
        output = say(
            ENGINE, SamplingParams(max_tokens=150, seed=seed, grammar=grammar, logit_bias=BRACKETS)
        )
        assert output.finish in ("stop", "length"), output.error
        channels = Channels(offer)
        pieces = channels.push(output.text) + channels.flush()
        acts = [piece for piece in pieces if isinstance(piece, Act)]
        names = [act.name for act in acts]
        assert len(names) == len(set(names)) <= MOST_PER_TURN
        for act in acts:
            schema = next(action.schema for action in offer.actions if action.name == act.name)
            if schema:
                jsonschema.validate(act.args, json.loads(schema))
            else:
                assert not act.args
        done += len(acts)
        if output.finish == "stop":
            assert all("[" not in p.text for p in pieces if isinstance(p, Piece))
            if not {"anything", "text"} & set(kinds):  # these can spell half a character
                assert not channels.dropped
    assert done > 20, "the property holds for nothing"


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_an_action_as_it_is_written_is_of_the_grammar(kind: str) -> None:
    offer = Offer((Open("a0", HOSTILE[kind]),))
    constraint = ENGINE.grammars.constrain(SamplingParams(grammar=offer.grammar()))
    args: dict[str, Any] = {
        "brackets": {"item": "[x]"},
        "text": {"item": "rope"},
        "pattern": {"item": "[]-12"},
        "numbers": {"price": 7},
        "nested": {"cart": ["[", "]"]},
        "odd keys": {"]": True, '"': None},
        "anything": {"any": ["x"]},
        "none": {},
    }[kind]
    assert constraint is not None
    assert constraint.is_whole(f"Take this. {markup('a0', args)} Good.")
    assert constraint.is_whole("Only words.")
    assert constraint.is_whole("")
    assert not constraint.is_whole("Words [and more].")


def test_an_npc_that_may_do_nothing_now_does_not_say_it_does() -> None:
    output = say(
        ENGINE,
        SamplingParams(max_tokens=80, seed=3, grammar=Offer(()).grammar(), logit_bias=BRACKETS),
    )
    assert output.text
    assert "[" not in output.text
