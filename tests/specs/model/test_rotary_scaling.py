"""Scaled rotary positions as config.json says them: read in both spellings, written again, refused where unclear."""

from __future__ import annotations

from typing import Any

import pytest
from tests.specs.configs import LLAMA, QWEN2

from meshwright.specs.config.export import config_from_model
from meshwright.specs.config.hugging_face import model_from_config
from meshwright.specs.error import SpecError
from meshwright.specs.model.rotary_scaling import RotaryScaling

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_both_spellings(field: str) -> None:
    model = model_from_config({**LLAMA, field: {**LLAMA3, "original_max_position_embeddings": 16}})
    assert model.rotary_scaling == RotaryScaling("llama3", 8.0, 1.0, 4.0, 16)
    assert (
        model_from_config({**LLAMA, field: LLAMA3}).rotary_scaling.original_length == 64
    )  # that of the model
    linear = model_from_config({**LLAMA, field: {"type": "linear", "factor": 2, "rope_theta": 7.0}})
    assert linear.rotary_scaling == RotaryScaling("linear", 2.0, 1.0, 1.0, 0) and linear.rope_theta == 7.0
    for one in (model, linear):
        assert model_from_config(config_from_model(one)).digest == one.digest


def test_none_is_none() -> None:
    plain = model_from_config(LLAMA)
    for given in (None, {}, {"rope_type": "default"}, {"rope_type": "default", "partial_rotary_factor": 1.0}):
        model = model_from_config({**LLAMA, "rope_scaling": given})
        assert model.rotary_scaling is None and model.digest == plain.digest


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor' is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq_factor' is missing"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_factor=1.0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1.0}}, "'factor' is -1.0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta": 1}}, "unknown field 'beta'"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
        ({"rope_scaling": 4}, "rope_scaling"),
    ],
)
def test_what_is_unclear_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        model_from_config({**LLAMA, **changed})


def test_other_kinds_are_kept_by_name() -> None:
    model = model_from_config({**QWEN2, "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 32}})
    assert model.rotary_scaling.kind == "yarn"
    with pytest.raises(SpecError, match="yarn rotary scaling"):
        config_from_model(model)


def test_kinds_of_attention_that_are_not_known_are_refused() -> None:
    kinds = ["full_attention", "chunked_attention", "full_attention"]
    with pytest.raises(SpecError, match="layer_types"):
        model_from_config({**QWEN2, "use_sliding_window": True, "layer_types": kinds})
