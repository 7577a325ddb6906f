"""Microbatches cut into token parts, in layouts: loss, norm, every gradient and the parameters equal one process, float64."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.executor.job.pool import Pool
from meshwright.specs.cluster.slowing import LinkLimit, Slowing
from tests.beside import num_beside
from tests.planned_case import Planned, assert_equal_to_one_process

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
    planned(cp=2, context="ring_contiguous", microbatch_size=4, token_parts=4, split_backward=True),
    planned(cp=2, dp=2, context="ulysses", microbatch_size=4, token_parts="3:1", recompute="full"),
    planned(cp=2, pp=2, context="all_gather", microbatch_size=4, token_parts=2, recompute="selective"),
    planned("mixtral of 4", dp=2, ep=2, microbatch_size=4, token_parts="3:1"),
    planned("qwen moe of 4", dp=2, tp=2, ep=2, microbatch_size=2, token_parts=2),
    planned("latent", tp=2, microbatch_size=4, token_parts=2),
    planned("tied", dp=2, microbatch_size=4, token_parts=2, passes=("canonical_reduction",)),
]


@pytest.mark.parametrize("case", SMOKE, ids=str)
def test_layouts_of_parts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE, ids=str)
def test_more_layouts_of_parts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


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
