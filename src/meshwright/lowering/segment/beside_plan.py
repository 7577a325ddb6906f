"""Which plans run two microbatches beside each other: tokens to experts of one travel beside computes of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.segment.beside_rows import neighbours
from meshwright.schedules.order import Pairs, Schedule, registered
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan

BESIDE = "ep"  # of `Plan.overlap`
EXPERTS = "expert parallel"  # the label of what goes to experts inside a composed stage


def is_beside(plan: Plan) -> bool:
    """Does anything travel to experts, and beside another microbatch's computes?"""
    return plan.ep > 1 and BESIDE in plan.overlap


def pairs_of(plan: Plan, schedule: Schedule) -> Pairs:
    """Which neighbours of an order may run beside each other: those of the schedule; on one stage every backward and the
    forward behind it, of which neither waits for the other. "": none."""
    return schedule.pairs or ("backward first" if plan.pp == 1 else "")


def has_pairs(plan: Plan, schedule: Schedule) -> bool:
    """Does the plan's order have any such neighbours? Of few microbatches it is all fill."""
    pairs = pairs_of(plan, schedule)
    if not pairs or plan.num_microbatches == 1:
        return False
    orders = schedule.orders(plan.pp, plan.num_microbatches, plan.num_chunks)
    return bool(neighbours(program_of_orders(orders, skips_stages=schedule.skips_stages), pairs))


def hidden_in_pairs(program: Program, plan: Plan, schedule: Schedule, pieces: Sequence[int]) -> Program:
    """A program of composed stages in which what its works say to run beside another microbatch's experts is waited for where
    no other stands beside: in what fills the pipeline, and what drains it. Orders without pairs stay as they are: software
    that hides tokens in them has an order of its own, which is not known here. `pieces`: of every stage the pipeline's."""
    pairs = pairs_of(plan, schedule) if is_beside(plan) else ""
    if not pairs:
        return program
    rows = np.flatnonzero(program.kinds == Kind.COMPUTE)
    ends = np.searchsorted(rows, program.offsets)
    alone = np.ones(len(program), dtype=bool)
    for one, other in neighbours(
        replace(program, columns=program.columns.take(rows), offsets=ends), pairs, tuple(pieces)
    ):
        alone[rows[one.begin : other.end]] = False
    works, number = list(program.tables.works), program.columns.work.copy()
    for place, work in enumerate(program.tables.works):
        own = alone & (number == place)
        if own.any() and any(each.label == EXPERTS and each.beside for each in work.inner):
            shown = (each._replace(beside="") if each.label == EXPERTS else each for each in work.inner)
            number[own] = len(works)
            works.append(work._replace(inner=tuple(shown)))
    return program.with_tables(works=tuple(works)).with_columns(work=number)


def asked_pairs(plan: Plan, schedule: Schedule) -> Pairs:
    """Those that run beside each other in the plan. Raises PlanError where it asks for that and none may."""
    if not is_beside(plan):
        return ""
    if plan.has_parts:
        raise PlanError(
            f'overlap has "{BESIDE}" and token_parts is {plan.token_parts!r}',
            allowed="microbatches beside each other, or parts of one: either hides what is sent to experts",
            next="leave one of the two out",
        )
    pairs = pairs_of(plan, schedule)
    if not pairs:
        allowed = ", ".join(name for name, each in registered().items() if each.pairs)
        raise PlanError(
            f'overlap has "{BESIDE}" with schedule {plan.schedule} on {plan.pp} stages: a forward and a backward beside each '
            "other begin and end together, so that every stage would wait for both of the next one: half of its rate",
            allowed=f"one stage, or a schedule made of such pairs: {allowed}",
            next="take one of these, or token_parts, which needs no other microbatch",
        )
    if not has_pairs(plan, schedule):
        raise PlanError(
            f'overlap has "{BESIDE}" and in the order of {plan.schedule} with {plan.num_microbatches} microbatches no '
            "forward of one stands beside a backward of another",
            allowed="two microbatches on one stage, and more than fill the pipeline",
            next=f'leave "{BESIDE}" out of overlap, or take smaller microbatches',
        )
    return pairs
