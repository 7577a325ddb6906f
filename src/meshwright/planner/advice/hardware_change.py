"""Which one change of hardware would help a plan most: the same step, priced again on a cluster with one number changed.

Only changes that the prices follow are here. Kernels and messages keep the efficiencies that were measured on the real
device; only the nominal rate, or the hop of a link, is another. A change of memory changes no price: it lets a neighbour
of the plan fit that does not fit now (less recompute, less sharding, a microbatch of twice the size).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from meshwright.costs.collective.curve import NodeCurve, Pipe
from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.costs.collective.profile import CollectiveProfile, packaged_profile
from meshwright.costs.pricing import pricing_of
from meshwright.costs.roofline import Roofline
from meshwright.costs.step.step_costs import StepCosts
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import estimated_rejection
from meshwright.prediction.step_program import StepProgram, period_s, step_program
from meshwright.schedules.order import Schedule, registered
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import DeviceSpec, Link
from meshwright.specs.error import PlanError, ScheduleError
from meshwright.specs.plan.plan import RECOMPUTES, Plan
from meshwright.specs.plan.prediction import Prediction

TWICE, HALF = 2, 0.5
LEAST_GAIN = 0.005  # below half a percent a change does not help
LESS_SHARDING = "zero1"  # the most that gathers no parameters and reduces no gradients for every microbatch


class Planned(Protocol):
    """What `helps_most` needs to know of a plan: the decision, its schedule, and the step that was predicted for it."""

    @property
    def plan(self) -> Plan: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def step(self) -> Prediction: ...
    @property
    def composed_s(self) -> float: ...


@dataclass(frozen=True)
class HardwareChange:
    """One change and the step of the plan with it.

    Attributes:
        name: what is changed.
        step_s: seconds of one step with it.
        gain: how much faster, as a share: step now / step with it - 1.
        used_for: what of the plan changes with it; empty: nothing.
        keeps: what stays as it is, and so limits the gain.
    """

    name: str
    step_s: float
    gain: float
    used_for: str
    keeps: str

    @property
    def sentence(self) -> str:
        """For people: the change and what it gives."""
        used = f", used for {self.used_for}" if self.used_for else ""
        return f"{self.name}{used}: {self.percent} faster"

    @property
    def percent(self) -> str:
        """The gain for people."""
        return f"{round(100 * self.gain, 1) + 0.0:.1f} %"  # no minus before a zero


class _Change(NamedTuple):
    """A change of a cluster that the prices follow."""

    name: str
    applied: Callable[[ClusterSpec], ClusterSpec]
    keeps: str
    halves_latency: bool = False


def helps_most(planned: Planned, cluster: ClusterSpec) -> HardwareChange | None:
    """The change that would help most a plan whose step is known; None where none does, and for processes on CPUs. Of a step
    in segments the composed one is compared: so are those with the changes.

    Raises PlanError and ScheduleError as `step_program.step_program`.
    """
    if not cluster.machine.has_data_sheet:
        return None
    now_s = planned.step.value if math.isnan(planned.composed_s) else planned.composed_s
    found = hardware_changes(planned.plan, cluster, step_s=now_s, schedule=planned.schedule)
    return found[0] if found and found[0].gain >= LEAST_GAIN else None


def hardware_changes(
    plan: Plan,
    cluster: ClusterSpec,
    *,
    step_s: float | None = None,
    schedule: Schedule | None = None,
    capacity_bytes: int | None = None,
) -> tuple[HardwareChange, ...]:
    """Every change with the step of the plan, the most helpful first.

    Args:
        step_s: of the plan as it is, where it is known.
        schedule: instead of the registered one of the plan's name.
        capacity_bytes: of a device, where it is not what the cluster's have.

    Raises:
        PlanError: the devices are processes on CPUs, whose prices are measured; or as `step_program`.
    """
    if not cluster.machine.has_data_sheet:
        raise PlanError(
            f"changes of hardware for processes on {cluster.devices[0].name}",
            allowed="GPUs: prices of processes are measured on one machine",
        )
    made = step_program(plan, cluster, schedule)
    now_s = _step_s(made, cluster) if step_s is None else step_s
    found = [
        HardwareChange(each.name, after_s, now_s / after_s - 1, "", each.keeps)
        for each in _changes(cluster)
        for after_s in [_step_s(made, each.applied(cluster), halves_latency=each.halves_latency)]
    ]
    capacity = cluster.memory_bytes if capacity_bytes is None else capacity_bytes
    more_memory = _more_memory(plan, cluster, now_s, schedule or registered()[plan.schedule], capacity)
    return tuple(sorted([*found, *more_memory], key=lambda each: (-each.gain, each.name)))


def _changes(cluster: ClusterSpec) -> Iterable[_Change]:
    """The changes that mean something on this cluster."""
    efficiency = "the share of a rate that messages reach, and their latencies"
    yield _Change("twice the bandwidth of links inside a node", _faster_node, efficiency)
    if len(cluster.levels) > 1:
        yield _Change("twice the bandwidth between nodes", _faster_network, efficiency)
    yield _Change(
        "half the latency of links",
        _nearer,
        "the start of a collective, launches of kernels, and all rates",
        halves_latency=True,
    )
    yield _Change(
        "twice the memory bandwidth",
        _with_device(lambda each: replace(each, memory_bandwidth_bytes_per_s=TWICE * each.memory_bandwidth_bytes_per_s)),
        "caches, launches of kernels, and what the host does",
    )  # fmt: skip
    yield _Change(
        "twice the peak FLOP/s",
        _with_device(lambda each: replace(each, flops_per_s={k: TWICE * v for k, v in each.flops_per_s.items()})),
        "what caches feed to the units, launches of kernels, and what the host does",
    )  # fmt: skip


def _with_device(change: Callable[[DeviceSpec], DeviceSpec]) -> Callable[[ClusterSpec], ClusterSpec]:
    """The change of every device; equal ones stay one object, so that comparing a thousand is quick."""

    def applied(cluster: ClusterSpec) -> ClusterSpec:
        changed = {id(each): change(each) for each in {id(each): each for each in cluster.devices}.values()}
        return replace(cluster, devices=tuple(changed[id(each)] for each in cluster.devices))

    return applied


def _faster_node(cluster: ClusterSpec) -> ClusterSpec:
    inner = cluster.levels[0]
    faster = replace(inner, bandwidth_bytes_per_s=TWICE * inner.bandwidth_bytes_per_s)
    links = tuple(_faster(each) if _is_inside(cluster, each) else each for each in cluster.links)
    return replace(cluster, levels=(faster, *cluster.levels[1:]), links=links)


def _faster_network(cluster: ClusterSpec) -> ClusterSpec:
    outer = tuple(
        replace(each, bandwidth_bytes_per_s=TWICE * each.bandwidth_bytes_per_s) for each in cluster.levels[1:]
    )
    links = tuple(each if _is_inside(cluster, each) else _faster(each) for each in cluster.links)
    return replace(cluster, levels=(cluster.levels[0], *outer), links=links)


def _nearer(cluster: ClusterSpec) -> ClusterSpec:
    levels = tuple(replace(each, latency_s=HALF * each.latency_s) for each in cluster.levels)
    links = tuple(replace(each, latency_s=HALF * each.latency_s) for each in cluster.links)
    return replace(cluster, levels=levels, links=links)


def _faster(link: Link) -> Link:
    return replace(link, bandwidth_bytes_per_s=TWICE * link.bandwidth_bytes_per_s)


def _is_inside(cluster: ClusterSpec, link: Link) -> bool:
    """Are both ends of an explicit link in one node?"""
    per_node = cluster.levels[0].num_devices
    source, target = (int(end.removeprefix("device ")) // per_node for end in (link.source, link.target))
    return source == target


def _step_s(made: StepProgram, cluster: ClusterSpec, *, halves_latency: bool = False) -> float:
    """Seconds of the step of a program on a changed cluster: its prices are made again, its order is the same."""
    pricing = pricing_of(made.plan, cluster, extrapolate=True)
    costs = pricing.costs
    if halves_latency and isinstance(costs, StepCosts | Roofline) and costs.links is not None:
        costs = replace(costs, links=NcclCollectives(cluster, _halved_hops(packaged_profile())))
    there = replace(made, cluster=cluster, placement=replace(made.placement, cluster=cluster))
    return period_s(there.wiring, there.priced(costs)) + pricing.step_s


def _halved_hops(profile: CollectiveProfile) -> CollectiveProfile:
    """The fitted collectives with every hop of half its seconds; starts, rates and ramps as they are."""
    networks = {
        name: replace(
            each,
            curve=replace(each.curve, low_hop_s=HALF * each.curve.low_hop_s, hop_s=HALF * each.curve.hop_s),
        )
        for name, each in profile.networks.items()
    }
    chips = {name: replace(chip, curve=_halved_curve(chip.curve)) for name, chip in profile.chips.items()}
    return replace(profile, chips=chips, networks=networks)


def _halved_curve(curve: NodeCurve) -> NodeCurve:
    def halved(pipe: Pipe) -> Pipe:
        return replace(pipe, hop_s=HALF * pipe.hop_s)

    return replace(
        curve,
        ring_low=halved(curve.ring_low),
        ring_bulk=halved(curve.ring_bulk),
        direct_low=halved(curve.direct_low),
        direct_bulk=halved(curve.direct_bulk),
        message=halved(curve.message),
        switch=None if curve.switch is None else halved(curve.switch),
    )


def _more_memory(
    plan: Plan, cluster: ClusterSpec, now_s: float, schedule: Schedule, capacity: int
) -> Iterable[HardwareChange]:
    """The fastest neighbour of the plan that fits in twice the memory and not in what there is; nothing without one."""
    best: tuple[float, str] | None = None
    for used_for, neighbour in _neighbours(plan):
        if not _fits_only_in(neighbour, capacity, cluster, schedule):
            continue
        after_s = _step_s(step_program(neighbour, cluster, schedule), cluster)
        if best is None or after_s < best[0]:
            best = after_s, used_for
    if best is not None and best[0] < now_s:
        keeps = "all rates; other plans than neighbours of this one are for a search"
        yield HardwareChange("twice the memory", best[0], now_s / best[0] - 1, best[1], keeps)


def _neighbours(plan: Plan) -> Iterable[tuple[str, Plan]]:
    """Plans that differ in one choice that needs more memory, with that choice in words."""
    for recompute in RECOMPUTES[: RECOMPUTES.index(plan.recompute)]:
        blocks = () if recompute == "none" else plan.recompute_blocks
        yield f"recompute {recompute}", plan.changed(recompute=recompute, recompute_blocks=blocks)
    if plan.shared.divides_gradients:  # more than LESS_SHARDING
        yield f"sharding {LESS_SHARDING}", plan.changed(sharding=LESS_SHARDING)
    if plan.num_microbatches % TWICE == 0:
        size = TWICE * plan.microbatch_size
        yield f"a microbatch of {size}", plan.changed(microbatch_size=size)


def _fits_only_in(plan: Plan, memory_bytes: int, cluster: ClusterSpec, schedule: Schedule) -> bool:
    """Does it fit in twice that memory, and not in once? What a schedule refuses never fits."""
    try:
        memory = estimate_memory(plan, cluster, schedule)
    except ScheduleError:
        return False
    misses = [
        estimated_rejection(plan, memory, size) is not None for size in (memory_bytes, TWICE * memory_bytes)
    ]
    return misses == [True, False]
