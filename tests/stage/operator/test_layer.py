"""Operators of a layer on one of several devices: what each degree divides, and what it leaves whole."""

from __future__ import annotations

import pytest
from tests.lowering.plans import DENSE, EXPERTS

from meshwright.specs import load_model, stage_layers, total_flops
from meshwright.specs.error import PlanError
from meshwright.specs.plan.optimizer import AdamW
from meshwright.stage.operator.layer import (
    MicrobatchShape,
    local_sizes,
    step_operators,
)
from meshwright.stage.operator.stage import block_operators, recomputed_operators, stage_operators

SHAPE = MicrobatchShape(2, 64, "bfloat16")
PRODUCTS = ("matmul", "grouped_matmul")


def of_kind(operators, *kinds):
    return [operator for operator in operators if operator.kind in kinds]


@pytest.mark.parametrize(
    ("changes", "tokens", "rows", "routed"),
    [
        ({}, 128, 128, 128),
        ({"cp": 4}, 32, 32, 32),
        ({"tp": 4}, 128, 128, 128),
        ({"tp": 4, "sequence_parallel": True}, 128, 32, 128),
        ({"tp": 4, "expert_tp": 1}, 128, 128, 32),
        ({"cp": 2, "tp": 4, "sequence_parallel": True, "expert_tp": 1}, 64, 16, 16),
        ({"sequence_length": 65, "cp": 2, "tp": 4, "sequence_parallel": True}, 66, 17, 66),  # rounded up
    ],
    ids=str,
)
def test_tokens_of_a_device(changes, tokens, rows, routed):
    shape = SHAPE._replace(**changes)
    assert (shape.num_tokens, shape.num_rows, shape.num_routed_tokens) == (tokens, rows, routed)


@pytest.mark.parametrize("name", ["F", "I", "W"])
def test_sequence_parallel_divides_norms_and_residuals_and_nothing_else(name):
    """Korthikanti et al. 2022, section 4.2.2."""
    whole = block_operators(DENSE, name, SHAPE._replace(tp=4))
    divided = block_operators(DENSE, name, SHAPE._replace(tp=4, sequence_parallel=True))
    for one, four in zip(whole, divided, strict=True):
        is_row = "norm" in one.label or "residual" in one.label
        assert four.flops == one.flops / (4 if is_row else 1), one.label
        assert four.bytes == one.bytes / (4 if is_row else 1), one.label
    assert any("norm" in operator.label for operator in whole)


def test_whole_experts_have_fewer_rows_and_whole_matrices():
    divided = block_operators(EXPERTS, "F", SHAPE._replace(tp=4, ep=2))
    whole = block_operators(EXPERTS, "F", SHAPE._replace(tp=4, ep=8, expert_tp=1))
    (up, down), (whole_up, whole_down) = (of_kind(found, "grouped_matmul") for found in (divided, whole))
    inner, rows = EXPERTS.experts.intermediate_size, 128 * EXPERTS.experts.num_experts_per_token
    assert up.shape == (4, rows // 4, 2 * inner // 4, 64) and down.shape == (4, rows // 4, 64, inner // 4)
    assert whole_up.shape == (1, rows // 4, 2 * inner, 64) and whole_down.shape == (1, rows // 4, 64, inner)
    assert total_flops([up, down]) == total_flops([whole_up, whole_down])


def test_gradients_summed_in_another_format_move_other_bytes():
    half = block_operators(DENSE, "W", SHAPE)
    full = block_operators(DENSE, "W", SHAPE._replace(gradient_dtype="float32"))
    for one, other in zip(of_kind(half, "matmul"), of_kind(full, "matmul"), strict=True):
        m, n, _ = one.shape
        assert other.bytes - one.bytes == 2 * m * n * 2 and other.flops == one.flops
    assert block_operators(DENSE, "F", SHAPE) == block_operators(
        DENSE, "F", SHAPE._replace(gradient_dtype="float32")
    )


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_adamw_reads_four_arrays_and_writes_three(dtype, size):
    (step,) = step_operators(1000, dtype, AdamW())
    assert step.bytes == 7 * 1000 * size


def test_a_degree_that_does_not_divide_experts_is_refused():
    with pytest.raises(PlanError, match="5 devices do not divide the 24 inner units of an expert"):
        local_sizes(EXPERTS, 1, 5)
    assert local_sizes(EXPERTS, 4, 1).expert_intermediate == EXPERTS.experts.intermediate_size


def test_recompute_of_attention_is_one_forward_of_it_a_block():
    layers = stage_layers((4,))[0]
    again = recomputed_operators(DENSE, layers, "selective", SHAPE)
    forward = stage_operators(DENSE, layers, "F", SHAPE)
    assert total_flops(again) == total_flops(of_kind(forward, "attention"))
    unfused = recomputed_operators(DENSE, layers, "selective", SHAPE._replace(attention="unfused"))
    assert [operator.label for operator in unfused] == ["scores", "softmax", "result"]


def test_recompute_by_operations_keeps_every_second_product():
    layers = stage_layers((4,))[0]
    again = recomputed_operators(DENSE, layers, "selective_op", SHAPE)
    assert [operator.label for operator in of_kind(again, *PRODUCTS)] == ["output", "down"]
    assert all(operator.count == 4 for operator in of_kind(again, *PRODUCTS)) and not of_kind(
        again, "attention"
    )


def test_recompute_that_stops_early_leaves_out_what_comes_behind_the_last_product():
    layers = stage_layers((4,))[0]
    again = recomputed_operators(DENSE, layers, "full", SHAPE)
    assert [operator.label for operator in of_kind(again, *PRODUCTS)] == ["qkv", "output", "gate_up"]
    assert len(of_kind(again, "attention")) == 1 and not of_kind(again, "loss", "embedding")


@pytest.mark.parametrize("recompute", ["selective", "selective_op", "full"])
def test_windows_stay_windows_when_recomputed(recompute):
    model = load_model("gpt-oss-20b")
    layers = stage_layers((model.num_layers,))[0]
    shape = MicrobatchShape(1, 1024, "bfloat16")
    kinds = {
        operator.shape[-1]
        for operator in of_kind(recomputed_operators(model, layers, recompute, shape), "attention")
    }
    expected = set() if recompute == "selective_op" else {1, model.dimensions()["sliding_window"]}
    assert kinds == expected
