"""Recorded routing: every layout records the choices of one process, each token once, in all of its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.planned_case import BATCH, MODELS, Planned
from tests.training_case import SEQUENCE

from meshwright.executor.job.pool import Pool
from meshwright.executor.routing.routing_record import check_recordable
from meshwright.specs.error import ExecutionError
from meshwright.specs.routing.routing_trace import RoutingTrace

MODEL = "qwen moe of 4"  # two of its four layers have experts
STEPS = 2


def recorded(pool: Pool, iterations: int = STEPS, num_steps: int = STEPS, **choices: Any) -> RoutingTrace:
    """What a layout records of its last steps."""
    job, _ = Planned(MODEL, choices=choices).job(iterations)
    result = pool.run(replace(job, routing_steps=num_steps))
    assert result.routing is not None
    return result.routing


def rows(trace: RoutingTrace, step: int) -> list[list[int]]:
    """What every token of a step chose in all layers, in an order that no layout changes."""
    found = trace.of_steps(step, step).experts
    return sorted(found.reshape(len(found), -1).tolist())


@pytest.fixture(scope="module")
def alone(gloo_pool: Pool) -> RoutingTrace:
    """One process."""
    return recorded(gloo_pool)


def test_every_so_many_a_step_is_recorded(gloo_pool: Pool) -> None:
    """The last two of steps 0, 2 and 4, as where all are recorded."""
    job, _ = Planned(MODEL, choices={"dp": 2, "ep": 2}).job(5)
    every, all_steps = (
        gloo_pool.run(replace(job, routing_steps=num, routing_every=each)).routing
        for num, each in ((2, 2), (5, 1))
    )
    assert every is not None and all_steps is not None
    assert every.steps == (2, 4) and all_steps.steps == (0, 1, 2, 3, 4)
    for step in every.steps:
        assert rows(every, step) == rows(all_steps, step)


def test_a_training_that_has_no_step_to_record_is_refused() -> None:
    job, _ = Planned(MODEL, choices={}).job(3, first_step=1)
    with pytest.raises(ExecutionError, match="of every 5th step, of steps 1 to 3"):
        replace(job, routing_steps=1, routing_every=5)
    assert replace(job, routing_steps=1, routing_every=3).routing_every == 3
    with pytest.raises(ExecutionError, match="every 0th step"):
        replace(job, routing_steps=1, routing_every=0)


LAYOUTS = [
    {"dp": 2, "ep": 2, "recompute": "full"},
    {"tp": 2, "ep": 2},
    {"dp": 2, "tp": 2, "ep": 2, "sequence_parallel": True},
    {"pp": 2, "dp": 2, "ep": 2, "microbatch_size": 2},
    pytest.param({"tp": 2}, marks=pytest.mark.slow),
    pytest.param({"pp": 2, "schedule": "zbv", "num_chunks": 2}, marks=pytest.mark.slow),
    pytest.param({"dp": 2, "tp": 2, "ep": 2, "etp": 1, "sequence_parallel": True}, marks=pytest.mark.slow),
    pytest.param({"cp": 2, "ep": 2, "context": "ulysses"}, marks=pytest.mark.slow),
    pytest.param({"dp": 2, "ep": 2, "token_parts": 2, "microbatch_size": 2}, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize("choices", LAYOUTS, ids=str)
def test_every_layout_records_what_one_process_does(
    choices: dict[str, Any], gloo_pool: Pool, alone: RoutingTrace
) -> None:
    found = recorded(gloo_pool, **choices)
    assert found.layers == alone.layers == (1, 3) and found.steps == (0, 1)
    assert found.num_experts == 4 and found.num_experts_per_token == 2
    for step in found.steps:
        assert len(rows(found, step)) == BATCH * SEQUENCE
        assert rows(found, step) == rows(alone, step)


def test_ranks_are_those_of_the_tokens(gloo_pool: Pool) -> None:
    found = recorded(gloo_pool, dp=2, ep=2)
    assert [tuple(run) for run in found.runs] == [
        (step, rank, BATCH * SEQUENCE // 2) for step in (0, 1) for rank in (0, 1)
    ]


def test_the_last_steps_are_kept(gloo_pool: Pool, alone: RoutingTrace) -> None:
    found = recorded(gloo_pool, num_steps=1)
    assert found.steps == (1,) and rows(found, 1) == rows(alone, 1)
    assert not np.array_equal(rows(alone, 0), rows(alone, 1))


def test_what_cannot_be_recorded_is_said_before_anything_runs() -> None:
    with pytest.raises(ExecutionError, match="which has no experts"):
        check_recordable(MODELS["llama"], 8, 1)
    with pytest.raises(ExecutionError, match="whose halves"):
        check_recordable(MODELS["encoder experts"], 8, 1)
    with pytest.raises(ExecutionError, match="0 steps"):
        check_recordable(MODELS[MODEL], 8, 0)
    # 2^24 tokens x 2 layers x 2 experts x 2 bytes are 2^27: two steps are all that a trace holds
    check_recordable(MODELS[MODEL], 1 << 24, 2)
    with pytest.raises(ExecutionError, match="2 steps"):
        check_recordable(MODELS[MODEL], 1 << 24, 3)
