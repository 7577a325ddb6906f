"""Shares of an iteration that visit a parameter group, for paths that leave stages out."""

from __future__ import annotations

import pytest

from meshwright.executor.training.visited_share import visited_shares
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Hop, Microbatch, ParameterGroup
from meshwright.specs.error import ExecutionError


def program(weights: tuple[float, ...], *groups: ParameterGroup) -> Program:
    """Microbatch m goes through stage 0, stage m + 1 and stage 9."""
    paths = tuple((Hop(0, 0), Hop(m + 1, 0), Hop(9, 0)) for m in range(len(weights)))
    microbatches = tuple(Microbatch(1, weight, m) for m, weight in enumerate(weights))
    return ProgramBuilder([Axis("pp", 1)], paths=paths, microbatches=microbatches, groups=groups).build()


def test_a_stage_is_visited_by_the_weights_of_its_microbatches() -> None:
    groups = (ParameterGroup("a", (0,)), ParameterGroup("b", (1,)), ParameterGroup("c", (2,)))
    assert visited_shares(program((0.25, 0.75), *groups)) == (1.0, 0.25, 0.75)


def test_a_sum_that_is_one_but_for_rounding_is_one() -> None:
    assert visited_shares(program((0.1,) * 10, ParameterGroup("a", (0,)))) == (1.0,)


def test_stages_that_share_parameters_must_be_visited_alike() -> None:
    assert visited_shares(program((0.5, 0.5), ParameterGroup("tied", (0, 9)))) == (1.0,)
    with pytest.raises(ExecutionError, match="share tied"):
        visited_shares(program((0.5, 0.5), ParameterGroup("tied", (0, 1))))
