"""StepProgram: one training step of a plan as a program on its devices, ready to be priced and run on virtual time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from meshwright.costs.pricing import Pricing, step_costs
from meshwright.costs.step.step_costs import StepConstants
from meshwright.ir.judge import metrics
from meshwright.ir.program import Program
from meshwright.ir.timing.matching import moved_codes
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import Wiring, wire
from meshwright.ir.trace import Trace
from meshwright.lowering.grouped_program import grouped_program
from meshwright.lowering.lower import lower
from meshwright.lowering.place import Placement, place
from meshwright.prediction.composition import is_refused
from meshwright.schedules.order import Schedule, registered
from meshwright.schedules.pipeline_times import PipelineTimes
from meshwright.simulator.pricing import Prices, price
from meshwright.simulator.simulate import simulate_priced
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import AXES, Plan
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.stage.mesh import device_order
from meshwright.stage.piece import as_executed, executed_pieces, num_pieces

PLAIN, PLAIN_IN_CHUNKS = "gpipe", "breadth_first"  # schedules for every number of microbatches
ITERATIONS = 3  # the first fills the pipeline; the period is measured from the second on
# Up to here every process has a list of its own, as in the trace of an execution; above it the data-parallel axis stays
# collapsed: its devices do the same, and nobody reads a timeline of more.
MATERIALISED_DEVICES = 16
# Wired programs that somebody still holds, by what they were lowered from: plans that only stand elsewhere share them.
_wired: WeakValueDictionary[tuple[Any, ...], Wiring] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class StepProgram:
    """A plan's step, ready to be priced: its program, wired, on the devices of a cluster."""

    plan: Plan
    cluster: ClusterSpec
    wiring: Wiring
    placement: Placement

    def priced(self, costs: Any) -> Prices:
        """What its rows cost by a cost and communication model; which links they occupy only where messages meet on them
        while they are simulated."""
        return price(self.wiring, costs, costs, self.placement, has_demands=self.has_contention)

    @property
    def pipeline_stages(self) -> tuple[int, ...]:
        """Of every stage of the program the stage of the pipeline of which it is a piece, or a segment of one."""
        plan = self.plan
        pieces = num_pieces(plan) if self.cluster.machine.has_streams else executed_pieces(as_executed(plan))
        of_piece = [stage for stage, count in enumerate(pieces) for _ in range(count)]
        names = self.wiring.program.tables.stage_names
        return tuple(of_piece[int(name.partition(":")[0])] for name in names) if names else tuple(of_piece)

    @property
    def has_contention(self) -> bool:
        """Do messages meet on links while it is simulated? Where exchanges have streams of their own, those that could meet
        have one stream, or it is in the fitted factors; not where a routing says the way, which nobody fitted."""
        return self.cluster.is_routed or not self.cluster.machine.has_streams


def schedule_of(plan: Plan) -> Schedule:
    """The registered schedule of a plan. Raises PlanError where nobody knows it."""
    found = registered().get(plan.schedule)
    if found is None:
        raise PlanError(
            f"the plan's schedule {plan.schedule!r} is not registered",
            allowed=", ".join(registered()),
            next="pass the schedule itself",
        )
    return found


def step_program(
    plan: Plan, cluster: ClusterSpec, schedule: Schedule | None = None, *, in_segments: bool = False
) -> StepProgram:
    """Lower a plan and place it: where exchanges have streams of their own to the finest pieces that matter, on processes
    to the pieces and lists that they run.

    `in_segments`: what tensor parallelism sends inside a stage is rows, as it is on processes anyway; else a stage's price is
    composed of its computes and of these exchanges, one behind the other, wherever it is not refused (`composition`).

    Raises PlanError and ScheduleError as `lowering.lower`; PlanError where nobody knows the schedule.
    """
    chosen = schedule or schedule_of(plan)
    if cluster.machine.has_streams:
        wiring = _shared(plan, chosen, in_segments or is_refused(plan))
    else:
        lowered = lower(as_executed(plan), chosen, pieces=executed_pieces(plan), in_segments=True)
        wiring = wire(materialised(lowered, plan.num_devices))
    return StepProgram(plan, cluster, wiring, place(wiring.program, cluster, device_order(plan)))


