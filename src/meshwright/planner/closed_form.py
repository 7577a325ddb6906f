"""The closed form: step seconds and peak bytes of every candidate of a space at once, from the tables of its parts.

    step   = m t_d + what lies before and behind d + its waits, for the device d that takes longest: 1F1B, m microbatches,
             t_d = F_d + B_d; (m + p - 1) t on p equal stages (with v interleaved chunks the fill is divided by v;
             Narayanan et al., arXiv 2104.04473)
           + messages, which the steady state hides where t is longest but not where all are equal
           + what gradients' reductions and parameters' gathers take beyond the computes beside them
           + the optimizer's step of the first device, which ends last and begins the next iteration, and the overhead
    memory = always + gradients + saved x microbatches in flight + the largest moment, as `memory_estimate`

It ranks; what it ranks first is simulated. Nothing here is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.lowering.refine import MAX_COMPUTES
from meshwright.lowering.value_size import StateSize, gradient_size, optimizer_size, parameter_size
from meshwright.planner import memory_buffer as buffer
from meshwright.planner.cost_table import EMBEDDING, GRID, HEAD, CostTables
from meshwright.planner.space import RECOMPUTES, SHARDINGS, Space
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.layers import split_layers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ROWS_AT_ONCE = 4096  # candidates of one pipeline whose stages are held at once; more memory, no more speed
ZERO3, FULL = SHARDINGS.index("zero3"), RECOMPUTES.index("full")


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """Columns of a space: seconds of a step; bytes that the fullest device allocates, and those outside its allocator."""

    step_s: Floats
    allocated_bytes: Floats
    context_bytes: Floats

    @property
    def needed_bytes(self) -> Floats:
        """What a device must have."""
        return self.allocated_bytes + self.context_bytes


def closed_form(space: Space, tables: CostTables) -> ClosedForm:
    """Evaluate every candidate; those of one pipeline (pp, num_chunks) together. Tables without prices give no steps."""
    step, allocated, sizes = np.zeros(len(space)), np.zeros(len(space)), _Sizes.of(space)
    shape = space.pp * (int(space.num_chunks.max()) + 1) + space.num_chunks
    order = np.argsort(shape, kind="stable")
    is_priced = bool(tables.forward.any())
    for own in np.split(order, np.flatnonzero(np.diff(shape[order])) + 1):
        for begin in range(0, len(own), ROWS_AT_ONCE):
            rows = own[begin : begin + ROWS_AT_ONCE]
            part = _Pipeline.of(space, tables, sizes, rows)
            allocated[rows] = _allocated(part)
            if is_priced:
                step[rows] = _step_s(part)
    axes = (space.pp, space.dp, space.cp, space.tp, space.ep)
    num_communicators = (np.stack(axes) > 1).sum(axis=0)
    context = buffer.CUDA_CONTEXT_BYTES + num_communicators * float(buffer.COMMUNICATOR_BYTES)
    return ClosedForm(step, allocated, np.asarray(context, dtype=np.float64))


class _Sizes(NamedTuple):
    """Bytes of one parameter, of its gradient's sum, and by sharding of (parameter, optimizer's state, gradient)."""

    parameter_bytes: int
    gradient_bytes: int
    state: Mapping[int, tuple[StateSize, StateSize, StateSize]]

    @classmethod
    def of(cls, space: Space) -> _Sizes:
        first = {
            number: int(np.argmax(space.sharding == number)) for number in np.unique(space.sharding).tolist()
        }
        plans = {number: space.plan(row) for number, row in first.items()}
        state = {
            n: (parameter_size(plan), optimizer_size(plan), gradient_size(plan)) for n, plan in plans.items()
        }
        plan = next(iter(plans.values()))
        return cls(dtype_bytes(plan.dtype), dtype_bytes(plan.gradient_dtype), state)


class _Pipeline(NamedTuple):
    """Candidates `rows` of one pipeline of p devices with v chunks each; per stage [n, p v], per device [n, p]."""

    space: Space
    tables: CostTables
    sizes: _Sizes
    rows: Ints
    p: int
    v: int
    m: Ints
    way: Ints
    group: Ints
    counts: Ints
    forward: Floats
    backward: Floats
    again: Floats
    dense: Floats
    expert: Floats

    @classmethod
    def of(cls, space: Space, tables: CostTables, sizes: _Sizes, rows: Ints) -> _Pipeline:
        p, v = int(space.pp[rows[0]]), int(space.num_chunks[rows[0]])
        layers = split_layers(space.model.num_layers, p * v)
        edges = np.concatenate([[0], np.cumsum(layers)])
        total = np.concatenate(
            [np.zeros((1, tables.counts.shape[1]), np.int64), np.cumsum(tables.counts, axis=0)]
        )
        counts = (total[edges[1:]] - total[edges[:-1]]).T
        way = tables.way[rows]

        def stages(table: Floats) -> Floats:
            found = np.asarray(table[way, :EMBEDDING] @ counts)
            found[:, 0] += table[way, EMBEDDING]
            found[:, -1] += table[way, HEAD]
            return found

        forward, again = stages(tables.forward), stages(tables.again)
        backward = stages(tables.backward) + again
        received = tables.received[way][:, None]
        forward[:, 1:] += received
        again[:, 1:] += received * (space.recompute[rows] == FULL)[:, None]
        backward[:, 1:] += received * (space.recompute[rows] == FULL)[:, None]
        backward[:, :-1] += received
        dense = stages(tables.dense)
        if space.model.has_tied_embeddings and p * v == 1:
            dense[:, 0] -= space.model.vocabulary_size * space.model.hidden_size / space.tp[rows]
        return cls(
            space, tables, sizes, rows, p, v, space.num_microbatches[rows], way, tables.group[rows], counts,
            forward, backward, again, dense, stages(tables.expert),
        )  # fmt: skip

    def devices(self, of_stage: Floats) -> Floats:
        """Sums over the chunks of a device."""
        return np.asarray(of_stage.reshape(len(self.rows), self.v, self.p).sum(axis=1))

    @property
    def sharding(self) -> Ints:
        return np.asarray(self.space.sharding[self.rows])

    def has_beside(self, name: str) -> NDArray[np.bool_]:
        """Does this communication run beside computes?"""
        runs = np.array([name in self.space.overlap(number) for number in range(len(SHARDINGS))])
        return runs[self.sharding]


def _on_grid(table: Floats, row: Ints, size: Floats) -> Floats:
    """Seconds of sizes on the grid, interpolated in logarithms; nothing takes nothing."""
    logs = np.log(GRID)
    at = np.log(np.maximum(size, GRID[0]))
    place = np.clip(((at - logs[0]) / (logs[1] - logs[0])).astype(np.int64), 0, len(GRID) - 2)
    share = (at - logs[place]) / (logs[1] - logs[0])
    low, high = table[row, place], table[row, place + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.exp(np.log(low) * (1 - share) + np.log(high) * share)
    return np.where((size > 0) & (low > 0), found, 0.0)


def _step_s(part: _Pipeline) -> Floats:
    """Seconds of a step."""
    f, b, m = part.devices(part.forward), part.devices(part.backward), part.m
    gather, last_gather = _gathered_s(part)
    is_sharded = part.sharding == ZERO3
    if part.p == 1:
        # parameters are gathered again for the backward, but not those that the forward has just read
        front = np.where(is_sharded, np.maximum(f[:, 0], gather), f[:, 0])
        back = np.where(is_sharded, np.maximum(b[:, 0], gather - last_gather), b[:, 0])
        running = m * (front + back)
    else:
        running = _pipeline_s(part, f, b)
    return np.asarray(running + _exposed_s(part, gather, last_gather) + part.tables.step_s)


def _pipeline_s(part: _Pipeline, f: Floats, b: Floats) -> Floats:
    """From the first device's first forward to its last backward; `b` with what runs again."""
    send = part.tables.send[part.tables.send_row[part.rows]]
    m, p, v = part.m, part.p, part.v
    again = (
        part.devices(part.again) / _pieces(part)[:, None]
    )  # of a stage in pieces only the first runs again early
    t = f + b
    longest = t.max(axis=1)
    once = (
        t - again
    )  # what a microbatch passes through: who waits for its gradient has run its forward again meanwhile
    once[:, -1] += again[:, -1]
    messages = 2 * (p - 1) * send
    if v > 1:
        rounds, rest = m // p, m % p
        total = once.sum(axis=1)
        last = np.where(
            rest > 0, (v - 1) / v * total + rest * longest / v, 0.0
        )  # its empty places stay empty
        fill = (total - once.max(axis=1)) / v
        return np.asarray(rounds * _round_s(part, longest) + last + fill + messages)
    # a round trip between neighbours holds two messages and one microbatch more than it has hops
    slower = np.maximum(0.0, t.mean(axis=1) + messages / p - longest)
    return np.asarray(_busy_and_waiting_s(f, b, once, again, m) + (m - 1) * slower + messages)


