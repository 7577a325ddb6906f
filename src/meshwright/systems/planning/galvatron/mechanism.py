"""The search of Galvatron over strategies a layer: corners of the space, and the dynamic programme of every stage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.error import OutOfMemoryError
from meshwright.systems.planning.galvatron import cost as costs
from meshwright.systems.planning.galvatron.cost import MIB, Candidates, ProfiledJob, Sharding, Strategy

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SearchCorner:
    """One corner of the search: a depth, the widest degree, and which of tensor parallelism and Ulysses may be used."""

    num_stages: int
    max_degree: int
    has_tp: bool
    has_sp: bool


def strategies(num_devices: int, num_samples: int, space: SearchCorner) -> Candidates:
    """Every strategy of a layer in a corner, sorted: powers of two whose product is the number of devices.

    Args:
        num_samples: of a microbatch over all replicas, of which there are no more.
    """
    found = set()
    devices = num_devices // space.num_stages
    for width in powers(1, min(space.max_degree, devices)):
        dp = devices // width
        if dp > num_samples:
            continue
        shardings: tuple[Sharding, ...] = ("zero2", "zero3") if dp > 1 else ("none",)
        degrees = {(width, 1)} if space.has_tp else set()
        degrees |= {(1, width)} if space.has_sp else set()
        found |= {
            Strategy(space.num_stages, tp, sp, dp, sharding, is_recomputed)
            for tp, sp in degrees
            for sharding in shardings
            for is_recomputed in (False, True)
        }
    return tuple(sorted(found))


def spaces(job: ProfiledJob) -> Iterator[SearchCorner]:
    """The corners in the repository's order: no more stages than microbatches or layers."""
    for num_stages in powers(1, job.hardware.num_devices):
        if num_stages > min(job.num_microbatches, job.model.num_layers):
            continue
        widest = job.hardware.num_devices // num_stages
        narrowest = widest // min(job.microbatch_samples, widest)
        degrees = [degree for degree in powers(1, widest) if degree >= narrowest]
        yield from (SearchCorner(num_stages, degree, True, False) for degree in degrees)
        yield SearchCorner(num_stages, widest, False, True)
        yield from (SearchCorner(num_stages, degree, True, True) for degree in degrees)


def powers(first: int, last: int) -> list[int]:
    """Powers of two from first, itself one, to last."""
    return [2**i for i in range(first.bit_length() - 1, last.bit_length())]


@dataclass(frozen=True)
class LayerwisePlan:
    """What the search found.

    Attributes:
        step_s: seconds of a step by the cost model.
        layers: a strategy each, first layer first.
        layers_per_stage: how the layers are cut.
        ends: of embedding and head.
    """

    step_s: float
    layers: Candidates
    layers_per_stage: tuple[int, ...]
    ends: Strategy


def search(job: ProfiledJob, *, is_layerwise: bool = True) -> LayerwisePlan:
    """The fastest plan by the cost model that fits.

    Args:
        job: what is planned for.
        is_layerwise: each layer its own strategy; else one for all layers, embedding and head.

    Raises:
        OutOfMemoryError: nothing fits.
    """
    best: LayerwisePlan | None = None
    for space in spaces(job):
        candidates = strategies(job.hardware.num_devices, job.microbatch_samples, space)
        if not candidates or (best is not None and _bound_s(job, candidates) >= best.step_s):
            continue
        plans = _layerwise_plans if is_layerwise else _uniform_plans
        for plan in plans(job, space, candidates):
            if best is None or plan.step_s < best.step_s:
                best = plan
    if best is None:
        raise OutOfMemoryError(
            f"no strategy fits {costs.usable_bytes(job.memory_bytes) / 1e9:.1f} GB a device",
            next="give more memory or devices, or cut the batch into more microbatches",
        )
    return best


def best_layers(
    layers_s: Floats,
    switches_s: Floats,
    layers_mib: NDArray[np.int64],
    num_layers: int,
    limits_mib: Sequence[int],
) -> list[list[int] | None]:
    """The dynamic programme of one stage.

    Args:
        layers_s: seconds of a layer by strategy, shape (strategies,); or (layers, strategies) where layers differ.
        switches_s: seconds between neighbours, shape (former, latter).
        layers_mib: memory of a layer by strategy, from 0; in MiB, or in any other unit; shaped as `layers_s`.
        num_layers: of the stage.
        limits_mib: memory for the layers, several questions at once.

    Returns: for each limit the index of every layer's strategy, or None where nothing fits.
    """
    num_strategies, num_levels = layers_s.shape[-1], max(0, *limits_mib) + 1
    seconds = np.broadcast_to(layers_s, (num_layers, num_strategies))
    sizes = np.broadcast_to(layers_mib, (num_layers, num_strategies))
    fastest = np.zeros((num_strategies, num_levels))
    came_from = np.zeros((num_layers, num_strategies, num_levels), dtype=np.int16)
    for layer in range(num_layers):
        # The first layer has no neighbour before it.
        before = switches_s if layer else np.zeros_like(switches_s)
        extended = np.full_like(fastest, np.inf)
        for s, size in enumerate(sizes[layer]):
            reach = max(0, num_levels - int(size))
            value, former = _minimum(fastest[:, :reach], before[:, s])
            extended[s, num_levels - reach :] = value + seconds[layer, s]
            came_from[layer, s, num_levels - reach :] = former
        fastest = extended
    return [_trace_back(fastest, came_from, sizes, limit) for limit in limits_mib]


