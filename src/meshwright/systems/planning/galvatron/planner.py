"""Galvatron's search as a planner: the dynamic programme on a user's model, and what of its result one plan can say.

A plan has one tensor, Ulysses and data-parallel degree and one sharding for all layers, and a number of recomputed blocks for
every stage. So the programme runs twice: over the strategies of one such family, whose best are plans, and over all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.search.proposal import Proposal
from meshwright.planner.space.check import check_open
from meshwright.prediction.memory_limit import Rejection, checked_memory, out_of_memory
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.units import format_seconds
from meshwright.systems.planning.galvatron.cost import Strategy, pipeline_s
from meshwright.systems.planning.galvatron.mechanism import (
    LayerwisePlan,
    SearchCorner,
    best_layers,
    layers_per_stage,
    powers,
    strategies,
)
from meshwright.systems.planning.galvatron.strategy_price import (
    StrategyPrice,
    plan_of,
    strategy_price,
    switch_s,
)

DECIDED = (
    *("pp", "tp", "dp", "cp", "context", "microbatch_size", "schedule", "num_chunks", "layers_per_stage", "mesh_order"),
    *("recompute", "recompute_blocks", "sharding", "sharding_degree", "sequence_parallel"),
)  # fmt: skip
NUM_LEVELS = 1024  # into which a device's memory is divided; the repository counts MiB
MOST_SAMPLES = 16  # of a microbatch on one device
NUM_PLANS = 12  # that are given, so many as are predicted
NUM_ATTEMPTS = 3  # at a plan that the estimate finds too large, each in less memory
LEAST_GAIN = 1e-3  # of a step, that is told


@dataclass(frozen=True)
class UserJob:
    """What is planned for; `choices` are further fields of all plans."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    choices: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class PricedCorner:
    """Strategies of one depth for microbatches of so many samples over all replicas, priced."""

    num_microbatches: int
    priced: tuple[StrategyPrice, ...]

    @property
    def num_stages(self) -> int:
        """Depth of the pipeline."""
        return self.priced[0].plan.pp


def planned(model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any]) -> Proposal:
    """As a planner: the fastest plans by Galvatron's score over our costs, and what layers that differ would gain by it.

    Raises:
        PlanError: devices are no power of two or unlike, nothing divides, or `fix` names what is decided here.
        OutOfMemoryError: nothing fits; names the nearest misses.
    """
    check_open(fix, DECIDED)
    _check_cluster(cluster)
    job, rejected = UserJob(model, cluster, workload, fix), list[Rejection]()
    every, found = list(corners(job)), list[tuple[float, Plan]]()
    for corner in every:
        for family in _families(corner):
            found += _sayable(job, corner.num_microbatches, family, rejected)
    if not found and not rejected:
        raise PlanError(
            f"no strategy divides {model.name} and a batch of {workload.global_batch} over {cluster.name}",
            allowed="a batch, heads and layers that powers of two divide",
            next="change the batch or the number of devices",
        )
    if not found:
        raise out_of_memory(rejected)
    found.sort(key=lambda one: one[0])
    free = best_of_all(job, every, found[0][0])
    return Proposal(tuple(plan for _, plan in found[:NUM_PLANS]), (_note(found[0][0], free),))


