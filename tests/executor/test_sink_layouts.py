"""A model with sinks of heads and biases of experts (GPT-OSS) is the model of one process, in the layouts that run."""

from __future__ import annotations

import pytest

from meshwright.executor.capability import check_plan
from meshwright.executor.job.pool import Pool
from meshwright.specs.error import PlanError
from tests.covering import always
from tests.planned_case import Planned, assert_equal_to_one_process

ITERATIONS = 2


def planned(clip: float = 0.0, **choices: object) -> Planned:
    return Planned("gpt oss", clip, choices=choices)


CASES = [
    planned(),
    planned(dp=2, ep=2, split_backward=True, clip=0.1),
    planned(tp=2, clip=0.1),
    planned(tp=2, sequence_parallel=True, recompute="selective", clip=0.1),
    planned(pp=2, dp=2, ep=2, schedule="zb_h1", sharding="zero2"),
    planned(dp=2, tp=2, sequence_parallel=True, sharding="zero3", recompute="full"),
    planned(dp=4, ep=4, sharding="zero1", optimizer="sgd"),
    planned(tp=2, ep=2, etp=1, sequence_parallel=True, clip=0.1),
    planned(dp=2, tp=2, ep=4, etp=1),
]


@pytest.mark.parametrize("case", always(CASES, {1, 3}), ids=str)
def test_every_layout_equals_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


@pytest.mark.parametrize(
    ("choices", "what"),
    [
        ({"cp": 2}, "cp=2 with attention sinks"),
        ({"dp": 2, "tp": 2, "ep": 2, "etp": 2}, "etp=2 beside tp=2, ep=2 with biases of experts"),
    ],
)
def test_what_does_not_run_is_refused(choices: dict[str, int], what: str) -> None:
    with pytest.raises(PlanError, match=what):
        check_plan(planned(**choices).plan())
