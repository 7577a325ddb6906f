"""A model whose experts are divided among devices is the model of one process, in every layout, whoever gets the tokens."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.executor.job.pool import Pool
from tests.planned_case import Planned, assert_equal_to_one_process

ITERATIONS = 3


def planned(model: str = "mixtral of 4", clip: float = 0.0, **choices: Any) -> Planned:
    """A layout by its choices."""
    return Planned(model, clip, choices=choices)


SMOKE = [
    planned(dp=2, ep=2),
    planned(dp=2, ep=2, split_backward=True, recompute="full"),
    planned("qwen moe", dp=2, ep=2, sharding="zero3"),
    planned("qwen moe", tp=2, ep=2),
    planned("qwen moe", tp=2, ep=2, sequence_parallel=True),
    planned(tp=2, ep=2, sequence_parallel=True),
    planned(dp=4, ep=2, sharding="zero3", split_backward=True),
    planned("qwen moe of 4", dp=4, ep=4, sharding="zero1"),
    planned("qwen moe", dp=2, tp=2, ep=2, sequence_parallel=True, sharding="zero2"),
    planned("qwen moe of 4", dp=2, tp=2, ep=4, sequence_parallel=True),
    planned("deepseek", pp=2, dp=2, ep=2, schedule="zb_h1"),
    planned(pp=2, tp=2, ep=2, sequence_parallel=True, recompute="full"),
]


@pytest.mark.parametrize("case", SMOKE, ids=str)
def test_divided_experts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)
