"""The search of Galvatron over strategies a layer, and a plan that it found as a program: every layer and end a piece of its
stage, at the cost model's seconds.

In the program a layer's own exchanges are inside its passes, as the profile has them; a layer that is spread over more or
fewer devices than the one before it reshards what it gets, forward and backward half of `cost.switch_s` each. Between stages
are messages, and the backward of a stage's last microbatch reduces gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.program import Program
from meshwright.ir.table import Work
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules.order import registered
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.error import OutOfMemoryError
from meshwright.stage.piece import refined
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


def strategies(job: ProfiledJob, space: SearchCorner) -> Candidates:
    """Every strategy of a layer in a corner, sorted: powers of two whose product is the number of devices."""
    found = set()
    devices = job.hardware.num_devices // space.num_stages
    for width in _powers(1, min(space.max_degree, devices)):
        dp = devices // width
        if dp > job.microbatch_samples:
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
    for num_stages in _powers(1, job.hardware.num_devices):
        if num_stages > min(job.num_microbatches, job.model.num_layers):
            continue
        widest = job.hardware.num_devices // num_stages
        narrowest = widest // min(job.microbatch_samples, widest)
        degrees = [degree for degree in _powers(1, widest) if degree >= narrowest]
        yield from (SearchCorner(num_stages, degree, True, False) for degree in degrees)
        yield SearchCorner(num_stages, widest, False, True)
        yield from (SearchCorner(num_stages, degree, True, True) for degree in degrees)


def _powers(first: int, last: int) -> list[int]:
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
        candidates = strategies(job, space)
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
        layers_s: seconds of a layer by strategy, shape (strategies,).
        switches_s: seconds between neighbours, shape (former, latter).
        layers_mib: memory of a layer by strategy, from 0.
        num_layers: of the stage.
        limits_mib: memory for the layers, several questions at once.

    Returns: for each limit the index of every layer's strategy, or None where nothing fits.
    """
    num_strategies, num_levels = len(layers_s), max(0, *limits_mib) + 1
    fastest = np.zeros((num_strategies, num_levels))
    came_from = np.zeros((num_layers, num_strategies, num_levels), dtype=np.int16)
    for layer in range(num_layers):
        # The first layer has no neighbour before it.
        before = switches_s if layer else np.zeros_like(switches_s)
        extended = np.full_like(fastest, np.inf)
        for s, size in enumerate(layers_mib):
            reach = max(0, num_levels - int(size))
            value, former = _minimum(fastest[:, :reach], before[:, s])
            extended[s, num_levels - reach :] = value + layers_s[s]
            came_from[layer, s, num_levels - reach :] = former
        fastest = extended
    return [_trace_back(fastest, came_from, layers_mib, limit) for limit in limits_mib]


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
    fastest: Floats, came_from: NDArray[np.int16], layers_mib: NDArray[np.int64], limit: int
) -> list[int] | None:
    """The strategies of all layers that end at a limit."""
    if limit < 0 or not np.isfinite(fastest[:, limit]).any():
        return None
    chosen, level = [int(np.argmin(fastest[:, limit]))], limit
    for layer in range(len(came_from) - 1, 0, -1):
        former = int(came_from[layer, chosen[-1], level])
        level -= int(layers_mib[chosen[-1]])
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


FORWARD, BACKWARD, LAST_BACKWARD = "F", "B", "B with reduction"
Seconds = Mapping[str, float]


class LayerwiseProgram(NamedTuple):
    """A plan's step as a program, a list for every stage of the pipeline, and what its passes and messages cost."""

    program: Program
    costs: FixedCosts

    def span_s(self) -> float:
        """Seconds of the step on virtual time."""
        return metrics.span_s(simulate_program(self.program, self.costs, self.costs))


def layerwise_program(
    job: ProfiledJob, layers: Sequence[Strategy], cut: Sequence[int], ends: Strategy
) -> LayerwiseProgram:
    """The step of a plan by the job's schedule.

    Args:
        layers: a strategy each, first layer first.
        cut: layers of every stage.
        ends: strategy of embedding and head.
    """
    stages = list(_stages(job, layers, cut, ends))
    orders = registered()[job.schedule].orders(len(cut), job.num_microbatches)
    program = program_of_orders(refined(orders, [len(pieces) for pieces in stages]))
    pieces = [piece for stage in stages for piece in stage]
    seconds = {f"{name} {n}": each[name] for n, each in enumerate(pieces) for name in each}
    # what a message holds is the result of the last layer before the boundary
    sends = tuple(_send_s(job, layers[end - 1]) for end in accumulate(cut[:-1]))
    # what messages attain was measured between these stages, and they take nothing of the computes
    costs = FixedCosts(
        seconds, exchange=lambda message: Cost(sends[min(message.ends or (0,))], compute_share=0.0)
    )
    return LayerwiseProgram(Transfers()(_with_passes(program, len(pieces))), costs)


def _stages(
    job: ProfiledJob, layers: Sequence[Strategy], cut: Sequence[int], ends: Strategy
) -> Iterator[list[Seconds]]:
    """Pieces of every stage by name of the pass: embedding, layers, head. Of a single stage both ends are one piece."""
    end_passes, first = costs.ends_passes_s(job, ends), 0
    for stage, count in enumerate(cut):
        pieces = [_layer(job, layers, first + place, place == 0) for place in range(count)]
        end = _passes(*end_passes[stage])
        if stage == len(cut) - 1:
            pieces.append(end)
        elif stage == 0:
            pieces.insert(0, end)
        yield pieces
        first += count


def _layer(job: ProfiledJob, layers: Sequence[Strategy], number: int, is_first: bool) -> Seconds:
    """Passes of a layer; the first one of a stage takes what the message brings."""
    own = layers[number]
    switch_s = 0.0 if is_first else costs.switch_s(job, layers[number - 1], own) / 2
    forward_s, backward_s = costs.layer_passes_s(job, own, is_reducing=False)
    reducing_s = costs.layer_passes_s(job, own)[1]
    return _passes(forward_s + switch_s, backward_s + switch_s, reducing_s + switch_s)


def _passes(forward_s: float, backward_s: float, reducing_s: float | None = None) -> Seconds:
    """Seconds by pass; the ends reduce nothing, as in the cost model."""
    return {
        FORWARD: forward_s,
        BACKWARD: backward_s,
        LAST_BACKWARD: backward_s if reducing_s is None else reducing_s,
    }


def _send_s(job: ProfiledJob, layer: Strategy) -> float:
    """Seconds of one microbatch's hidden states to the next stage."""
    size = costs.samples_per_device(job, layer) * job.model.boundary_bytes
    return size / job.hardware.send_per_s[layer.pp]


def _with_passes(program: Program, num_pieces: int) -> Program:
    """The program with a work on every compute: its piece, its pass, and whether gradients are reduced in it."""
    names = (FORWARD, BACKWARD, LAST_BACKWARD)
    works = tuple(Work(f"{name} {piece}") for piece in range(num_pieces) for name in names)
    effects = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    last = program.columns.microbatch == program.columns.microbatch.max()
    chosen = np.where(effects == FORWARD, 0, np.where(last, 2, 1))
    return program.with_tables(works=works).with_columns(work=program.columns.stage * len(names) + chosen)
