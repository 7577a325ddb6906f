"""Routing traces: a training records which experts its tokens go to, and a plan is priced by what a trace says.

A placement that was made of a trace says where a training has its experts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright import catalog
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.routing.expert_placement import ExpertPlacement, GroupShape
from meshwright.specs.routing.routing_file import FORMS, read_routing, save_routing
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.specs.training.expert_capacity import ExpertCapacity

if TYPE_CHECKING:
    from meshwright.executor.job.gather import JobResult

SLOT = "expert_placement"
CONTIGUOUS = "contiguous"
PathLike = str | os.PathLike[str]
logger = logging.getLogger(__name__)


def recording(job: Any, path: PathLike | None, num_steps: int, every: int) -> Any:
    """The job, told to record its last steps, of every so many one, where `path` says where to. Raises SpecError where no
    trace can be written there, and ExecutionError where nothing is routed, or too much."""
    if path is None:
        return job
    file = Path(path)
    if file.suffix not in FORMS:
        raise SpecError(f"--record-routing {file}", allowed=f"a file that ends in {', '.join(FORMS)}")
    if not file.absolute().parent.is_dir():
        raise SpecError(f"there is no folder {file.absolute().parent}", next="make it, or name another file")
    return replace(job, routing_steps=num_steps, routing_every=every)


def with_placed_experts(job: Any, plan: Plan, placement: PathLike | ExpertPlacement | None) -> Any:
    """The job with experts on the devices that a placement, or its file, says; without one with neighbouring experts on each.

    Raises SpecError where the file is none, or of another model or group than the plan's, or has copies.
    """
    if placement is None:
        return job
    found = placement if isinstance(placement, ExpertPlacement) else ExpertPlacement.load(placement)
    layout = replace(job.training.layout, expert_slots=found.slots_in(plan.model, plan.ep))
    return replace(job, training=replace(job.training, layout=layout))


def keep_routing(result: JobResult, path: PathLike | None, said: Callable[[str], None]) -> None:
    """Write what was recorded; a job that was ended by force has nothing, and of a launched one rank 0 has it."""
    if path is not None and result.was_killed:
        logger.warning("no routing was recorded: the training ended before its ranks could write it")
    if path is None or result.routing is None:
        return
    save_routing(result.routing, path)
    said(f"routing of {result.routing.num_tokens:,} tokens is in {path}")


def with_routing(plan: Plan, routing: PathLike | RoutingTrace, placement: str = "") -> Plan:
    """The plan with the busiest device's load, as a trace has it, in place of balanced experts.

    Args:
        plan: whose expert-parallel degree says how many devices.
        routing: a trace of its model, or the file of one.
        placement: a file of an expert placement, or a name of the slot, fitted to the trace's first half and priced on the
            other; empty: neighbouring experts on one device.

    Raises SpecError where trace or placement are of another model or group.
    """
    load = busiest_load(routing_of(plan.model, routing), placement, plan.ep)
    return plan.changed(workload=replace(plan.workload, expert_load=load))


def routing_of(model: ModelSpec, routing: PathLike | RoutingTrace) -> RoutingTrace:
    """A trace, or the file of one, of this model. Raises SpecError where it is of another one."""
    trace = routing if isinstance(routing, RoutingTrace) else read_routing(routing)
    layers = tuple(number for number, block in enumerate(model.layers) if block.experts is not None)
    if model.experts is None or trace.layers != layers:
        raise SpecError(
            f"routing of the layers {_short(trace.layers)}, and {model.name} has experts in {_short(layers)}",
            allowed="a trace of the plan's own model",
            next="record one: meshwright train PLAN --record-routing FILE",
        )
    return trace.of_experts(model.experts.num_experts)


def busiest_load(
    trace: RoutingTrace, placement: str, num_devices: int, *, takes_copies: bool = True
) -> float:
    """Rows of the busiest of so many devices over the mean, mean of the layers, from 1 to as many as there are devices.

    Args:
        trace, placement: as of `with_routing`.
        takes_copies: may experts stand on several devices?

    Raises SpecError where a placement's file is none, or of another number of devices, or has copies that nobody takes.
    """
    if Path(placement).is_file():
        found = ExpertPlacement.load(placement)
        if found.num_devices != num_devices:
            raise SpecError(
                f"{placement} is for {found.num_devices} devices", allowed=f"the plan's ep, {num_devices}"
            )
    else:
        fitted, others = trace.parted(max(1, trace.num_tokens // 2)) if placement else (trace, trace)
        found, trace = catalog.filler(SLOT, placement or CONTIGUOUS)(fitted, GroupShape(num_devices)), others
    if found.has_copies and not takes_copies:
        raise SpecError(
            f"copies of experts in the placement {placement}",
            allowed="one without: what copies take of a device's memory is not priced",
            next="`meshwright place` by ex_flow, moe_tuner or round_robin",
        )
    load = float(found.imbalances(trace).mean())
    return min(float(num_devices), max(1.0, load))


def with_capacity(plan: Plan, factor: float) -> Plan:
    """The plan with no more rows on any device than a capacity lets its experts take.

    Of every sequence each takes `factor` even shares, rounded up, as `train --capacity-factor` drops the rest. Rows are not
    padded: where fewer come, fewer are priced.

    Raises SpecError for a factor that is none, or a model without experts; PlanError where routers see parts of sequences.
    """
    capacity = ExpertCapacity(factor)
    if not capacity:
        raise SpecError(
            f"a capacity factor of {factor:g}",
            allowed="a number above 0",
            next="leave it out: none is dropped",
        )
    capacity.check(plan)
    experts, length = plan.model.experts, plan.workload.sequence_length
    assert experts is not None, "checked above"
    number, chosen = experts.num_experts, experts.num_experts_per_token
    most = capacity.of_sequence(length, number, chosen) * number / (chosen * length)
    return plan.changed(workload=replace(plan.workload, expert_load=min(plan.workload.expert_load, most)))


def _short(layers: tuple[int, ...]) -> str:
    few = ", ".join(map(str, layers[:4])) or "none"
    return f"{few}, ... ({len(layers)})" if len(layers) > 4 else few
