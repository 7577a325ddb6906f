"""config.json: what is missing or wrong is named, with the file and what is allowed."""

import pytest

from meshwright.specs import SpecError, model_from_config
from tests.specs.configs import GPT2, LLAMA, QWEN2


@pytest.mark.parametrize(
    ("config", "field"),
    [
        *((LLAMA, field) for field in LLAMA if field not in ("num_key_value_heads",)),
        *((GPT2, field) for field in GPT2),
        (QWEN2, "num_key_value_heads"),
    ],
)
def test_missing_field_is_named_with_its_file(config, field):
    broken = {key: value for key, value in config.items() if key != field}
    with pytest.raises(SpecError) as caught:
        model_from_config(broken, where="somewhere/config.json")
    assert "somewhere/config.json" in str(caught.value) and repr(field) in str(caught.value)
    assert caught.value.allowed


def test_missing_field_shows_a_near_one_that_is_there():
    broken = {("hiden_size" if key == "hidden_size" else key): value for key, value in LLAMA.items()}
    with pytest.raises(SpecError, match="hiden_size"):
        model_from_config(broken)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mixtral"},
        {"hidden_size": "48"},
        {"hidden_size": -48},
        {"hidden_size": 48.5},
        {"hidden_size": 47},
        {"num_key_value_heads": 4},
        {"hidden_act": "relu"},
        {"tie_word_embeddings": "yes"},
        {"rms_norm_eps": 0},
    ],
)
def test_wrong_values_are_refused_with_what_is_allowed(change):
    with pytest.raises(SpecError) as caught:
        model_from_config({**LLAMA, **change})
    assert caught.value.allowed


def test_rope_base_old_and_new_place():
    assert model_from_config({**LLAMA, "rope_theta": 5e5}).rope_theta == 5e5
    assert model_from_config({**LLAMA, "rope_parameters": {"rope_theta": 5e5}}).rope_theta == 5e5
    assert model_from_config(LLAMA).rope_theta == 10_000


def test_null_means_default_where_there_is_one():
    assert model_from_config({**LLAMA, "num_key_value_heads": None}).num_kv_heads == 6
    assert model_from_config({**LLAMA, "head_dim": None}).head_dim == 8
    assert model_from_config({**GPT2, "n_inner": None}).intermediate_size == 160
