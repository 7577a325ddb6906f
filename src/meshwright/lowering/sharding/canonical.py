"""Gradients that are added in one order whatever the layout: what is kept apart and gathered for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from meshwright.ir.program import Program
from meshwright.ir.table import Size
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.stage.group.parameter_group import HeldGroup
from meshwright.stage.mesh import collapsed_axes

CANONICAL = "canonical_reduction"  # name of the pass that a plan gives
ALGORITHM = "all_gather.canonical"


def canonical_sizes(plan: Plan, held: Sequence[HeldGroup]) -> dict[int, Size]:
    """Bytes of every group's gradients of all microbatches and all copies, which each of the copies gathers."""
    lengths = {axis.name: axis.size for axis in collapsed_axes(plan)}
    found = {}
    for g, each in enumerate(held):
        copies = prod(lengths.get(axis, 1) for axis in each.group.replicated) * len(each.group.stages)
        num_bytes = float(
            copies * plan.num_microbatches * each.num_trained * dtype_bytes(plan.gradient_dtype)
        )
        found[g] = Size(f"contributions{g}", num_bytes, num_bytes)
    return found


@dataclass(frozen=True)
class CanonicalReduction:
    """A gradient of every microbatch where one sum was; the reduction, or the step, adds them in the order of replicas and
    microbatches (`executor.canonical_sum`)."""

    num_microbatches: int = 1
    name = CANONICAL

    def __call__(self, program: Program) -> Program:
        """The program with the memory of as many gradients."""
        sizes = tuple(
            row._replace(by_index=tuple(size * self.num_microbatches for size in row.by_index))
            if row.kind == "weight_gradient"
            else row
            for row in program.tables.value_bytes
        )
        return program.with_tables(value_bytes=sizes)


@dataclass(frozen=True)
class CanonicalOrder:
    """Gradients are added in one order in every layout, so that sums repeat to the last bit."""

    name = CANONICAL
    after = ("connect_stages",)
    before = ("reduce_gradients",)

    def check(self, plan: Plan) -> None:
        """Raise PlanError where gradients are scattered as they are made, or are of several devices' tokens at once."""
        if plan.ep > 1:
            raise PlanError(
                f"pass {self.name} keeps gradients of every microbatch apart, and with ep={plan.ep} those of experts are of "
                f"the microbatches of several devices",
                allowed="ep 1",
            )
        if plan.shared.divides_gradients:
            raise PlanError(
                f"pass {self.name} keeps whole gradients of every microbatch, and sharding={plan.sharding} shards them "
                f"at once",
                allowed="sharding none or zero1",
            )

    def made(self, lowering: Lowering) -> Pass | None:
        """Of as many microbatches as a step has."""
        return CanonicalReduction(lowering.plan.num_microbatches) if lowering.has_step else None
