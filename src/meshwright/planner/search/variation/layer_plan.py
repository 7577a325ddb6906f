"""layer_wise: of a plan with one rule for all stages the one with blocks, and recomputed blocks, stage by stage.

Dynamic programming over contiguous runs of blocks: a stage on device d recomputes the fewest of its first blocks that
leave it within the memory, which 1F1B fills more on early devices; of all splits one whose longest device is shortest,
then one with the least sum over the devices, which is the fill and drain of 1F1B: (m - 1) max t_d + sum t_d. The idea of
stages that recompute differently is AdaPipe's (Sun et al., ASPLOS 2024). An interleaved plan keeps its split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.layer_costs import LayerCosts, layer_costs
from meshwright.planner.space.axis import MESH_ORDERS
from meshwright.prediction import memory_buffer as buffer
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import estimated_rejection
from meshwright.prediction.predicted import Predicted, predict
from meshwright.schedules.in_flight import InFlight, in_flight
from meshwright.schedules.order import registered
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan, Recompute

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SCHEDULES = ("1f1b", "interleaved_1f1b")
KINDS: tuple[Recompute, ...] = ("full", "selective_op", "selective")
# Of a step's seconds: weight of the sum of squares, by which of splits that are otherwise equal the most even is taken.
EVENNESS = 1e-6
# How often a plan that the estimate finds too large by rounding is looked for again, in less memory.
NUM_ATTEMPTS = 3


@dataclass(frozen=True)
class Split:
    """Blocks of every stage, and how many of them, its first ones, are recomputed."""

    layers: tuple[int, ...]
    recomputed: tuple[int, ...]


def is_uneven(model: ModelSpec) -> bool:
    """Are some blocks of another kind than others?"""
    return len(model.block_kinds(0, model.num_layers)) > 1


def layer_wise(
    planned: Predicted,
    cluster: ClusterSpec,
    capacity_bytes: int,
    *,
    kinds: Sequence[Recompute] = KINDS,
    extrapolate: bool = False,
) -> Plan | None:
    """The fastest plan with the same degrees whose stages differ, if one is faster than `planned`.

    Args:
        capacity_bytes: what a device has, as of `memory_limit.estimated_rejection`.
        kinds: of recompute that may be used, besides none at all; ("none",) moves blocks only.
        extrapolate: as of `predict`.

    Returns: a plan that fits by `estimate_memory` and is faster by `predict`; None where there is none, or where the
        plan's schedule, mesh order or vocabulary is none that is priced here.
    """
    best, best_s = None, planned.step.value
    for plan in dict.fromkeys(candidates(planned.plan, cluster, capacity_bytes, kinds, extrapolate)):
        if plan == planned.plan:
            continue
        seconds = predict(plan, cluster, extrapolate=extrapolate).step.value
        if seconds < best_s:
            best, best_s = plan, seconds
    return best


def candidates(
    plan: Plan,
    cluster: ClusterSpec,
    capacity_bytes: int,
    kinds: Sequence[Recompute] = KINDS,
    extrapolate: bool = False,
) -> Iterator[Plan]:
    """The best layer-wise plan of each kind of recompute that fits. Raises PlanError as `pricing_of`."""
    has_own_order = "-".join(plan.mesh_order) not in MESH_ORDERS or plan.device_order
    if plan.schedule not in SCHEDULES or plan.vocabulary != "ends" or has_own_order:
        return
    if plan.model.num_layers < plan.num_stages:
        return
    costs = layer_costs(plan, cluster, kinds, extrapolate=extrapolate) if plan.num_chunks == 1 else {}
    for kind in kinds:
        if plan.num_chunks > 1:
            found = same_split(plan, cluster, capacity_bytes, kind)
        else:
            found = _within(plan, cluster, capacity_bytes, kind, costs[kind])
        if found is not None:
            yield found
        if found is not None and found.recompute == "none":
            return  # the other kinds find the same


def _within(
    plan: Plan, cluster: ClusterSpec, capacity_bytes: int, kind: Recompute, costs: LayerCosts
) -> Plan | None:
    """A plan that fits by the estimate; where rounding leaves it too large, from less memory."""
    room, schedule = capacity_bytes - buffer.context_bytes(plan), registered()[plan.schedule]
    for _ in range(NUM_ATTEMPTS):
        split = best_split(costs, room)
        if split is None:
            return None
        found = _changed(plan, split, kind)
        missed = estimated_rejection(found, estimate_memory(found, cluster, schedule), capacity_bytes)
        if missed is None:
            return found
        room -= missed.excess_bytes
    return None


def _changed(plan: Plan, split: Split, kind: Recompute) -> Plan:
    """The plan with this split; equal ways to say it become the same."""
    is_all = split.recomputed == split.layers
    if not any(split.recomputed):
        return plan.changed(layers_per_stage=split.layers, recompute="none", recompute_blocks=())
    blocks = () if is_all else split.recomputed
    return plan.changed(layers_per_stage=split.layers, recompute=kind, recompute_blocks=blocks)


def best_split(costs: LayerCosts, room_bytes: float) -> Split | None:
    """The split over devices with one stage each, each of one block at least; None where nothing fits.

    Least in max t_d; then in the sum of t_d (1 + `EVENNESS` t_d / max).
    """
    pairs = [fewest_recomputed(costs, device, room_bytes) for device in range(costs.num_devices)]
    edges = _edges(np.stack([seconds for seconds, _ in pairs]))
    if edges is None:
        return None
    layers = tuple(b - a for a, b in zip(edges[:-1], edges[1:], strict=True))
    counts = tuple(int(pairs[d][1][a, b]) for d, (a, b) in enumerate(zip(edges[:-1], edges[1:], strict=True)))
    return Split(layers, counts)


def fewest_recomputed(costs: LayerCosts, device: int, room_bytes: float) -> tuple[Floats, Ints]:
    """Of every stage of blocks a to b - 1 at [a, b]: seconds of a microbatch there and back, infinite where it does not
    fit, and the fewest of its first blocks that are run again."""
    a, b = np.ogrid[: costs.num_layers + 1, : costs.num_layers + 1]
    held = costs.held[b] - costs.held[a]
    whole = costs.saved[b] - costs.saved[a] + costs.end_saved[device]
    most = [costs.most_saved(device, room_bytes, held, has_again) for has_again in (False, True)]
    needed = np.searchsorted(costs.freed, costs.freed[a] + whole - most[1])
    counts = np.where(whole <= most[0], 0, np.clip(needed - a, 1, np.maximum(b - a, 1)))
    least = whole - (costs.freed[b] - costs.freed[a]) - costs.end_freed[device]
    fits = (b > a) & ((counts < b - a) | (whole <= most[0]) | (least <= most[1]))
    ends = np.minimum(a + counts, costs.num_layers)
    again = costs.again[ends] - costs.again[a] + costs.end_again[device] * ((counts == b - a) & (counts > 0))
    again = again + costs.received_again[device] * (counts > 0)
    seconds = costs.seconds[b] - costs.seconds[a] + costs.end_s[device] + again
    return np.where(fits, seconds, np.inf), counts


def _edges(seconds: Floats) -> tuple[int, ...] | None:
    """First blocks of the devices' stages and the end, from the seconds of all stages [device, a, b]."""
    last = seconds.shape[1] - 1
    worst = np.full(last + 1, np.inf)
    worst[0] = 0.0
    for table in seconds:
        worst = np.maximum(worst[:, None], table).min(axis=0)
    if not np.isfinite(worst[last]):
        return None
    total = np.full(last + 1, np.inf)
    total[0] = 0.0
    former = []
    for table in seconds:
        allowed = np.where(table <= worst[last], table, np.inf)
        each = total[:, None] + allowed * (1 + EVENNESS * allowed / worst[last])
        former.append(each.argmin(axis=0))
        total = each.min(axis=0)
    edges = [last]
    for came in reversed(former):
        edges.append(int(came[edges[-1]]))
    return tuple(reversed(edges))


