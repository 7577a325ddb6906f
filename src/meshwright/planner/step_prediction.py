"""predict_step: the seconds of one training step of a plan on a cluster of GPUs, by its program on virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.replay import Wiring, wire
from meshwright.lowering.lower import lower
from meshwright.lowering.mesh import device_order
from meshwright.lowering.place import Placement, place
from meshwright.lowering.refine import num_pieces
from meshwright.schedules.order import Schedule, registered
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import Plan


@dataclass(frozen=True, eq=False)
class StepProgram:
    """A plan's step, ready to be priced: its quotient program, wired, on the devices of a cluster."""

    plan: Plan
    cluster: ClusterSpec
    wiring: Wiring
    placement: Placement


def step_program(plan: Plan, cluster: ClusterSpec, schedule: Schedule | None = None) -> StepProgram:
    """Lower a plan to the finest pieces that matter, and place it."""
    chosen = schedule or registered()[plan.schedule]
    program = lower(plan, chosen, pieces=num_pieces(plan))
    placement = place(program, cluster, device_order(plan))
    return StepProgram(plan, cluster, wire(program), placement)