def _minimum(fastest: Floats, switch_s: Floats) -> tuple[Floats, NDArray[np.int16]]:
    """Smallest of fastest[s'] + switch_s[s'] over s' for every level, and the first s' that has it."""
    value = fastest[0] + switch_s[0]
    former = np.zeros(value.shape, dtype=np.int16)
    for other in range(1, len(switch_s)):
        candidate = fastest[other] + switch_s[other]
        is_less = candidate < value
        value = np.where(is_less, candidate, value)
        former[is_less] = other
    return value, former


def _trace_back(
    fastest: Floats, came_from: NDArray[np.int16], sizes: NDArray[np.int64], limit: int
) -> list[int] | None:
    """The strategies of all layers that end at a limit."""
    if limit < 0 or not np.isfinite(fastest[:, limit]).any():
        return None
    chosen, level = [int(np.argmin(fastest[:, limit]))], limit
    for layer in range(len(came_from) - 1, 0, -1):
        former = int(came_from[layer, chosen[-1], level])
        level -= int(sizes[layer, chosen[-1]])
        chosen.append(former)
    return chosen[::-1]


def layers_per_stage(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Even, the rest on the last stage."""
    even = num_layers // num_stages
    return (even,) * (num_stages - 1) + (num_layers - even * (num_stages - 1),)


def step_s(job: ProfiledJob, layers: Sequence[Strategy], ends: Strategy) -> float:
    """Seconds of a step by the cost model, the layers cut evenly."""
    cut = layers_per_stage(len(layers), ends.pp)
    starts = np.concatenate([[0], np.cumsum(cut)[:-1]])
    times = {s: (costs.layer_s(job, s, is_reducing=False), costs.layer_s(job, s)) for s in set(layers)}
    compute_s, reducing_s = np.add.reduceat(np.array([times[s] for s in layers]), starts).T
    return costs.pipeline_s(compute_s + np.array(costs.ends_s(job, ends)), reducing_s, job.num_microbatches)


def _layerwise_plans(
    job: ProfiledJob, space: SearchCorner, candidates: Candidates
) -> Iterator[LayerwisePlan]:
    """The dynamic programme of every stage, and for every strategy of the ends the plan that it leaves room for."""
    all_ends = _end_strategies(candidates)
    cut = layers_per_stage(job.model.num_layers, space.num_stages)
    layers_s = np.array([costs.layer_s(job, s) for s in candidates])
    switches_s = np.array([[costs.switch_s(job, a, b) for b in candidates] for a in candidates])
    free_mib = costs.usable_bytes(job.memory_bytes) // MIB - int(_buffer_bytes(job, space) / MIB)
    end_mib = {ends: [math.ceil(size / MIB) for size in costs.ends_bytes(job, ends)] for ends in all_ends}
    stages = []
    for stage, num_layers in enumerate(cut):
        layers_mib = np.array([math.ceil(costs.layer_bytes(job, s, stage) / MIB) for s in candidates])
        limits = [free_mib - end_mib[ends][stage] for ends in all_ends]
        stages.append(best_layers(layers_s, switches_s, layers_mib, num_layers, limits))
    for ends, found in zip(all_ends, zip(*stages, strict=True), strict=True):
        indices = [index for stage_found in found if stage_found is not None for index in stage_found]
        if len(indices) == job.model.num_layers:
            layers = tuple(candidates[index] for index in indices)
            yield LayerwisePlan(step_s(job, layers, ends), layers, cut, ends)


def _uniform_plans(job: ProfiledJob, space: SearchCorner, candidates: Candidates) -> Iterator[LayerwisePlan]:
    """One strategy for everything, where it fits."""
    cut = layers_per_stage(job.model.num_layers, space.num_stages)
    usable_mib, buffer = costs.usable_bytes(job.memory_bytes) // MIB, _buffer_bytes(job, space)
    for s in candidates:
        used = [
            math.ceil(buffer / MIB) + math.ceil(end / MIB) + n * math.ceil(costs.layer_bytes(job, s, i) / MIB)
            for i, (n, end) in enumerate(zip(cut, costs.ends_bytes(job, s), strict=True))
        ]
        if max(used) <= usable_mib:
            layers = (s,) * job.model.num_layers
            yield LayerwisePlan(step_s(job, layers, s), layers, cut, s)


def _end_strategies(candidates: Candidates) -> Candidates:
    """Those of the layers without recompute, which the ends do not have; sorted."""
    return tuple(s for s in candidates if not s.is_recomputed)


def _buffer_bytes(job: ProfiledJob, space: SearchCorner) -> float:
    """The gather buffer of tensor parallelism."""
    return costs.buffer_bytes(job, space.num_stages, space.max_degree) if space.has_tp else 0.0


def _bound_s(job: ProfiledJob, candidates: Candidates) -> float:
    """No plan of these is faster: every layer and both ends at their fastest, memory without limit."""
    layer_s = min(costs.layer_s(job, s, is_reducing=False) for s in candidates)
    ends_s = np.min([costs.ends_s(job, s) for s in _end_strategies(candidates)], axis=0)
    cut = layers_per_stage(job.model.num_layers, candidates[0].pp)
    compute_s = ends_s + layer_s * np.array(cut)
    return costs.pipeline_s(compute_s, np.zeros_like(compute_s), job.num_microbatches)
