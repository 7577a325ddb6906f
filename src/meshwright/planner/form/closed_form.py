"""The closed form: step seconds and peak bytes of every candidate of a space at once, from the tables of its parts.

    step   = what microbatches take to run through the pipeline (`pipeline_form`)
           + what gradients' reductions and parameters' gathers take beyond the computes beside them
           + the optimizer's step of the first device, which ends last and begins the next iteration, and the overhead
    memory = `memory_form`

What candidates have in common is evaluated once: stages do not depend on how state is sharded, nor on most orders of the
mesh. It ranks; what it ranks first is simulated. Nothing here is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.cost_table import EMBEDDING, HEAD, CostTables
from meshwright.planner.form.memory_form import StateBytes, allocated_bytes, sharing
from meshwright.planner.form.part_seconds import GRID
from meshwright.planner.form.pipeline_form import ZERO3, Pipelines, Travelling, num_pieces, running
from meshwright.planner.form.schedule_shape import gathered_share
from meshwright.planner.space.axis import SHARDINGS
from meshwright.planner.space.space import Space
from meshwright.prediction import memory_buffer as buffer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ZERO2 = SHARDINGS.index("zero2")
ROWS_AT_ONCE = 65_536  # candidates of one pipeline that are held at once; more memory, no more speed


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """Columns of a space.

    Attributes:
        step_s: seconds of a step; 0 without prices.
        least_s: seconds below which no step of the candidate can be simulated: what its busiest device computes.
        inside_s: of the step, at most so many seconds are exchanges inside stages that nothing hides.
        allocated_bytes: of the fullest device; `context_bytes` lie outside its allocator.
    """

    step_s: Floats
    least_s: Floats
    inside_s: Floats
    allocated_bytes: Floats
    context_bytes: Floats

    @property
    def needed_bytes(self) -> Floats:
        """What a device must have."""
        return self.allocated_bytes + self.context_bytes

    def taken(self, chosen: Ints) -> ClosedForm:
        """The candidates with these numbers, in this order."""
        return ClosedForm(*(column[chosen] for column in self._columns()))

    def with_memory(self, memory: ClosedForm) -> ClosedForm:
        """These steps with the bytes of another form of the same candidates."""
        return replace(self, allocated_bytes=memory.allocated_bytes, context_bytes=memory.context_bytes)

    @classmethod
    def joined(cls, forms: Sequence[ClosedForm]) -> ClosedForm:
        """One behind the other."""
        columns = zip(*(form._columns() for form in forms), strict=True) if forms else [(np.empty(0),)] * 5
        return cls(*(np.concatenate(each) for each in columns))

    def _columns(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        return self.step_s, self.least_s, self.inside_s, self.allocated_bytes, self.context_bytes


def closed_form(
    space: Space, tables: CostTables, *, has_memory: bool = True, has_steps: bool = True
) -> ClosedForm:
    """Evaluate every candidate; those of one pipeline together. Tables without prices give no steps."""
    step, least, inside, allocated = np.zeros((4, len(space)))
    sizes, is_priced = StateBytes.of(space), bool(tables.forward.any())
    for rows in _of_one_shape(space):
        part, case = _cases(space, tables, rows)
        if has_memory:
            allocated[rows] = allocated_bytes(part, tables, sizes, rows, case)
        if is_priced and has_steps:
            step[rows] = _step_s(part, sizes, rows, case)
            least[rows] = part.busy_s()[case] + tables.step_s
            inside[rows] = part.inside_s()[case]
    axes = (space.pp, space.dp, space.cp, space.tp, space.ep)
    num_communicators = sum((axis > 1).astype(np.float64) for axis in axes)
    context = buffer.CUDA_CONTEXT_BYTES + num_communicators * float(buffer.COMMUNICATOR_BYTES)
    return ClosedForm(step, least, inside, allocated, np.asarray(context, dtype=np.float64))


def _of_one_shape(space: Space) -> Iterator[Ints]:
    """Numbers of candidates with the same pipeline, schedule and split of the layers, some at a time."""
    most = int(space.num_chunks.max()) + 1
    num_schedules, num_splits = (int(column.max()) + 1 for column in (space.schedule, space.layers))
    shape = (
        (space.pp * most + space.num_chunks) * num_schedules + space.schedule
    ) * num_splits + space.layers
    order = np.argsort(shape, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(shape[order])) + 1):
        for begin in range(0, len(own), ROWS_AT_ONCE):
            yield own[begin : begin + ROWS_AT_ONCE]


def _cases(space: Space, tables: CostTables, rows: Ints) -> tuple[Pipelines, Ints]:
    """The pipelines of these candidates, each once, and the number of every candidate's. Under ZeRO-2 and 3
    what travels beside the passes depends on the group as well."""
    group = np.where(
        space.sharding[rows] >= ZERO2, 2 * tables.group[rows] + space.sharding[rows] - ZERO2 + 1, 0
    )
    keys = (tables.way[rows], tables.run[rows], space.recompute_blocks[rows], group)
    code = np.zeros(len(rows), dtype=np.int64)
    for key in keys:
        code = code * (int(key.max()) + 1) + key
    _, first, case = np.unique(code, return_index=True, return_inverse=True)
    return Pipelines.of(space, tables, rows[first]), case.reshape(-1)


class _Group(NamedTuple):
    """What candidates exchange with those that hold the same parameters: (all pieces of the first device, the first piece,
    which holds the embedding), in seconds."""

    all_s: Floats
    first_s: Floats


def _step_s(part: Pipelines, sizes: StateBytes, rows: Ints, case: Ints) -> Floats:
    """Seconds of a step."""
    space, tables = part.space, part.tables
    sharding, m = space.sharding[rows], part.m[case]
    overlaps = np.array(
        [[word in space.overlap(n) for n in range(len(SHARDINGS))] for word in ("reduce", "gather")]
    )
    has_reduce, has_gather = overlaps[:, sharding]
    pieces = num_pieces(part, (has_reduce | has_gather)[_first_of(case)], sharding[_first_of(case)])
    own = pieces[case]
    gather = _exchanged(part, rows, case, own, sizes.parameter, "gather")
    reduce = _exchanged(part, rows, case, own, sizes.gradient, "reduce")
    scatter = _exchanged(part, rows, case, own, sizes.gradient, "scatter")
    ran = running(part, pieces, _travelling(part, pieces, gather, scatter, sharding, _first_of(case)))
    send = tables.send[tables.send_row[rows]]
    found = ran.with_messages(part, case, send, m)
    found = found + _hidden_partly(part, case, own, reduce, has_reduce, sharding, gather)
    found = found + _gathers_s(part, case, own, gather, has_gather, sharding)
    return np.asarray(found + _stepped_s(part, rows, case) + tables.step_s)


def _first_of(case: Ints) -> Ints:
    """The first candidate of every case."""
    return np.unique(case, return_index=True)[1]


def _travelling(
    part: Pipelines, pieces: Ints, gather: _Group, scatter: _Group, sharding: Ints, first: Ints
) -> Travelling:
    """By case and device, what a microbatch's parameters and gradients take; of one stage alone the backward does not gather
    again what the forward has just read, and of stages in one piece computes that follow each other read the same. What the
    last microbatch's scatters take is found apart, as other reductions'."""
    share = part.devices(part.dense + part.expert)
    share = share / share[:, :1]
    is_gathered, is_reduced = sharding[first] == ZERO3, sharding[first] >= ZERO2
    gathered = is_gathered.astype(float)
    if part.p > 1 and (is_gathered & (pieces == 1)).any():
        runs = {m: gathered_share(part.schedule, part.p, part.v, m) for m in np.unique(part.m).tolist()}
        gathered *= np.where(pieces == 1, [runs[m] for m in part.m.tolist()], 1.0)
    forward = (gathered * gather.all_s[first])[:, None] * share
    again = gather.all_s[first] - (gather.first_s[first] if part.p == 1 else 0.0)
    backward = (gathered * again)[:, None] * share
    each = np.where(is_reduced, scatter.all_s[first] * (part.m - 1) / part.m, 0.0)
    return Travelling(forward, backward, each[:, None] * share)


def _on_grid(table: Floats, row: Ints, size: Floats) -> Floats:
    """Seconds of sizes on the grid, interpolated in logarithms; nothing takes nothing."""
    logs = np.log(GRID)
    at = np.log(np.maximum(size, GRID[0]))
    place = np.clip(((at - logs[0]) / (logs[1] - logs[0])).astype(np.int64), 0, len(GRID) - 2)
    share = (at - logs[place]) / (logs[1] - logs[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log(table)
        low, high = log[row, place], log[row, place + 1]
        found = np.exp(low * (1 - share) + high * share)
    return np.where((size > 0) & np.isfinite(low), found, 0.0)


def _exchanged(part: Pipelines, rows: Ints, case: Ints, pieces: Ints, each: int, kind: str) -> _Group:
    """Seconds to reduce, or gather, the first device's parameters piece by piece, of `each` bytes."""
    tables, way = part.tables, part.way[case]
    has_head = part.placed[-1] == 0
    embedding, head = (
        tables.dense[way, EMBEDDING] + tables.share[way],
        tables.dense[way, HEAD] if has_head else 0.0,
    )
    number = pieces * part.v
    blocks = part.first_device(part.dense)[case] - embedding - head
    dense = np.maximum(blocks, 0.0) / number
    expert = part.first_device(part.expert)[case] / number
    space, group = part.space, tables.group[rows]
    is_divided = (space.ep[rows] > 1) | (space.expert_tp[rows] != space.tp[rows])
    own, experts = getattr(tables, kind), getattr(tables, f"{kind}_expert")
    beside = np.where(is_divided, 0.0, expert)

    def seconds(size: Floats) -> Floats:
        return _on_grid(own, group, (size + beside) * each)

    apart = _on_grid(experts, group, expert * each) if is_divided.any() else np.zeros(len(rows))
    apart = np.where(is_divided, apart, 0.0)
    one, first = seconds(dense) + apart, seconds(dense + embedding) + apart
    last = seconds(dense + head) + apart if has_head else one
    return _Group(np.where(number > 1, (number - 2) * one + first + last, first), first)


