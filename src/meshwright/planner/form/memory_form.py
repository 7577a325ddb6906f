"""Peak bytes of pipelines of one shape at once: always + gradients + saved x microbatches in flight + the largest moment,
as `memory_estimate` has it device by device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.cost_table import CostTables
from meshwright.planner.form.pipeline_form import ZERO3, Pipelines
from meshwright.planner.form.vocabulary_share import in_flight
from meshwright.planner.space.space import Space
from meshwright.prediction import memory_buffer as buffer
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.plan.plan import Plan
from meshwright.stage.group.value_size import StateSize, gradient_size, optimizer_size, parameter_size

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OWN_FORMS = ("1f1b", "gpipe", "interleaved_1f1b")


class StateBytes(NamedTuple):
    """Bytes of one parameter, of its gradient's sum, and by sharding of (parameter, optimizer's state, gradient); and what
    software keeps for every parameter of a stage, whole: by sharding while a backward ends, all the time, and all the time
    where there are copies to reduce with."""

    parameter: int
    gradient: int
    state: Mapping[int, tuple[StateSize, StateSize, StateSize]]
    kept: Mapping[int, tuple[int, int, int]]

    @classmethod
    def of(cls, space: Space) -> StateBytes:
        """Of all candidates: their formats are the same."""
        first = {
            number: int(np.argmax(space.sharding == number)) for number in np.unique(space.sharding).tolist()
        }
        plans = {number: space.plan(row) for number, row in first.items()}
        state = {
            n: (parameter_size(plan), optimizer_size(plan), gradient_size(plan)) for n, plan in plans.items()
        }
        kept = {number: _kept_sizes(plan) for number, plan in plans.items()}
        plan = next(iter(plans.values()))
        return cls(dtype_bytes(plan.dtype), dtype_bytes(plan.gradient_dtype), state, kept)


def _kept_sizes(plan: Plan) -> tuple[int, int, int]:
    """As of `memory_buffer.narrow_gradient_bytes` and `bucket_bytes`, of one parameter of a stage."""
    size, keeps = dtype_bytes(plan.dtype), plan.software_class.keeps
    narrow = size * buffer.has_narrow_gradients(plan)
    is_always = keeps.narrow_gradients == "always"
    return (
        narrow * (not is_always),
        narrow * is_always,
        size * (keeps.has_buckets and plan.sharding == "none"),
    )


def sharing(space: Space, rows: Ints) -> Ints:
    """Devices that share one copy of what is sharded, of dense parameters."""
    everybody = space.dp[rows] * space.cp[rows]
    degree = space.sharding_degree[rows]
    return np.where(space.sharding[rows] == 0, 1, np.where(degree > 0, degree, everybody))


def allocated_bytes(part: Pipelines, tables: CostTables, sizes: StateBytes, rows: Ints, case: Ints) -> Floats:
    """Bytes of the fullest device of each candidate in `rows`; `case`: its number in `part`."""
    activations = _activations(part) + tables.waiting[part.way][:, None]
    messages = tables.messages[part.way][:, None] if part.p > 1 else 0.0
    way, space = part.way[case], part.space
    state, gradients = _state(part, sizes, rows, case)
    kept = _kept(part, sizes, rows, case)
    state += kept.always
    is_first = ((space.sharding[rows] == ZERO3) & (part.m[case] == 1))[:, None]
    held = state + (activations + messages)[case]
    moment = np.zeros_like(held) + tables.transient[way][:, None]
    gathered = np.zeros_like(held) + tables.gathered[way][:, None]
    last = part.placed[-1]
    for place, stage, end in ((0, 0, 2),) if part.p == 1 else ((0, 0, 0), (last, -1, 1)):
        # a stage without blocks of its own gathers its end at another moment than others their blocks
        has_blocks = float(part.layers[stage] > 0)
        more = has_blocks * tables.gathered[way] + tables.ends[way, end]
        gathered[:, place] = np.maximum(gathered[:, place], more)
        reduced = has_blocks * (tables.transient[way] + tables.ends_reduced[way, end])
        moment[:, place] = np.maximum(moment[:, place], reduced)
    # every device has a part of a split vocabulary
    is_split = tables.share[way] > 0
    gathered += tables.share_gathered[way][:, None]
    moment += tables.share_gathered[way][:, None]
    has_loss, has_table = (is_split[:, None] | (np.arange(part.p) == place) for place in (last, 0))
    moment = np.maximum(moment, np.where(has_loss, tables.loss[way][:, None], 0.0))
    peak = held + np.where(is_first, 0.0, gradients) + gathered + moment
    table = np.where(has_table, tables.table_gradient[way][:, None], 0.0)
    last_backward = held + gradients - part.saved[case][:, : part.p] + table + kept.behind
    peak = np.maximum(peak, last_backward)
    return np.asarray(np.maximum(peak, state + gradients).max(axis=1))


def _activations(part: Pipelines) -> Floats:
    """What microbatches in flight keep, by device, at its fullest moment."""
    if part.schedule in OWN_FORMS or part.p == 1:
        return part.devices(part.saved * in_flight(_in_flight(part), part.vocabulary, part.m))
    found = np.zeros((len(part.m), part.p))
    for own, shape in part.shapes():
        for saved, waiting in zip(shape.saved, shape.pending, strict=True):
            each = np.repeat(saved[None], own.sum(), axis=0)
            counts = in_flight(each, part.vocabulary[own], part.m[own])
            kept = part.devices(part.saved[own] * counts + part.pending[own] * waiting)
            found[own] = np.maximum(found[own], kept)
    return found


def _in_flight(part: Pipelines) -> Floats:
    """Microbatches of every stage between forward and backward, when the device has most; one row each case."""
    device, m = np.arange(part.p), part.m[:, None]
    if part.schedule == "1f1b":
        return np.minimum(part.p - device[None, :], m).astype(float)
    if part.schedule == "gpipe":  # all of them, exactly
        return np.repeat(m.astype(float), part.p, axis=1)
    return _interleaved_in_flight(part, device, m)


def _interleaved_in_flight(part: Pipelines, device: Ints, m: Ints) -> Floats:
    rounded = -(-m // part.p) * part.p
    ahead = 2 * (part.p - device - 1) + (part.v - 1) * part.p
    most = np.minimum(np.minimum(ahead[None, :], rounded * part.v) + 1, rounded * part.v)
    whole, rest = most // (part.p * part.v), most % (part.p * part.v)
    chunk = np.arange(part.v)[None, :, None]
    found = whole[:, None, :] * part.p + np.clip(rest[:, None, :] - chunk * part.p, 0, part.p)
    return np.asarray(np.minimum(found, m[:, :, None]).reshape(len(part.m), -1), dtype=np.float64)


class Kept(NamedTuple):
    """Bytes that software keeps by device: all the time, and behind a stage's backward."""

    always: Floats
    behind: Floats


