"""Operators of a layer on one of several devices: what each degree divides, and what it leaves whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lowering.plans import DENSE, EXPERTS

from meshwright.specs import load_model, stage_layers, total_bytes, total_flops
from meshwright.specs.error import PlanError
from meshwright.specs.plan.optimizer import AdamW
from meshwright.specs.sequence.sequence_part import SequencePart, work_ratio
from meshwright.stage.operator.layer import (
    MicrobatchShape,
    attention_backward,
    attention_forward,
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


@pytest.mark.parametrize("attention", [attention_forward, attention_backward])
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_the_last_of_contiguous_pieces_attends_to_nearly_all(attention, cp):
    """Liu et al. 2023: without a zigzag the last device has 2 - 1 / P times the mean work: a causal product with its own
    keys, and with those of every other device a whole one, which is two causal ones."""
    local = local_sizes(DENSE, 1)
    mean, last = (
        attention(DENSE.attention, local, SHAPE._replace(cp=cp, arrangement=each))
        for each in ("zigzag", "contiguous")
    )
    pairs = 64 * 65 / 2
    seen = pairs - (64 - 64 // cp) * (64 - 64 // cp + 1) / 2
    assert total_flops(last) / total_flops(mean) == pytest.approx(seen / (pairs / cp))
    assert seen / (pairs / cp) == pytest.approx(2 - 1 / cp, rel=0.02)
    assert last[0].count == 2 * cp - 1 and last[0].shape == mean[0].shape


@pytest.mark.parametrize("window", [0, 16, 40, 64])
@pytest.mark.parametrize("attention", [attention_forward, attention_backward])
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_attention_is_divided_among_the_pieces_of_a_sequence(window, attention, cp):
    """All devices together make every pair of query and key that one device makes; under windows the first tokens see fewer,
    and what is counted is the busiest device's."""
    local = local_sizes(DENSE, 1)
    windowed = replace(DENSE.attention, window=window)
    one = attention(windowed, local, SHAPE)
    many = attention(windowed, local, SHAPE._replace(cp=cp))
    busiest = work_ratio(SequencePart(64, cp, 0, "zigzag"), window)
    assert cp * total_flops(many) == pytest.approx(busiest * total_flops(one))
    assert busiest == 1.0 if window in (0, 64) else 1.0 < busiest < 1.2
    (operator,) = many
    is_local = 0 < window < 64 // cp
    assert operator.count == (1 if is_local else cp) and operator.shape[3] == 64 // cp
    assert operator.shape[-1] == (window if is_local else 1)


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize(
    ("attention", "forward", "backward"), [("unfused", 4, 6), ("unfused_dropout", 9, 11)]
)
def test_unfused_attention_makes_whole_score_matrices(cp, attention, forward, backward):
    """Two products of all pairs forward and four backward, twice the causal ones; scores are written and read."""
    shape = SHAPE._replace(cp=cp, attention=attention)
    local = local_sizes(DENSE, 1)
    pairs = 2 * DENSE.num_heads * 64 * 64 // cp
    for found, products, touched in (
        (attention_forward(DENSE.attention, local, shape), 2, forward),
        (attention_backward(DENSE.attention, local, shape), 4, backward),
    ):
        assert not of_kind(found, "attention")
        assert total_flops(of_kind(found, *PRODUCTS)) == products * pairs * 2 * DENSE.head_dim
        (softmax,) = of_kind(found, "elementwise")
        assert softmax.bytes == touched * pairs
    fused, whole = (
        attention_forward(DENSE.attention, local, each) for each in (SHAPE._replace(cp=cp), shape)
    )
    assert total_bytes(whole) > total_bytes(fused)


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
    with pytest.raises(PlanError, match="does not divide the 24 inner units of an expert"):
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