def grouped_step_program(plan: Plan, cluster: ClusterSpec, groups: GroupedBatch) -> StepProgram:
    """A step whose sequences are in groups of ranks, on the plan's devices: rank r is number r of its dp x cp. Raises
    PlanError as `grouped_program`."""
    program = grouped_program(plan, groups)
    if not cluster.machine.has_streams:
        program = materialised(program, plan.num_devices)
    wiring = wire(program)
    return StepProgram(plan, cluster, wiring, place(wiring.program, cluster, device_order(plan)))


def _shared(plan: Plan, schedule: Schedule, in_segments: bool) -> Wiring:
    """The plan lowered and wired. No pass of the core reads where devices stand, so that plans which differ in nothing else
    have one program; what a named pass reads nobody knows."""
    alike = plan if plan.passes else replace(plan, cluster="", mesh_order=AXES, device_order=(), placement="")
    found = _wired.get(key := (alike, schedule, pieces := num_pieces(plan), in_segments))
    if found is None:
        found = wire(lower(plan, schedule, pieces=pieces, in_segments=in_segments))
        _wired[key] = found
    return found


def materialised(program: Program, num_devices: int) -> Program:
    """Every device with its own list where there are few, otherwise as it is."""
    if num_devices > MATERIALISED_DEVICES:
        return program
    for axis in program.axes:
        program = program.expand(axis.name)
    return program


def step_trace(made: StepProgram, prices: Prices, iterations: int) -> Trace:
    """So many iterations on virtual time."""
    if made.has_contention:
        return simulate_priced(made.wiring, prices, iterations=iterations, host=made.cluster.machine.host)
    times = replay(
        made.wiring, prices.seconds, prices.latency_s, prices.cost_of_row, iterations=iterations,
        host=made.cluster.machine.host,
    )  # fmt: skip
    return Trace(made.wiring.program, *times, engine="max-plus")


def pipeline_times(plan: Plan, cluster: ClusterSpec, pricing: Pricing) -> PipelineTimes:
    """What the plan's stages and messages take on the devices where it puts them; of replicas the slowest.

    The forwards of a device are those of a plain pipeline of the same plan; messages from stage to stage are priced between
    any two of its devices, also those that send nothing to each other in the order of their numbers.

    Raises PlanError and ScheduleError as `lowering.lower`.
    """
    made = step_program(plan, cluster, registered()[PLAIN if plan.num_chunks == 1 else PLAIN_IN_CHUNKS])
    program, prices = made.wiring.program, made.priced(pricing.costs)
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    axes = list(made.placement.axes)
    devices = np.moveaxis(made.placement.devices, axes.index("pp"), 0).reshape(plan.pp, -1)
    by_list, forwards = prices.seconds[prices.cost_of_row], names == "F"
    forward_s = [0.0] * plan.pp
    for each in range(program.num_lists):
        mine = forwards & (program.list_of_row == each)
        stage = program.coordinates(each)["pp"]
        forward_s[stage] = max(forward_s[stage], float(by_list[mine].sum()) / plan.num_microbatches)
    sends = np.flatnonzero(names == "SEND_F")
    if not len(sends):
        return PipelineTimes(tuple(forward_s), ((0.0,) * plan.pp,) * plan.pp)
    exchange = program.tables.exchanges[program.columns.exchange[sends[0]]]
    num_bytes = float(made.wiring.deps.space.bytes[moved_codes(program)[sends]].max())

    def message_s(source: int, target: int) -> float:
        pairs = zip(devices[source].tolist(), devices[target].tolist(), strict=True)
        costs = [pricing.costs.exchange_cost(exchange, num_bytes, ends) for ends in pairs]
        return max(cost.seconds + cost.latency_s for cost in costs) if source != target else 0.0

    stages = range(plan.pp)
    return PipelineTimes(tuple(forward_s), tuple(tuple(message_s(s, t) for t in stages) for s in stages))


def simulated_s(made: StepProgram, constants: StepConstants) -> float:
    """Seconds of one step of GPUs at these constants."""
    costs = step_costs(made.plan, made.cluster, constants)
    return period_s(made.wiring, made.priced(costs)) + costs.between_steps_s


def period_s(wiring: Wiring, prices: Prices) -> float:
    """Seconds between the ends of successive iterations, without contention: exchanges that could meet on a link have
    one stream, or their contention is in the fitted factors."""
    times = replay(
        wiring, prices.seconds, prices.latency_s, prices.cost_of_row, iterations=ITERATIONS, host="asynchronous"
    )  # fmt: skip
    return metrics.period_s(Trace(wiring.program, *times, engine="max-plus"))