def _kept(part: Pipelines, sizes: StateBytes, rows: Ints, case: Ints) -> Kept:
    """Of every parameter of a device's stages, or of the largest of them, whole."""
    of_stage = (part.dense + part.expert)[case]
    whole = part.devices(of_stage)
    largest = np.stack([of_stage[:, np.array(part.placed) == d].max(axis=1) for d in range(part.p)], axis=1)
    has_copies = part.space.dp[rows] * part.space.cp[rows] > 1
    of_sharding = np.zeros((1 + max(sizes.kept), 3))
    of_sharding[list(sizes.kept)] = list(sizes.kept.values())
    behind, always, copied = of_sharding[part.space.sharding[rows]].T
    return Kept(whole * (always + copied * has_copies)[:, None], largest * behind[:, None])


def _state(part: Pipelines, sizes: StateBytes, rows: Ints, case: Ints) -> tuple[Floats, Floats]:
    """Bytes of parameters with the optimizer's state, and of gradients, by device."""
    dense, expert = part.devices(part.dense)[case], part.devices(part.expert)[case]
    shared = sharing(part.space, rows)[:, None]
    shards = part.tables.expert_shards[part.tables.group[rows]][:, None]
    state, gradients = np.zeros_like(dense), np.zeros_like(dense)
    sharding = part.space.sharding[rows]
    for number, (parameter, optimizer, gradient) in sizes.state.items():
        own = np.flatnonzero(sharding == number)
        if not len(own):
            continue
        whole = dense[own] + expert[own]
        divided = dense[own] / shared[own] + expert[own] / shards[own]
        state[own] = sum(
            size.num_bytes * (divided if size.is_shared else whole) for size in (parameter, optimizer)
        )
        gradients[own] = gradient.num_bytes * (divided if gradient.is_shared else whole)
    return state, gradients
