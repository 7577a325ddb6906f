"""Groups of devices: the same lists at the same times up to rounding, and nothing else, are one group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge.device_group import ROUNDING, device_groups
from meshwright.ir.program import Axis, Program
from meshwright.ir.stored.equal_list import first_equal
from meshwright.ir.table import Work
from meshwright.ir.trace import Trace
from meshwright.lowering import Transfers, program_of_orders, with_works
from meshwright.schedules import registered
from meshwright.simulator import simulate_program

COSTS = FixedCosts.from_times(1.0, 1.0, 1.0)


def copied(stages: int, copies: int) -> Program:
    """A pipeline several times."""
    orders = registered()["1f1b"].orders(stages, 4)
    program = program_of_orders(orders, collapsed=[Axis("dp", copies, materialised=False)])
    works = {(name, stage): Work(name) for name in "FB" for stage in range(stages)}
    return Transfers()(with_works(program, works)).expand("dp")


def traced(stages: int = 3, copies: int = 4) -> Trace:
    return simulate_program(copied(stages, copies), COSTS, COSTS, iterations=2)


def test_copies_of_a_pipeline_are_a_group_a_stage():
    trace = traced()
    assert device_groups(trace) == tuple(tuple(range(s * 4, s * 4 + 4)) for s in range(3))


@pytest.mark.parametrize("share, is_alike", [(0.5, True), (3.0, False)])
def test_rounding_joins_and_a_delay_does_not(share, is_alike):
    trace = traced()
    span = trace.end_s.max()
    late = trace.end_s.copy()
    late[:, trace.program.offsets[6] : trace.program.offsets[7]] += share * ROUNDING * span
    groups = {group[0]: group for group in device_groups(replace(trace, end_s=late))}
    assert groups[4] == ((4, 5, 6, 7) if is_alike else (4, 5, 7))
    assert (6 in groups) is not is_alike


def test_a_device_that_is_told_something_else_stands_alone():
    trace = traced()
    part = trace.program.columns.part.copy()
    part[int(trace.program.offsets[5])] = 1
    other = replace(trace, program=trace.program.with_columns(part=part))
    assert device_groups(other)[1:3] == ((4, 6, 7), (5,))


def test_a_device_that_waits_for_something_stands_alone():
    trace = traced()
    row = int(trace.program.offsets[5])
    waits = replace(trace.program, after=np.array([[row + 3, row + 1]]))
    assert (5,) in device_groups(replace(trace, program=waits))


@given(st.lists(st.lists(st.integers(0, 1), max_size=3), min_size=1, max_size=12))
def test_equal_lists_are_those_that_python_finds_equal(lists):
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64)
    whole = np.array([value for each in lists for value in each], dtype=np.int64)
    found = first_equal(offsets, [whole, whole.astype(np.float64)])
    assert found.tolist() == [lists.index(each) for each in lists]
