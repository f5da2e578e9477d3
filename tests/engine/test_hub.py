"""A `config.json` is a shape or a `ModelError`, whatever stands in it."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelError
from engine.models.config import ModelConfig
from engine.models.hub import FAMILIES, read_config

_WHOLE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "sliding_window": 64,
    "use_sliding_window": True,
    "sliding_window_pattern": 2,
    "max_window_layers": 1,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "no_rope_layers": [1, 0, 1],
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": 30.0,
    "partial_rotary_factor": 1.0,
    "original_max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_ROPE = st.fixed_dictionaries(
    {},
    optional={
        "rope_type": st.sampled_from(["default", "linear", "llama3", "yarn", "longrope", "su", 3]),
        "rope_theta": st.one_of(st.floats(), st.text(max_size=3), st.integers(-2, 9)),
        "factor": st.one_of(st.floats(-2, 16), st.none(), st.integers(0, 8)),
        "low_freq_factor": st.integers(0, 2),
        "high_freq_factor": st.integers(0, 4),
        "original_max_position_embeddings": st.integers(-1, 256),
        "attention_factor": st.one_of(st.none(), st.floats()),
        "beta_fast": st.integers(-1, 32),
        "truncate": st.booleans(),
        "mscale": st.floats(-1, 2),
        "mscale_all_dim": st.floats(-1, 2),
        "short_factor": st.lists(st.floats(0, 4), min_size=7, max_size=9),
        "long_factor": st.one_of(st.lists(st.floats(0, 4), min_size=8, max_size=8), st.none()),
        "partial_rotary_factor": st.floats(-1, 2),
        "full_attention": st.one_of(st.none(), st.just({"rope_type": "linear", "factor": 2})),
        "sliding_attention": st.one_of(st.none(), st.just({}), st.text(max_size=2)),
    },
)
_NUMBER = st.one_of(st.integers(-9, 5000), st.integers())
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBER, st.floats(), st.text(max_size=4), _ROPE),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


@settings(max_examples=1000, deadline=None)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(st.sampled_from(sorted(_WHOLE)), _JSON, max_size=3),
    missing=st.sets(st.sampled_from(sorted(_WHOLE)), max_size=3),
    rope=_ROPE,
)
def test_a_config_is_a_shape_or_an_error(
    family: str, changes: dict[str, Any], missing: set[str], rope: dict[str, Any]
) -> None:
    fields = _WHOLE | {"rope_parameters": rope} | changes | {"model_type": family}
    fields = {name: value for name, value in fields.items() if name not in missing}
    try:
        config = read_config(fields)
    except ModelError:
        return
    assert isinstance(config, ModelConfig)
    assert config.within(8).max_len <= 8
    assert len(config.windows) in (0, config.layers)
