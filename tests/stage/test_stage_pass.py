"""Works: the matrix products of a step are the same whoever shares them; recompute adds exactly what it says."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.lowering.plans import (
    DENSE,
    EXPERTS,
    SEQUENCE,
    TIED,
    lowered,
    plan,
    product_flops,
    rows_named,
    work_of,
)

from meshwright.specs import total_flops
from meshwright.specs.plan.optimizer import AdamW
from meshwright.stage.operator.stage import stage_operators
from meshwright.stage.stage_pass import pass_operators
from meshwright.stage.work import microbatch_shape

BATCH = 8
PRODUCTS = ("matmul", "grouped_matmul")


def flops(chosen, pieces=()):
    return product_flops(lowered(chosen, pieces))


def of_kind(operators, *kinds):
    return total_flops(operator for operator in operators if operator.kind in kinds)


@pytest.mark.parametrize("model", [DENSE, EXPERTS, TIED], ids=["dense", "experts", "tied"])
@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"dp": 2},
        {"dp": 2, "sharding": "zero3"},
        {"pp": 2},
        {"pp": 4, "schedule": "zb_h1"},
        {"pp": 2, "schedule": "interleaved_1f1b"},
        {"cp": 2},
        {"cp": 2, "dp": 2, "pp": 2, "sharding": "zero3"},
        {"microbatch_size": 2},
        {"pp": 2, "vocabulary": "one_barrier"},
        {"pp": 4, "vocabulary": "interlaced", "dp": 2, "sharding": "zero3"},
        {"pp": 2, "vocabulary": "two_barriers", "schedule": "interleaved_1f1b"},
    ],
    ids=str,
)
def test_products_of_a_step_are_six_flops_a_parameter_and_token(model, choices):
    """25 rows of the smallest vocabulary are padded where pp divides it."""
    chosen = plan(model, batch=BATCH, **choices)
    expected = 6 * model.num_matmul_parameters * BATCH * SEQUENCE
    if choices.get("vocabulary"):
        rows = -(-model.vocabulary_size // chosen.pp) * chosen.pp
        expected += 6 * (rows - model.vocabulary_size) * model.hidden_size * BATCH * SEQUENCE
    assert flops(chosen) == expected


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(
    "choices", [{}, {"pp": 2, "vocabulary": "one_barrier"}, {"dp": 2, "sharding": "zero3"}]
)
def test_tensor_parallel_divides_every_product(sequence_parallel, choices):
    one, four = (
        plan(batch=BATCH, tp=tp, sequence_parallel=tp > 1 and sequence_parallel, **choices) for tp in (1, 4)
    )
    assert flops(four) == flops(one)


@pytest.mark.parametrize(("degrees", "routers"), [
    ({"dp": 2, "ep": 2}, 1), ({"dp": 4, "ep": 4}, 1), ({"cp": 2, "dp": 2, "ep": 4}, 1), ({"dp": 2, "tp": 2, "ep": 2}, 2),
    ({"dp": 2, "tp": 2, "ep": 4}, 2),
])  # fmt: skip
def test_experts_are_divided_and_routers_are_not(degrees, routers):
    """A router is whole on every device of a tensor-parallel group."""
    router = 6 * EXPERTS.num_layers * EXPERTS.hidden_size * EXPERTS.num_experts * BATCH * SEQUENCE
    one = flops(plan(EXPERTS, batch=BATCH))
    assert flops(plan(EXPERTS, batch=BATCH, **degrees)) == one + (routers - 1) * router


@pytest.mark.parametrize("recompute", ["none", "selective", "selective_op", "full"])
@pytest.mark.parametrize(
    "choices",
    [{"tp": 2, "sequence_parallel": True}, {"pp": 2}, {"pp": 2, "vocabulary": "one_barrier"}],
    ids=str,
)
def test_pieces_do_the_work_of_their_stages(recompute, choices):
    """Every operator of every pass, not only products."""
    chosen = plan(dp=2, recompute=recompute, **choices)
    whole, pieces = lowered(chosen, None), lowered(chosen, (4,) if chosen.pp == 1 else (2, 2))

    def operators(program, name):
        found: Counter = Counter()
        for device in range(program.num_lists):
            for view in rows_named(program, name, device):
                for op in view.work.operators:
                    found[op.kind, op.phase, op.shape, op.flops, op.bytes] += op.count
        return found

    for name in ("F", "B", *(("R",) if recompute == "full" else ())):
        assert operators(pieces, name) == operators(whole, name) != Counter()


def test_selective_recompute_runs_the_attention_core_again():
    """Korthikanti et al. 2022, section 5."""
    backward = {
        choice: work_of(lowered(plan(pp=2, recompute=choice), None), "B", 0).operators
        for choice in ("none", "selective")
    }
    forward = work_of(lowered(plan(pp=2), None), "F", 0).operators
    core = of_kind(forward, "attention")
    assert core > 0
    assert total_flops(backward["selective"]) - total_flops(backward["none"]) == core
    assert of_kind(backward["selective"], *PRODUCTS) == of_kind(backward["none"], *PRODUCTS)


def test_per_operation_recompute_runs_every_second_product_and_all_that_is_cheap():
    """Kept: qkv, gate_up and attention. Again: output, down, norms, rotary, activation, residuals."""
    shape = microbatch_shape(chosen := plan(recompute="selective_op"))
    (layers,) = plan().stages()
    layers = layers._replace(has_embedding=False, has_head=False)
    forward = stage_operators(DENSE, layers, "F", shape)
    plain = stage_operators(DENSE, layers, "B", shape)
    again = pass_operators(chosen, layers, "B", shape)
    kept = [op for op in forward if op.label in ("qkv", "gate_up")]
    assert len(kept) == 2
    added = of_kind(again, *PRODUCTS) - of_kind(plain, *PRODUCTS)
    assert added == of_kind(forward, *PRODUCTS) - total_flops(kept) > 0
    assert of_kind(again, "attention") == of_kind(plain, "attention")
    for kind in ("norm", "activation", "elementwise"):
        cheap = [(op.shape, op.flops) for op in forward if op.kind == kind]
        assert cheap and of_kind(again, kind) - of_kind(plain, kind) == of_kind(forward, kind)


def test_recompute_in_a_split_backward_belongs_to_its_input_half():
    none, selective = (
        lowered(plan(pp=2, schedule="zb_h1", recompute=choice), None) for choice in ("none", "selective")
    )
    assert total_flops(work_of(selective, "I", 0).operators) > total_flops(work_of(none, "I", 0).operators)
    assert work_of(selective, "W", 0) == work_of(none, "W", 0)


def test_software_that_stops_early_recomputes_less_and_no_loss():
    whole, early = (
        work_of(lowered(plan(pp=2, recompute="full", software=name), None), "R", 1).operators
        for name in ("fused", "eager")
    )
    assert "loss" in {op.kind for op in whole} and "loss" not in {op.kind for op in early}
    down = [op for op in whole if op.label == "down"]
    head = [op for op in whole if op.label == "vocabulary"]
    skipped = total_flops([*down, *head])
    assert skipped > 0 and of_kind(early, *PRODUCTS) == of_kind(whole, *PRODUCTS) - skipped


@pytest.mark.parametrize(
    "choices", [{}, {"schedule": "interleaved_1f1b"}, {"dp": 2, "sharding": "zero3"}], ids=str
)
def test_shares_of_a_device_sum_to_one(choices):
    program = lowered(plan(pp=2, **choices))
    for device in range(2):
        forward = [view for view in rows_named(program, "F", device) if view.microbatch == 0]
        assert sum(view.work.share for view in forward) == pytest.approx(1)


@pytest.mark.parametrize(
    ("choices", "shards"),
    [
        ({}, 1),
        ({"sharding": "zero1"}, 4),
        ({"sharding": "zero2", "sharding_degree": 2}, 2),
        ({"sharding": "zero3"}, 4),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [DENSE, TIED], ids=["dense", "tied"])
def test_a_step_updates_every_parameter_of_its_share_once(model, choices, shards):
    program = lowered(plan(model, dp=4, **choices))
    steps = [view.work for view in rows_named(program, "STEP")]
    total = sum(step.shape[0] for step in steps)
    assert total * shards == pytest.approx(model.num_parameters, rel=1e-3)
    assert sum(step.flops for step in steps) == AdamW.flops * total


def test_float8_is_a_format_of_works_not_of_steps():
    program = lowered(plan(float8="tensorwise"), None)
    assert work_of(program, "F", 0).dtype == "float8" and work_of(program, "STEP", 0).dtype == "bfloat16"


def test_context_parallel_divides_attention_evenly():
    one, two = (of_kind(work_of(lowered(plan(cp=cp), None), "F", 0).operators, "attention") for cp in (1, 2))
    assert 2 * two == pytest.approx(one, rel=2 / SEQUENCE)
