"""The same tiny model in every layout: loss, norm, every gradient and the parameters equal those of one process, float64.

A smoke subset runs always; the whole matrix, every legal layout on two processes and a pairwise covering set on four, is
slow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from meshwright.executor.job.pool import Pool
from meshwright.specs.error import MeshwrightError
from meshwright.specs.plan.plan import GATHERED
from meshwright.stage.piece import executed_pieces
from tests.covering import always, covering, product, slow_cases
from tests.planned_case import (
    Planned,
    assert_equal_to_one_process,
    legal,
)
from tests.training_case import largest_difference

ITERATIONS = 2
MATRIX_ITERATIONS = 20
SHARDINGS = ("none", "zero1", "zero2", "zero3")


def planned(model: str = "llama", clip: float = 0.0, dropout: float = 0.0, **choices: Any) -> Planned:
    """A layout by its choices."""
    return Planned(model, clip, dropout, choices=choices)


SMOKE = [
    planned(tp=2, sequence_parallel=True),
    planned("gpt", tp=2, sequence_parallel=True, gathered="kept", split_backward=True),
    planned("gpt", tp=2, pp=2, sequence_parallel=True, schedule="zb_h1"),
    planned("qwen", clip=0.1, tp=2, dp=2, sharding="zero1"),
    planned("qwen", clip=0.1, tp=2, dp=2, sharding="zero3", sequence_parallel=True),
    planned("tied", pp=2, dp=2, sharding="zero3", schedule="zb_h1"),
    planned("tied", pp=2, dp=2, sharding="zero2", schedule="interleaved_1f1b"),
    planned("tied", clip=0.1, pp=2, tp=2, recompute="full"),
    planned(
        "tied", pp=4, schedule="zbv", recompute="selective"
    ),  # segments without parameters, which have a W
    planned(dp=4, sharding="zero3", sharding_degree=2, split_backward=True),
    planned("tied", clip=0.1, pp=2, passes=("offload_optimizer",)),
    planned(dp=2, sharding="zero1", passes=("offload_optimizer",)),
]
EXPERTS = [
    planned("mixtral", dp=2, sharding="zero2", split_backward=True),
    planned("mixtral", pp=2, dp=2, sharding="zero3", schedule="zb_h1"),
    planned("mixtral", clip=0.1, tp=2, dp=2, sequence_parallel=True, sharding="zero3", recompute="full"),
    planned("qwen moe", pp=2, optimizer="sgd", recompute="full"),
    planned("qwen moe", tp=2, split_backward=True),
    planned("latent", optimizer="sgd", pp=2, split_backward=True),
    planned("deepseek", clip=0.1, pp=2, dp=2, recompute="full"),
    planned("deepseek", tp=2, pp=2),
]
MORE_EXPERTS = [
    planned("mixtral"),
    planned("mixtral", optimizer="sgd", dp=2, split_backward=True),
    planned("mixtral", clip=0.1, dp=2, sharding="zero1"),
    planned("mixtral", tp=2),
    planned("qwen moe", dp=2, sharding="zero3", recompute="full"),
    planned("qwen moe", pp=2, schedule="zbv"),
    planned("qwen moe", clip=0.1, pp=2, tp=2, sequence_parallel=True),
    planned("latent", tp=2),
    planned("deepseek", dp=2, sharding="zero3", split_backward=True),
    planned("deepseek", tp=2, sequence_parallel=True, split_backward=True),
]

LADDERS = [
    planned("ladder", tp=2),
    planned("ladder", tp=2, dp=2, sequence_parallel=True),
    planned("ladder gpt", clip=0.1, tp=2, dp=2, sharding="zero1", split_backward=True),
    planned("ladder gpt", dp=2, sharding="zero3", recompute="full"),
    planned("ladder", pp=2, schedule="zbv", tp=2, recompute="full"),
    planned("ladder gpt", pp=2, tp=2, sequence_parallel=True, schedule="zb_h1"),
    planned("ladder", pp=4),
]


BRANCHES = [
    planned("branches", dp=2, sharding="zero3"),
    planned("branches gpt", clip=0.1, tp=2),
    pytest.param(planned("branches", tp=2, dp=2, sequence_parallel=True), marks=pytest.mark.slow),
    pytest.param(
        planned("branches gpt", pp=2, tp=2, sequence_parallel=True, schedule="zb_h1"), marks=pytest.mark.slow
    ),
    pytest.param(planned("branches", pp=2, schedule="zbv", tp=2, recompute="full"), marks=pytest.mark.slow),
    pytest.param(
        planned("branches", tp=2, dp=2, sharding="zero1", split_backward=True), marks=pytest.mark.slow
    ),
    pytest.param(planned("branches", cp=2, tp=2), marks=pytest.mark.slow),
    pytest.param(planned("branches", tp=2, recompute="selective"), marks=pytest.mark.slow),
    pytest.param(planned("branches", tp=2, microbatch_size=2, token_parts=2), marks=pytest.mark.slow),
    pytest.param(planned("branches gpt", pp=4), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("case", BRANCHES, ids=str)
def test_parallel_branches_in_layouts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.parametrize("case", always(LADDERS, {0, 3, 5}), ids=str)
def test_a_ladder_residual_in_layouts_equals_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.parametrize("case", always(SMOKE, {*range(len(SMOKE))} - {0, 2, 4}), ids=str)
def test_layouts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE_EXPERTS, ids=str)
def test_more_layouts_with_experts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.parametrize("case", always(EXPERTS, {1, 4, 6}), ids=str)
def test_layouts_with_experts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


# torch's split backward collects a block's parameters before autograd has gathered its shards, and then silently loses weight
# gradients (pipelining's ZBV over FSDP2 block by block). Here both are instructions, and a W reads what an UNSHARD gathered.
SPLIT_AND_NESTED = [
    planned("deep", pp=2, dp=2, schedule="zbv", sharding="zero3"),
    planned("deep", pp=2, dp=2, schedule="zb_h1", sharding="zero3", passes=("unshard",)),
]


@pytest.mark.parametrize("case", SPLIT_AND_NESTED, ids=str)
def test_split_backward_with_nested_sharding_loses_no_gradient(case: Planned, gloo_pool: Pool) -> None:
    """Stages of several blocks, each sharded by itself."""
    job, plan = case.job(ITERATIONS)
    names = {job.program.tables.effects[number].name for number in set(job.program.columns.effect.tolist())}
    assert names >= {"I", "W", "UNSHARD", "SCATTER_GRAD"} and min(executed_pieces(plan)) > 1
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


def two_processes() -> list[Planned]:
    """Every legal layout on two processes."""
    degrees = [{"pp": 2}, {"dp": 2}, {"tp": 2}]
    factors = {
        "schedule": ("gpipe", "1f1b", "interleaved_1f1b", "zbv"),
        "sequence_parallel": (False, True),
        "sharding": SHARDINGS,
        "split_backward": (False, True),
        "recompute": ("none", "full"),
    }
    found = []
    for degree in degrees:
        own = dict(factors)
        if "pp" not in degree:
            own["schedule"] = ("1f1b",)
        if "tp" not in degree:
            own["sequence_parallel"] = (False,)
        if "dp" not in degree:
            own["sharding"] = ("none",)
        found += [planned("tied", **degree, **row) for row in product(own)]
    return legal(iter(found))


def four_processes() -> list[Planned]:
    """A set of layouts on four processes that has every pair of choices which is legal."""
    factors = {
        "degrees": ((4, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 1), (2, 1, 2), (1, 2, 2)),
        "schedule": ("1f1b", "interleaved_1f1b", "zb_h1", "zbv", "v_half"),
        "sequence_parallel": (False, True),
        "gathered": GATHERED,
        "sharding": SHARDINGS,
        "sharding_degree": (0, 2),
        "split_backward": (False, True),
        "recompute": ("none", "selective", "full"),
        "passes": ((), ("offload_optimizer",), ("canonical_reduction",), ("unshard",)),
        "clip": (0.0, 0.1),
        "model": ("llama", "tied", "qwen", "gpt"),
    }
    rows = []
    for row in product(factors):
        pp, dp, tp = row["degrees"]
        is_needless = (
            (tp == 1 and row["sequence_parallel"])
            or (row["gathered"] == "kept" and not row["sequence_parallel"])
            or (dp == 1 and row["sharding"] != "none")
            or (row["sharding_degree"] and (row["sharding"] == "none" or dp < 4))
            or (pp == 1 and row["schedule"] != "1f1b")
            or (tp == 4 and row["model"] != "gpt")  # of the others two heads of keys and values
        )
        if not is_needless:
            rows.append(row)
    return legal(_on_four(rows[i]) for i in covering(rows))


def _on_four(row: dict[str, Any]) -> Planned:
    pp, dp, tp = row["degrees"]
    choices = {k: v for k, v in row.items() if k not in ("degrees", "clip", "model")}
    return planned(row["model"], row["clip"], pp=pp, dp=dp, tp=tp, **choices)


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(two_processes), ids=str)
def test_every_layout_on_two_processes(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, MATRIX_ITERATIONS), MATRIX_ITERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(four_processes), ids=str)
def test_a_covering_set_on_four_processes(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, MATRIX_ITERATIONS), MATRIX_ITERATIONS)


def test_draws_do_not_know_the_layout(gloo_pool: Pool) -> None:
    layouts = [
        planned(dropout=0.3),
        planned(dropout=0.3, tp=2),
        planned(dropout=0.3, tp=2, sequence_parallel=True),
        planned(dropout=0.3, dp=2, tp=2, sequence_parallel=True, sharding="zero3", recompute="full"),
    ]
    first, *others = [case.run(gloo_pool, 2) for case in layouts]
    for other in others:
        assert other.losses == pytest.approx(first.losses, rel=1e-10)
        assert largest_difference(other.gradients[0], first.gradients[0]) < 1e-10


# At the rate of the other cases a model of 32 units follows its rounding errors elsewhere within twenty steps.
BFLOAT16_RATE = 1e-3
MIXED = {"dtype": "bfloat16", "reduction_dtype": "float32", "master_dtype": "float32"}


@pytest.mark.slow
def test_sums_in_float32_do_not_know_the_sharding(gloo_pool: Pool) -> None:
    """Parameters in bfloat16 with a float32 master copy: a microbatch's gradient is the same whoever computes it, so how
    the sum is divided changes the last bits only."""
    layouts = [planned(**MIXED), *(planned(dp=2, sharding=kind, **MIXED) for kind in SHARDINGS)]
    first, *others = [case.run(gloo_pool, ITERATIONS) for case in layouts]
    assert all(value.dtype == torch.float32 for value in first.parameters.values())
    for other in others:
        assert other.losses == pytest.approx(first.losses, rel=1e-5)
        assert largest_difference(other.gradients[0], first.gradients[0]) < 1e-5


@pytest.mark.slow
def test_bfloat16_stays_within_the_spread_of_seeds(gloo_pool: Pool) -> None:
    """DESIGN's tolerance: the loss within two standard deviations of five seeds of one process, which it has in common with
    the first of them."""
    one = replace(planned(**MIXED), learning_rate=BFLOAT16_RATE)
    seeds = [one.run(gloo_pool, MATRIX_ITERATIONS, seed=seed).losses[-1] for seed in range(5)]
    spread, expected = float(torch.tensor(seeds).std()), seeds[0]
    for choices in (
        {"pp": 2},
        {"tp": 2, "sequence_parallel": True},
        {"dp": 2, "tp": 2, "sharding": "zero3"},
    ):
        case = replace(planned(**choices, **MIXED), learning_rate=BFLOAT16_RATE)
        assert abs(case.run(gloo_pool, MATRIX_ITERATIONS).losses[-1] - expected) < 2 * spread, case


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(MeshwrightError, match="tp=3 does not divide the 4 heads and 2 key-value heads"):
        planned(tp=3).job(1)
    with pytest.raises(MeshwrightError, match="recompute_blocks="):
        planned(pp=2, recompute="selective_op", recompute_blocks=(1, 2)).job(1)


def test_a_canonical_sum_is_bitwise_the_same_in_every_layout(gloo_pool: Pool) -> None:
    """Same microbatches, added in the same order: the parameters of three steps agree to the last bit."""
    passes = ("canonical_reduction",)
    layouts = [
        planned(passes=passes),
        planned(pp=2, passes=passes),
        planned(dp=2, passes=passes),
        planned(dp=2, pp=2, schedule="zb_h1", passes=passes),
        planned(dp=4, sharding="zero1", passes=passes),
        planned(pp=2, recompute="full", schedule="interleaved_1f1b", passes=passes),
    ]
    first, *others = [case.run(gloo_pool, ITERATIONS) for case in layouts]
    assert_equal_to_one_process(layouts[0], first, ITERATIONS)
    for other in others:
        assert first.parameters.keys() == other.parameters.keys()
        assert all(torch.equal(first.parameters[name], other.parameters[name]) for name in first.parameters)
    ordinary = planned(dp=4).run(gloo_pool, ITERATIONS)
    assert not all(torch.equal(first.parameters[n], ordinary.parameters[n]) for n in first.parameters)


def test_a_canonical_sum_of_experts_is_bitwise_the_same(gloo_pool: Pool) -> None:
    """Tokens of a microbatch are added in one order, expert by expert, whatever the layout."""
    layouts = [
        planned("mixtral", passes=("canonical_reduction",), **choices)
        for choices in ({}, {"pp": 2}, {"dp": 2})
    ]
    first, *others = [case.run(gloo_pool, 2) for case in layouts]
    for other in others:
        assert all(torch.equal(first.parameters[name], other.parameters[name]) for name in first.parameters)
