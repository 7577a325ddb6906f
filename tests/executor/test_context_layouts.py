"""Context parallelism in training: sequences divided along cp, in every kind, equal one process in float64."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.executor.job.pool import Pool
from tests.planned_case import Planned, assert_equal_to_one_process

ITERATIONS = 3


def planned(model: str = "llama", clip: float = 0.0, dropout: float = 0.0, **choices: Any) -> Planned:
    """A layout by its choices."""
    return Planned(model, clip, dropout, choices=choices)


SMOKE = [
    planned(cp=2, context="all_gather"),
    planned("gpt", cp=2, context="ulysses"),
    planned("tied", clip=0.1, cp=2, tp=2, context="all_gather", sequence_parallel=True),
    planned("qwen", cp=2, dp=2, sharding="zero3", context="all_gather", recompute="full"),
    planned("tied", cp=2, pp=2, context="ulysses", schedule="zb_h1"),
]


@pytest.mark.parametrize("case", SMOKE, ids=str)
def test_context_layouts_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)
