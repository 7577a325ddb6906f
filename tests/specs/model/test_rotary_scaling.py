"""Scaled rotary positions as config.json says them: read in both spellings, written again, refused where unclear."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.specs.configs import LLAMA, QWEN2

from meshwright.specs.config.export import config_from_model
from meshwright.specs.config.hugging_face import model_from_config
from meshwright.specs.error import SpecError
from meshwright.specs.model.rotary_scaling import RotaryScaling, rotary_frequencies

YARN = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
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


def test_yarn_as_deepseek_and_gpt_oss_say_it() -> None:
    """Factor 40 over 4,096 tokens (DeepSeek-V3), whose numbers cancel where they turn; ends that are no whole numbers."""
    deepseek = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}
    found = model_from_config({**LLAMA, "rope_scaling": deepseek}).rotary_scaling
    assert found.turned_factor == 1.0
    assert found.latent_score_factor == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    plain = model_from_config({**LLAMA, "rope_scaling": {**YARN, "truncate": False}})
    assert plain.rotary_scaling.turned_factor == pytest.approx(0.1 * math.log(40) + 1)
    assert plain.rotary_scaling.latent_score_factor == 1.0 and not plain.rotary_scaling.is_whole
    said = model_from_config({**LLAMA, "rope_scaling": {**YARN, "attention_factor": 1.25}})
    assert said.rotary_scaling.turned_factor == 1.25
    for model in (plain, said):
        assert model_from_config(config_from_model(model)).digest == model.digest
    slow = rotary_frequencies(64, 1e4, found)[-1]
    assert slow == pytest.approx(1e4 ** (-62 / 64) / 40)  # turns less than once in 4,096 tokens
    assert rotary_frequencies(64, 1e4, found)[0] == 1.0


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
    model = model_from_config({**QWEN2, "rope_scaling": {"type": "dynamic", "factor": 4.0, "beta_fast": 32}})
    assert model.rotary_scaling.kind == "dynamic"
    with pytest.raises(SpecError, match="dynamic rotary scaling"):
        config_from_model(model)


def test_kinds_of_attention_that_are_not_known_are_refused() -> None:
    kinds = ["full_attention", "chunked_attention", "full_attention"]
    with pytest.raises(SpecError, match="layer_types"):
        model_from_config({**QWEN2, "use_sliding_window": True, "layer_types": kinds})