def _hidden_partly(
    part: Pipelines, case: Ints, pieces: Ints, reduce: _Group, is_beside: NDArray[np.bool_], sharding: Ints, gather: _Group
) -> Floats:  # fmt: skip
    """What the first device waits for of its reductions."""
    earlier = part.backward[case, 0] * (pieces - 1) / pieces
    busy = np.where(sharding == ZERO3, np.maximum(earlier - gather.all_s, 0.0), earlier)
    hidden = np.maximum(reduce.first_s, reduce.all_s / part.v - busy)  # of the other chunks, reduced before
    return np.where(is_beside, hidden, reduce.all_s)


def _gathers_s(
    part: Pipelines, case: Ints, pieces: Ints, gather: _Group, is_beside: NDArray[np.bool_], sharding: Ints
) -> Floats:
    """What the first device waits for before its first forward."""
    busy = part.forward[case, 0] * (pieces - 1) / pieces
    waited = np.maximum(gather.first_s, gather.all_s / part.v - busy)
    found = np.where(sharding == ZERO3, gather.first_s, np.where(is_beside, waited, gather.all_s))
    return np.where(sharding > 0, found, 0.0)


def _stepped_s(part: Pipelines, rows: Ints, case: Ints) -> Floats:
    """Seconds of the first device's optimizer."""
    shards = np.where(part.space.sharding[rows] > 0, part.tables.expert_shards[part.tables.group[rows]], 1)
    dense, expert = part.first_device(part.dense)[case], part.first_device(part.expert)[case]
    size = dense / sharing(part.space, rows) + expert / shards
    return _on_grid(part.tables.step[None, :], np.zeros(len(rows), np.int64), size)