def _busy_and_waiting_s(f: Floats, b: Floats, once: Floats, again: Floats, m: Ints) -> Floats:
    """1F1B on unequal stages: the longest over devices of what lies before and behind, m microbatches, and two waits.

    Device d sends p - 1 - d microbatches ahead and then waits until the first has been through all devices behind;
    at the end the last one takes as long while the device works off those it had sent ahead.
    """
    p, found = f.shape[1], np.zeros(len(f))
    before = np.cumsum(once, axis=1) - once
    behind = once.sum(axis=1, keepdims=True) - before - once
    for d in range(p):
        ahead = np.minimum(p - 1 - d, m - 1)
        first = np.maximum(0.0, behind[:, d] - ahead * f[:, d] - again[:, d])
        last = np.where(m > p - d, np.maximum(0.0, behind[:, d] - ahead * b[:, d] - again[:, d]), 0.0)
        found = np.maximum(found, before[:, d] + m * (f[:, d] + b[:, d]) + first + last)
    return found


def _round_s(part: _Pipeline, longest: Floats) -> Floats:
    """One round of p microbatches through all chunks. Devices are at different places of it, so a chunk that is longer on
    some devices delays the others once for each of them but one, at most until every stage takes what the longest does."""
    each = (part.forward + part.backward).reshape(len(part.rows), part.v, part.p)
    most, least = each.max(axis=(1, 2)), each.min(axis=(1, 2))
    is_long = each > ((most + least) / 2)[:, None, None]
    delayed = (np.maximum(is_long.sum(axis=2) - 1, 0)).sum(axis=1) * (most - least)
    return np.asarray(
        np.minimum(part.p * longest + delayed, np.maximum(part.p * part.v * most, part.p * longest))
    )