def corners(job: UserJob) -> Iterator[PricedCorner]:
    """Every depth with every number of samples, powers of two, and the strategies that a plan can have there."""
    node, devices = job.cluster.levels[0].num_devices, job.cluster.num_devices
    for num_stages in powers(1, devices):
        for num_samples in powers(1, job.workload.global_batch):
            num_microbatches, rest = divmod(job.workload.global_batch, num_samples)
            if rest or num_stages > min(num_microbatches, job.model.num_layers):
                continue
            space = SearchCorner(num_stages, min(node, devices // num_stages), has_tp=True, has_sp=True)
            tried = strategies(devices, num_samples, space)
            priced = [
                _priced(job, each, num_samples) for each in tried if num_samples <= MOST_SAMPLES * each.dp
            ]
            if kept := tuple(each for each in priced if each is not None):
                yield PricedCorner(num_microbatches, kept)


def _priced(job: UserJob, strategy: Strategy, num_samples: int) -> StrategyPrice | None:
    """The strategy priced; None where heads, width, vocabulary or sequence do not divide."""
    if job.model.vocabulary_size % strategy.tp:
        return None
    try:
        plan = plan_of(strategy, num_samples, job.model, job.cluster, job.workload, **job.choices)
    except PlanError:
        return None
    return strategy_price(plan, strategy, job.cluster)


def _families(corner: PricedCorner) -> Iterator[PricedCorner]:
    """Strategies that differ in recompute alone: what one plan can say of its layers."""
    groups: dict[Strategy, list[StrategyPrice]] = {}
    for each in corner.priced:
        groups.setdefault(replace(each.strategy, is_recomputed=False), []).append(each)
    for priced in groups.values():
        yield PricedCorner(corner.num_microbatches, tuple(priced))


def _sayable(
    job: UserJob, num_microbatches: int, family: PricedCorner, rejected: list[Rejection]
) -> Iterator[tuple[float, Plan]]:
    """The family's best plan with its seconds: nothing recomputed where that fits, else what the programme says."""
    plain = tuple(each for each in family.priced if not each.strategy.is_recomputed)
    for priced in (plain, family.priced):
        room, missed = min(each.room_bytes for each in priced), None
        for _ in range(NUM_ATTEMPTS):
            best = min(
                layerwise_plans(job.cluster, PricedCorner(num_microbatches, priced), room),
                key=lambda each: each.step_s, default=None,
            )  # fmt: skip
            if best is None:
                break
            plan = _said(plain[0].plan, best)
            missed = checked_memory(plan, job.cluster, job.cluster.memory_bytes)[1]
            if missed is None:
                yield best.step_s, plan
                return
            room -= missed.excess_bytes
    least = plain[0].plan.changed(recompute="full")
    missed = checked_memory(least, job.cluster, job.cluster.memory_bytes)[1]
    rejected += [missed] if missed else []


def _said(plan: Plan, found: LayerwisePlan) -> Plan:
    """The plan with as many recomputed blocks of every stage as were found."""
    edges = np.cumsum((0, *found.layers_per_stage))
    again = np.array([each.is_recomputed for each in found.layers], dtype=int)
    counts = tuple(int(again[a:b].sum()) for a, b in zip(edges[:-1], edges[1:], strict=True))
    if not any(counts):
        return plan
    is_all = counts == found.layers_per_stage
    return plan.changed(recompute="full", recompute_blocks=() if is_all else counts)


def layerwise_plans(cluster: ClusterSpec, corner: PricedCorner, room_bytes: float) -> Iterator[LayerwisePlan]:
    """For every strategy of the ends the plan that the programme finds in the memory which they leave."""
    priced, unit = corner.priced, room_bytes / NUM_LEVELS
    if room_bytes <= 0:
        return
    all_ends = [each for each in priced if not each.strategy.is_recomputed]
    cut = layers_per_stage(priced[0].plan.model.num_layers, corner.num_stages)
    edges = np.cumsum((0, *cut))
    layers_s = np.stack([each.layers_s for each in priced], axis=1)
    switches_s = np.array([[switch_s(one, other, cluster) for other in priced] for one in priced])
    all_ends_bytes = [ends_bytes(own, priced) for own in all_ends]
    stages = []
    for stage, (first, last) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        held = np.ceil(np.stack([each.layers_bytes[stage, first:last] for each in priced], axis=1) / unit)
        limits = [NUM_LEVELS - int(np.ceil(sizes[stage] / unit)) for sizes in all_ends_bytes]
        stages.append(
            best_layers(layers_s[first:last], switches_s, held.astype(np.int64), int(last - first), limits)
        )
    for own, found in zip(all_ends, zip(*stages, strict=True), strict=True):
        indices = [index for stage_found in found if stage_found is not None for index in stage_found]
        if len(indices) == len(layers_s):
            chosen = [priced[index] for index in indices]
            seconds = step_s(chosen, own, corner.num_microbatches)
            yield LayerwisePlan(seconds, tuple(each.strategy for each in chosen), cut, own.strategy)


def ends_bytes(ends: StrategyPrice, priced: Sequence[StrategyPrice]) -> NDArray[np.float64]:
    """What the ends take on a device of every stage; a moment in which blocks run again may need more than theirs."""
    again = replace(ends.strategy, is_recomputed=True)
    twins = [each.ends_bytes for each in priced if each.strategy == again]
    return np.asarray(np.max([ends.ends_bytes, *twins], axis=0))


def step_s(chosen: Sequence[StrategyPrice], ends: StrategyPrice, num_microbatches: int) -> float:
    """Seconds of a step by Galvatron's rule for pipelines, layer by layer as chosen."""
    starts = np.cumsum((0, *layers_per_stage(len(chosen), ends.plan.pp)))[:-1]
    compute_s = np.add.reduceat([each.layers_s[n] for n, each in enumerate(chosen)], starts)
    reducing_s = np.add.reduceat([each.reducing_s[n] for n, each in enumerate(chosen)], starts)
    return pipeline_s(compute_s + ends.ends_s, reducing_s, num_microbatches)


def best_of_all(job: UserJob, every: Sequence[PricedCorner], below_s: float) -> LayerwisePlan | None:
    """The fastest plan whose layers have any strategies, if one is faster than `below_s`."""
    best: LayerwisePlan | None = None
    for corner in every:
        if _bound_s(corner) >= below_s:
            continue
        room = min(each.room_bytes for each in corner.priced)
        for plan in layerwise_plans(job.cluster, corner, room):
            if plan.step_s < below_s:
                best, below_s = plan, plan.step_s
    return best


def _bound_s(corner: PricedCorner) -> float:
    """No plan of these is faster: every layer and both ends at their fastest, memory without limit."""
    layers: NDArray[np.float64] = np.min([each.layers_s for each in corner.priced], axis=0)
    cut = layers_per_stage(len(layers), corner.num_stages)
    sums = np.add.reduceat(layers, np.cumsum((0, *cut))[:-1])
    compute_s = sums + np.min([each.ends_s for each in corner.priced], axis=0)
    return pipeline_s(compute_s, np.zeros_like(compute_s), corner.num_microbatches)


def _check_cluster(cluster: ClusterSpec) -> None:
    devices = cluster.num_devices
    if devices & (devices - 1) or not cluster.is_homogeneous:
        raise PlanError(
            f"{devices} devices{'' if cluster.is_homogeneous else ' of several kinds'} with planner galvatron",
            allowed="a power of two of equal devices: it halves groups",
            next="take fewer devices, or plan without --planner",
        )


def _note(said_s: float, free: LayerwisePlan | None) -> str:
    """What layers of different degrees would gain, by the planner's own score."""
    if free is None or free.step_s > said_s * (1 - LEAST_GAIN):
        return (
            f"galvatron scores its best plan {format_seconds(said_s)}; layers that differ in tp, dp or sharding would gain "
            "nothing by its score"
        )
    layers = ", ".join(f"{count} {_words(each)}" for each, count in Counter(free.layers).items())
    return (
        f"galvatron scores its best plan {format_seconds(said_s)}; layers that differ in tp, dp or sharding would take "
        f"{format_seconds(free.step_s)} by its score, {100 * (1 - free.step_s / said_s):.1f} % less, which no plan can say: "
        f"{layers}; ends {_words(free.ends)}"
    )


def _words(strategy: Strategy) -> str:
    """Degrees, sharding and recompute, as plans are told."""
    degrees = {"tp": strategy.tp, "cp": strategy.sp, "pp": strategy.pp, "dp": strategy.dp}
    said = " ".join(f"{name}{degree}" for name, degree in degrees.items() if degree > 1) or "1 device"
    sharding = "" if strategy.sharding == "none" else f" {strategy.sharding}"
    return f"{said}{sharding}{' recomputed' if strategy.is_recomputed else ''}"
