"""Training whose sequences are in groups of ranks of different sizes: as one process that is given one sequence at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.covering import always
from tests.grouped_case import CASES, drawn_batches, grouped_job, grouped_plan, sequence_by_sequence
from tests.planned_case import AFTER_ADAMW, GRADIENTS
from tests.training_case import largest_difference

from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.pool import Pool
from meshwright.specs.plan.plan import Plan
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup

ITERATIONS = 2
SINGLE = 1e-5  # the tolerance for float32
BYTES = 8  # of a number in float64


def check(plan: Plan, groups: GroupedBatch, result: JobResult, first: float, later: float) -> None:
    """Losses, norms, every gradient of the first step and of all, the parameters."""
    expected = sequence_by_sequence(plan, groups, ITERATIONS)
    assert result.losses == pytest.approx(expected.losses, rel=later)
    assert result.losses[0] == pytest.approx(expected.losses[0], rel=first)
    assert [it.gradient_norm for it in result.iterations] == pytest.approx(expected.norms, rel=later)
    assert largest_difference(result.gradients[0], expected.gradients[0]) < first
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < later
    assert largest_difference(result.parameters, expected.parameters) < later


def trained(plan: Plan, groups: GroupedBatch, pool: Pool) -> JobResult:
    return pool.run(grouped_job(plan, groups, ITERATIONS))


@pytest.mark.parametrize("name", always(list(CASES), {0, 1, 2, 3, 4}))
def test_groups_of_any_sizes_train_as_one_process(name: str, gloo_pool: Pool) -> None:
    plan = grouped_plan(optimizer="sgd")
    check(plan, CASES[name], trained(plan, CASES[name], gloo_pool), GRADIENTS, GRADIENTS)


@pytest.mark.parametrize(
    ("model", "choices"),
    always(
        [
            ("gpt", {"recompute": "full", "passes": "clip_gradients(max_norm=0.1)"}),
            ("qwen", {"recompute": "selective", "split_backward": True}),
            ("tied", {"sharding": "zero1"}),
            ("mixtral", {}),
            ("latent", {}),
            ("mistral", {}),
            ("ladder", {}),
        ],
        {0, 1},
    ),
)
def test_other_models_and_choices(model: str, choices: dict[str, Any], gloo_pool: Pool) -> None:
    plan = grouped_plan(model, **choices)
    check(plan, CASES["uneven"], trained(plan, CASES["uneven"], gloo_pool), GRADIENTS, AFTER_ADAMW)


@pytest.mark.parametrize(
    "choices",
    always([{"passes": "clip_gradients(max_norm=0.1)"}, {}, {"overlap": ("reduce", "gather")}], {0}),
)
def test_ranks_divide_the_state_of_the_optimizer(choices: dict[str, Any], gloo_pool: Pool) -> None:
    for name in ("uneven", "idle"):
        plan = grouped_plan(sharding="zero1", **choices)
        check(plan, CASES[name], trained(plan, CASES[name], gloo_pool), GRADIENTS, AFTER_ADAMW)


@pytest.mark.parametrize("choices", always([{}, {"recompute": "selective"}, {"split_backward": True}], {0}))
@pytest.mark.parametrize("model", always(["deep", "gpt", "mixtral"], {0}))
def test_what_forwards_keep_may_wait_at_the_host(
    model: str, choices: dict[str, Any], gloo_pool: Pool
) -> None:
    shares = (1.0, 0.5, 0.0, 1.0, 0.3, 0.7)
    uneven = CASES["uneven"]
    groups = replace(
        uneven,
        groups=tuple(g._replace(offload=share) for g, share in zip(uneven.groups, shares, strict=True)),
    )
    plan = grouped_plan(model, **choices)
    result = trained(plan, groups, gloo_pool)
    check(plan, groups, result, GRADIENTS, AFTER_ADAMW)
    assert any(row.name == "LOAD_SAVED" for row in result.trace.program.instructions(0))


@pytest.mark.parametrize("name", always(["2, 1, 1", "uneven"], {0}))
def test_single_precision(name: str, gloo_pool: Pool) -> None:
    plan = grouped_plan(dtype="float32", optimizer="sgd")
    check(plan, CASES[name], trained(plan, CASES[name], gloo_pool), SINGLE, SINGLE)


def test_ranks_that_are_several_devices(gloo_pool: Pool) -> None:
    """Along tp all devices of a rank send their own heads."""
    groups = GroupedBatch((9, 4, 6), 2, (SequenceGroup((1, 0), (0, 2)), SequenceGroup((0,), (1,))))
    plan = grouped_plan(num_ranks=2, tp=2, sequence_parallel=False)
    check(plan, groups, trained(plan, groups, gloo_pool), GRADIENTS, AFTER_ADAMW)


def test_a_rank_sends_the_closed_form(gloo_pool: Pool) -> None:
    """Of every layer and group of D ranks, in blocks of its own keys and values: D - 1 forward and as many backward, and D of
    gradients; of a group of one nothing."""
    plan, groups = grouped_plan(), CASES["uneven"]
    result = pool_result(plan, groups, gloo_pool)
    model = plan.model
    block = 2 * model.attention.num_kv_heads * model.attention.head_dim * BYTES * model.num_layers
    for rank, sent in enumerate(result.sent_bytes):
        own = [each.part for each in groups.microbatches if each.rank == rank and each.part.degree > 1]
        blocks = sum(2 * (part.degree - 1) * part.num_tokens for part in own)
        gradients = sum(part.degree * part.num_tokens for part in own)
        assert sent.get("SEND_BLOCK", 0) == blocks * block
        assert sent.get("SEND_BLOCK_GRADIENT", 0) == gradients * block


def pool_result(plan: Plan, groups: GroupedBatch, pool: Pool) -> JobResult:
    return pool.run(grouped_job(plan, groups, 1))


@pytest.mark.slow
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn_batches())
def test_fifty_drawn_batches_train_as_one_process(gloo_pool: Pool, groups: GroupedBatch) -> None:
    plan = grouped_plan("gpt")
    check(plan, groups, trained(plan, groups, gloo_pool), GRADIENTS, AFTER_ADAMW)
