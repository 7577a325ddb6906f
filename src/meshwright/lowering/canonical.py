"""Gradients that are added in one order whatever the layout: what is kept apart and gathered for it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshwright.ir.program import Program
from meshwright.ir.table import Size
from meshwright.lowering.mesh import collapsed_axes
from meshwright.lowering.parameter_group import HeldGroup
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.plan import Plan

CANONICAL = "canonical_reduction"  # name of the pass that a plan gives
ALGORITHM = "all_gather.canonical"


def canonical_sizes(plan: Plan, held: Sequence[HeldGroup]) -> dict[int, Size]:
    """Bytes of every group's gradients of all microbatches and all copies, which each of the copies gathers."""
    lengths = {axis.name: axis.size for axis in collapsed_axes(plan)}
    found = {}
    for g, each in enumerate(held):
        copies = prod(lengths.get(axis, 1) for axis in each.group.replicated) * len(each.group.stages)
        num_bytes = float(
            copies * plan.num_microbatches * each.num_parameters * dtype_bytes(plan.gradient_dtype)
        )
        found[g] = Size(f"contributions{g}", num_bytes, num_bytes)
    return found


def kept_apart(program: Program, num_microbatches: int) -> Program:
    """The program with a gradient of every microbatch where one sum was."""
    sizes = tuple(
        row._replace(by_index=tuple(size * num_microbatches for size in row.by_index))
        if row.kind == "weight_gradient"
        else row
        for row in program.tables.value_bytes
    )
    return program.with_tables(value_bytes=sizes)