def same_split(plan: Plan, cluster: ClusterSpec, capacity_bytes: int, kind: Recompute) -> Plan | None:
    """The plan's own split over chunks, every device with the fewest recomputed blocks that fit, those first that most
    microbatches in flight keep; None where nothing fits."""
    schedule, layers = registered()[plan.schedule], plan.layers_per_stage
    peaks = in_flight(schedule, plan.pp, plan.num_microbatches, plan.num_chunks)
    order = [[] if kind == "none" else _most_kept_first(tops, layers) for tops in peaks]

    def made(chosen: Sequence[int]) -> Plan:
        counts = [0] * plan.num_stages
        for stages, number in zip(order, chosen, strict=True):
            for stage in stages[:number]:
                counts[stage] += 1
        return _changed(plan, Split(layers, tuple(counts)), kind)

    def fits(chosen: Sequence[int]) -> list[bool]:
        devices = estimate_memory(made(chosen), cluster, schedule).devices
        return [each.allocated_bytes + each.context_bytes <= capacity_bytes for each in devices]

    # one recomputed block alone may take more than it frees, so none at all is asked for apart
    high = [0 if enough else len(stages) for enough, stages in zip(fits([0] * plan.pp), order, strict=True)]
    low = [min(1, most) for most in high]
    if not all(fits(high)):
        return None
    while low != high:
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        enough = fits(middle)
        high = [mid if ok else b for mid, ok, b in zip(middle, enough, high, strict=True)]
        low = [a if ok else mid + 1 for mid, ok, a in zip(middle, enough, low, strict=True)]
    return made(high)


def _most_kept_first(tops: Sequence[InFlight], layers: Sequence[int]) -> list[int]:
    """Of a device every block's stage, of the stage with most microbatches in flight first."""
    most = {stage: max(top.saved[k] for top in tops) for k, stage in enumerate(tops[0].stages)}
    return [
        stage for stage in sorted(most, key=lambda each: (-most[each], each)) for _ in range(layers[stage])
    ]