def _bytes(part: _Pipeline, dense: Floats, expert: Floats, each: int, kind: str) -> Floats:
    """Seconds of one reduction or gather of so many parameters; experts that are divided have a group of their own."""
    tables, is_divided = part.tables, part.space.ep[part.rows] > 1
    together = dense + np.where(is_divided, 0.0, expert)
    own = getattr(tables, kind), getattr(tables, f"{kind}_expert")
    first = _on_grid(own[0], part.group, together * each)
    return first + np.where(is_divided, _on_grid(own[1], part.group, expert * each), 0.0)


def _gathered_s(part: _Pipeline) -> tuple[Floats, Floats]:
    """Seconds to gather the first device's parameters piece by piece, and those of one piece."""
    return _pieces_s(part, part.sizes.parameter_bytes, "gather")


def _pieces(part: _Pipeline) -> Ints:
    """Pieces of a stage of the first device, as `refine.num_pieces`."""
    blocks = max(1, int(part.counts[:, 0].sum()))
    passes = np.where(part.space.recompute[part.rows] == FULL, 3, 2)
    most = np.maximum(1, MAX_COMPUTES // (passes * part.m * part.p * part.v))
    split = part.has_beside("reduce") | part.has_beside("gather")
    return np.where(part.sharding == ZERO3, blocks, np.where(split, np.minimum(blocks, most), 1))


def _pieces_s(part: _Pipeline, each: int, kind: str) -> tuple[Floats, Floats]:
    """(all pieces of the first device, the piece that holds the embedding)."""
    n, own = _pieces(part), slice(0, None, part.p)
    ends = part.tables.dense[part.way, EMBEDDING] + (
        part.tables.dense[part.way, HEAD] if part.p == 1 else 0.0
    )
    blocks = part.dense[:, own].sum(axis=1) - ends
    number = n * part.v
    dense, expert = np.maximum(blocks, 0.0) / number, part.expert[:, own].sum(axis=1) / number
    one = _bytes(part, dense, expert, each, kind)
    first = _bytes(part, dense + part.tables.dense[part.way, EMBEDDING], expert, each, kind)
    last = _bytes(part, dense + part.tables.dense[part.way, HEAD], expert, each, kind) if part.p == 1 else one
    return np.where(number > 1, (number - 2) * one + first + last, first), first


def _exposed_s(part: _Pipeline, gather: Floats, first_gather: Floats) -> Floats:
    """What the first device waits for around its step: reductions, the optimizer, gathers."""
    n, own = _pieces(part), part.space
    reduce, last = _pieces_s(part, part.sizes.gradient_bytes, "reduce")
    f, b = part.forward[:, 0], part.backward[:, 0]
    earlier = b * (n - 1) / n
    is_zero3 = part.sharding == ZERO3
    busy = np.where(is_zero3, np.maximum(earlier - gather, 0.0), earlier)
    share = np.where(part.v > 1, 1.0 / part.v, 1.0)  # of the other chunks, reduced before
    hidden = np.maximum(last, reduce * share - busy)
    found = np.where(part.has_beside("reduce"), hidden, reduce)
    waited = np.maximum(first_gather, gather * share - f * (n - 1) / n)
    gathers = np.where(is_zero3, first_gather, np.where(part.has_beside("gather"), waited, gather))
    shared = np.where(part.sharding > 0, own.dp[part.rows] * own.cp[part.rows], 1)
    shards = np.where(part.sharding > 0, part.tables.expert_shards[part.group], 1)
    dense, expert = part.dense[:, :: part.p].sum(axis=1), part.expert[:, :: part.p].sum(axis=1)
    step = _on_grid(
        part.tables.step[None, :], np.zeros(len(part.rows), np.int64), dense / shared + expert / shards
    )
    return np.asarray(found + np.where(part.sharding > 0, gathers, 0.0) + step)


def _allocated(part: _Pipeline) -> Floats:
    """Bytes of the fullest device of each pipeline."""
    t, way = part.tables, part.way
    saved = t.saved[way, :EMBEDDING] @ part.counts
    saved[:, 0] += t.saved[way, EMBEDDING]
    saved[:, -1] += t.saved[way, HEAD]
    activations = part.devices(saved * _in_flight(part))
    state, gradients = _state(part)
    is_first = ((part.sharding == ZERO3) & (part.m == 1))[:, None]
    messages = t.messages[way][:, None] if part.p > 1 else 0.0
    held = state + activations + messages
    running = held + np.where(is_first, 0.0, gradients) + t.gathered[way][:, None]
    moment = np.zeros_like(running) + t.transient[way][:, None]
    moment[:, -1] = np.maximum(moment[:, -1], t.loss[way])
    peak = running + moment
    first = held[:, 0] + gradients[:, 0] - saved[:, 0] + t.table_gradient[way]
    peak[:, 0] = np.maximum(peak[:, 0], first)
    return np.asarray(np.maximum(peak, state + gradients).max(axis=1))


def _in_flight(part: _Pipeline) -> Floats:
    """Microbatches of every stage between forward and backward, when the device has most."""
    device, m = np.arange(part.p), part.m[:, None]
    if part.v == 1:
        return np.minimum(part.p - device[None, :], m).astype(float)
    rounded = -(-m // part.p) * part.p
    ahead = 2 * (part.p - device - 1) + (part.v - 1) * part.p
    most = np.minimum(np.minimum(ahead[None, :], rounded * part.v) + 1, rounded * part.v)
    whole, rest = most // (part.p * part.v), most % (part.p * part.v)
    chunk = np.arange(part.v)[None, :, None]
    found = whole[:, None, :] * part.p + np.clip(rest[:, None, :] - chunk * part.p, 0, part.p)
    return np.asarray(np.minimum(found, m[:, :, None]).reshape(len(part.rows), -1), dtype=np.float64)


def _state(part: _Pipeline) -> tuple[Floats, Floats]:
    """Bytes of parameters with the optimizer's state, and of gradients, by device."""
    dense, expert = part.devices(part.dense), part.devices(part.expert)
    shared = (part.space.dp[part.rows] * part.space.cp[part.rows])[:, None]
    shards = part.tables.expert_shards[part.group][:, None]
    state, gradients = np.zeros_like(dense), np.zeros_like(dense)
    for number, sizes in part.sizes.state.items():
        own = part.sharding == number
        found = [
            size.num_bytes
            * (dense / (shared if size.is_shared else 1) + expert / (shards if size.is_shared else 1))
            for size in sizes
        ]
        state[own], gradients[own] = (found[0] + found[1])[own], found[2][own]
    return state, gradients
