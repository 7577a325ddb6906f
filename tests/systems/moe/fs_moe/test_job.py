"""What is measured of a user's own layer: fits that are exact on lines, the layer that is measured, the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.executor.job.pool import Pool
from meshwright.specs.error import SpecError
from meshwright.systems.moe.fs_moe.job import LayerProfile, fitted_part, step_seconds_of
from meshwright.systems.moe.fs_moe.mechanism import LinearCost

CONFIG = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 32, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    "max_position_embeddings": 64, "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_a_line_is_found_again() -> None:
    cost = LinearCost(3e-3, 2e-6, 400.0)
    found = fitted_part({num: 3e-3 + 2e-6 * num for num in (100, 200, 400)})
    assert found.cost == pytest.approx(cost) and found.explained == pytest.approx(1.0)


def test_a_startup_below_zero_is_none_and_a_falling_line_is_flat() -> None:
    assert fitted_part({100: 1.0, 200: 3.0}).cost.startup_s == 0.0
    flat = fitted_part({100: 3.0, 200: 1.0})
    assert flat.cost == LinearCost(2.0, 0.0, 200.0) and flat.explained == 0.0


def test_the_closed_form_cuts_what_rates_rule_and_leaves_what_startups_rule() -> None:
    """Sends and experts of four seconds each: whole, they follow each other, experts twice in a backward."""
    fast = fitted_part({1: 1.0, 2: 2.0, 4: 4.0})
    slow = fitted_part({1: 4.0, 2: 4.0, 4: 4.0})
    assert step_seconds_of(fast, fast, (1,))[1] == pytest.approx(3 * 4.0 + 4 * 4.0)
    cut, left = (step_seconds_of(each, each, (1, 2, 4)) for each in (fast, slow))
    assert cut[4] < cut[2] < cut[1] and left[1] < left[2] < left[4]


def test_the_layer_is_the_model_s_last_with_experts(config: str) -> None:
    layer = LayerProfile(config, seq=16, experts=4).layer()
    assert (layer.num_layers, layer.num_experts, layer.hidden_size) == (1, 4, 32)


@pytest.mark.parametrize(
    ("options", "said"), [({"experts": 9}, "9 experts"), ({"processes": 3}, "divide them")]
)
def test_experts_that_are_not_there_or_do_not_divide_are_refused(
    config: str, options: dict[str, int], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        LayerProfile(config, **options).layer()


def test_a_dense_model_is_refused() -> None:
    with pytest.raises(SpecError, match="no experts"):
        LayerProfile("gpt2").layer()


def test_the_report_has_every_part_of_the_layer(config: str, gloo_pool: Pool) -> None:
    pytest.importorskip("torch")
    from meshwright.systems.moe.fs_moe.study import profile_layer

    job = LayerProfile(config, batch=2, seq=16, steps=3)
    report = profile_layer(job, 0, lambda text: None, gloo_pool)
    gates = {f"gate, {name}" for name in ("gshard", "sigmoid", "x_moe")}
    assert set(report.data["parts"]) == {*gates, "experts", "all-to-all"}
    for row in report.data["parts"].values():
        assert set(row["seconds_of_tokens"]) == {"32", "16"} and min(row["seconds_of_tokens"].values()) > 0
    assert set(report.data["closed_form_s"]) == set(report.data["measured_step_s"]) == {"1", "2"}
    assert "tokens behind it" in report.data["refused"]["expert_choice"]
    with pytest.raises(SpecError, match="an even number"):
        profile_layer(LayerProfile(config, batch=3, seq=16), 0, lambda text: None, gloo_pool)
