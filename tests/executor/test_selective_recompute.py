"""Attention's core recomputed alone: the same numbers as one process in every layout, and what lives between F and B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.specs.error import PlanError, ProgramError
from tests.planned_case import Planned, assert_equal_to_one_process
from tests.training_case import largest_difference

ITERATIONS = 2


def selective(model: str = "llama", clip: float = 0.0, dropout: float = 0.0, **choices: Any) -> Planned:
    """A layout in which the core is recomputed."""
    return Planned(model, clip, dropout, choices={"recompute": "selective", **choices})


CASES = [
    selective("latent", optimizer="sgd"),
    selective(split_backward=True),
    selective("tied", pp=2, schedule="zb_h1"),
    selective("qwen", dp=2, sharding="zero3", split_backward=True),
    selective("gpt", tp=2, pp=2, sequence_parallel=True),
    selective(cp=2, context="all_gather", split_backward=True),
]
MORE = [
    selective("deepseek", dp=2, sharding="zero2", split_backward=True),
    selective("latent", cp=2, tp=2, context="ulysses"),
    selective("gpt"),
    selective(tp=2),
    selective("qwen", clip=0.1, tp=2, dp=2, sequence_parallel=True, sharding="zero3"),
    selective("mixtral", dp=2, sharding="zero1"),
    selective("qwen moe", dp=2, ep=2, tp=2, sequence_parallel=True),
    selective("tied", cp=2, context="ulysses", pp=2),
    selective("tied", pp=2, dp=2, passes=("canonical_reduction",)),
    selective("deep", pp=2, dp=2, schedule="zbv", sharding="zero3", passes=("unshard",)),
]


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE)], ids=str
)
def test_layouts_with_a_recomputed_core_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    job, plan = case.job(ITERATIONS)
    tables, columns = job.program.tables, job.program.columns
    names = [tables.effects[number].name for number in columns.effect.tolist()]
    copies = plan.num_devices // plan.pp  # of every block on each of them, and nothing else
    assert names.count("R") == plan.model.num_layers * plan.num_microbatches * copies
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


def test_a_recomputed_core_draws_nothing_else(gloo_pool: Pool) -> None:
    """With dropout, too, the numbers are those of a job that keeps everything."""
    kept = Planned(dropout=0.3).run(gloo_pool, ITERATIONS)
    for choices in ({}, {"tp": 2, "sequence_parallel": True}):
        again = selective(dropout=0.3, **choices).run(gloo_pool, ITERATIONS)
        assert again.losses == pytest.approx(kept.losses, rel=1e-10)
        assert largest_difference(again.gradients[0], kept.gradients[0]) < 1e-10


def without(program: Program, row: int) -> Program:
    """The program of which a row is left out."""
    offsets = program.offsets - (program.offsets > row)
    rows = np.delete(np.arange(len(program.columns)), row)
    return replace(program, columns=program.columns.take(rows), offsets=offsets)


@pytest.mark.parametrize("choices", [{}, {"tp": 2, "pp": 2}], ids=str)
def test_every_recompute_is_due_and_reads_what_lives(choices: dict[str, Any]) -> None:
    """R stands right before its backward; without it that reads what nobody wrote."""
    job, _ = selective(**choices).job(1)
    tables, columns = job.program.tables, job.program.columns
    verify(job.program)
    names = np.array([effect.name for effect in tables.effects])[columns.effect]
    places = np.flatnonzero(names == "R")
    assert set(names[places + 1]) == {"B"} and (columns.stage[places] == columns.stage[places + 1]).all()
    kept = {
        kind for effect in tables.effects if effect.name == "R" for kind in [p.kind for p in effect.writes]
    }
    assert kept == {"saved"}
    for row in (int(places[0]), int(places[-1])):
        with pytest.raises(ProgramError):
            verify(without(job.program, row))


def by_operation(model: str = "llama", clip: float = 0.0, **choices: Any) -> Planned:
    """A layout in which all but attention and every second product is recomputed."""
    return Planned(model, clip, choices={"recompute": "selective_op", **choices})


OPERATIONS = [
    by_operation("gpt", split_backward=True),
    by_operation("qwen", clip=0.1, tp=2, sequence_parallel=True),
    by_operation("tied", pp=2, cp=2, context="ulysses", schedule="zb_h1"),
]
MORE_OPERATIONS = [
    by_operation(
        "qwen", tp=2, sequence_parallel=True, token_parts="2", microbatch_size=2, split_backward=True
    ),
    by_operation(),
    by_operation("gpt", tp=2, pp=2),
    by_operation(tp=2, sequence_parallel=True, gathered="kept", split_backward=True),
    by_operation("tied", dp=2, sharding="zero3", split_backward=True),
    by_operation("qwen", tp=2, dp=2, sharding="zero2", sequence_parallel=True),
    by_operation("latent", cp=2, context="ring", optimizer="sgd"),
    by_operation("tied", cp=2, tp=2, context="all_gather", sequence_parallel=True),
    by_operation("mixtral", dp=2, sharding="zero1"),
    by_operation("deepseek", pp=2, tp=2),
    by_operation("ladder", tp=2, pp=2),
    by_operation("deep", pp=2, dp=2, schedule="zbv", sharding="zero3", passes=("unshard",)),
]


@pytest.mark.parametrize(
    "case",
    [*OPERATIONS, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE_OPERATIONS)],
    ids=str,
)
def test_layouts_recomputed_by_operation_equal_one_process(case: Planned, gloo_pool: Pool) -> None:
    job, _ = case.job(ITERATIONS)
    verify(job.program)
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)


def test_divided_experts_are_not_recomputed_by_operation() -> None:
    with pytest.raises(PlanError, match="recompute=selective_op with ep=2"):
        by_operation("mixtral of 4", dp=2, ep=2).job(1)
