"""Microbatches cut into token parts, in layouts: loss, norm, every gradient and the parameters equal one process, float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from meshwright.executor.job.pool import Pool
from meshwright.executor.training.training_job import RANDOM
from meshwright.specs.cluster.slowing import LinkLimit, Slowing
from tests.beside import num_beside
from tests.covering import always, covering, product, slow_cases
from tests.planned_case import Planned, assert_equal_to_one_process, legal
from tests.training_case import largest_difference

ITERATIONS = 2


def planned(model: str = "llama", clip: float = 0.0, **choices: Any) -> Planned:
    """A layout by its choices; BATCH is 8."""
    return Planned(model, clip, choices=choices)


SMOKE = [
    planned(tp=2, microbatch_size=4, token_parts=2),
    planned("tied", clip=0.1, pp=2, tp=2, sequence_parallel=True, microbatch_size=4, token_parts="1:3"),
    planned("gpt", tp=2, dp=2, microbatch_size=4, token_parts="1:2:1", sharding="zero3", recompute="full"),
    planned(pp=2, schedule="zb_h1", microbatch_size=2, token_parts=2),
    planned(cp=2, microbatch_size=4, token_parts="3:1"),
]
MORE = [
    planned(microbatch_size=8, token_parts="1:2:1"),
    planned(tp=2, sequence_parallel=True, microbatch_size=4, token_parts=2, split_backward=True),
    planned(tp=2, microbatch_size=4, token_parts="3:1", recompute="selective"),
    planned("ladder", tp=2, microbatch_size=4, token_parts=2),
    planned("qwen", dp=2, microbatch_size=2, token_parts=2, sharding="zero1"),
    planned("qwen", dp=2, microbatch_size=2, token_parts=2, sharding="zero2", clip=0.1),
    planned(dp=4, microbatch_size=2, token_parts=2, sharding="zero3", sharding_degree=2, split_backward=True),
    planned("deep", pp=2, dp=2, schedule="zbv", sharding="zero3", microbatch_size=2, token_parts=2),
    planned("gpt", pp=2, tp=2, schedule="interleaved_1f1b", microbatch_size=2, token_parts=2),
    planned("tied", pp=4, microbatch_size=2, token_parts=2),
    planned(tp=2, cp=2, sequence_parallel=True, context="ring", microbatch_size=4, token_parts=2),
    planned(
        cp=2, context="ring", token_layout="contiguous", microbatch_size=4, token_parts=4, split_backward=True
    ),
    planned(
        "gpt",
        cp=4,
        context="ring",
        token_layout="contiguous",
        microbatch_size=4,
        token_parts="3:1",
        recompute="selective",
    ),
    planned(cp=2, dp=2, context="ulysses", microbatch_size=4, token_parts="3:1", recompute="full"),
    planned(cp=2, pp=2, context="all_gather", microbatch_size=4, token_parts=2, recompute="selective"),
    planned("mixtral of 4", dp=2, ep=2, microbatch_size=4, token_parts="3:1"),
    planned("qwen moe of 4", dp=2, tp=2, ep=2, microbatch_size=2, token_parts=2),
    planned("latent", tp=2, microbatch_size=4, token_parts=2),
    planned("tied", dp=2, microbatch_size=4, token_parts=2, passes=("canonical_reduction",)),
]


@pytest.mark.parametrize("case", always(SMOKE, {*range(len(SMOKE))} - {2}), ids=str)
def test_layouts_of_parts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE, ids=str)
def test_more_layouts_of_parts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


def covering_set() -> list[Planned]:
    """On four processes: every pair of choices that is legal."""
    factors = {
        "degrees": ((1, 1, 4, 1), (1, 2, 2, 1), (2, 1, 2, 1), (1, 2, 1, 2), (2, 1, 1, 2), (1, 1, 2, 2)),
        "cut": ((4, "3:1"), (2, 2), (4, "1:2:1")),
        "context": ("ring", "all_gather", "ulysses"),
        "schedule": ("1f1b", "zbv"),
        "sequence_parallel": (False, True),
        "sharding": ("none", "zero1", "zero3"),
        "split_backward": (False, True),
        "recompute": ("none", "selective", "full"),
        "model": ("tied", "gpt"),
    }
    rows = []
    for row in product(factors):
        pp, dp, tp, cp = row["degrees"]
        is_needless = (
            (tp == 1 and row["sequence_parallel"])
            or (cp == 1 and row["context"] != "ring")
            or (dp == cp == 1 and row["sharding"] != "none")
            or (pp == 1 and row["schedule"] != "1f1b")
            or (tp * cp == 4 and row["model"] != "gpt")
        )
        if not is_needless:
            rows.append(row)
    return legal(_of_parts(rows[i]) for i in covering(rows))


def _of_parts(row: dict[str, Any]) -> Planned:
    pp, dp, tp, cp = row["degrees"]
    size, parts = row["cut"]
    choices = {name: row[name] for name in row if name not in ("degrees", "cut", "model")}
    choices |= {"pp": pp, "dp": dp, "tp": tp, "cp": cp, "microbatch_size": size, "token_parts": parts}
    return planned(row["model"], 0.1 * (pp > 1), **choices)


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_cases(covering_set), ids=str)
def test_a_covering_set_of_parts_on_four_processes(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.slow
def test_parts_know_the_draws_and_the_held_out_loss_of_whole_microbatches(gloo_pool: Pool) -> None:
    source = replace(RANDOM, evaluate_every=1, num_evaluated=1)
    first, *others = [
        Planned("llama", dropout=0.3, choices={"microbatch_size": 4, **choices}).run(
            gloo_pool, ITERATIONS, source=source
        )
        for choices in ({}, {"tp": 2, "token_parts": "1:3"}, {"pp": 2, "token_parts": 2})
    ]
    for other in others:
        assert other.losses == pytest.approx(first.losses, rel=1e-10)
        assert largest_difference(other.gradients[0], first.gradients[0]) < 1e-10
        for ours, theirs in zip(other.iterations, first.iterations, strict=True):
            assert ours.held_out_loss == pytest.approx(theirs.held_out_loss, rel=1e-8)


@pytest.mark.slow
def test_a_canonical_sum_of_parts_is_bitwise_the_same(gloo_pool: Pool) -> None:
    """Of the same parts of the same microbatches in every layout."""
    cut = {"microbatch_size": 2, "token_parts": 2, "passes": ("canonical_reduction",)}
    first, *others = [
        planned(**cut, **choices).run(gloo_pool, ITERATIONS)
        for choices in ({}, {"pp": 2}, {"dp": 2, "sharding": "zero1"})
    ]
    for other in others:
        assert all(torch.equal(first.parameters[name], other.parameters[name]) for name in first.parameters)


# A sum takes tens of milliseconds on such a link, a compute less than one. Which sums are beside one depends on when the
# other process is ready; that there are any does not.
SLOW = Slowing((LinkLimit(0, 1, 1.2e6, burst_bytes=0.0),))


@pytest.mark.parametrize("token_parts", [1, 2])
def test_sums_run_beside_computes_of_another_part_alone(token_parts: int, gloo_pool: Pool) -> None:
    case = planned(tp=2, microbatch_size=8, token_parts=token_parts)
    trace = case.run(gloo_pool, 1, slowing=SLOW).trace
    assert trace is not None
    found = [num_beside(trace, rank) for rank in range(2)]
    assert found == [0, 0] if token_parts == 1 else min(found) > 0, found
