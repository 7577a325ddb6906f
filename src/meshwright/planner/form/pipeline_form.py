"""Pipelines of one shape at once: what their stages take and hold, and how long microbatches run through them.

    1F1B         m t_d + what lies before and behind d + its waits, for the device d that takes longest, t_d = F_d + B_d;
                 (m + p - 1) t on p equal stages
    interleaved  rounds of p microbatches; with v chunks the fill is divided by v (Narayanan et al., arXiv 2104.04473)
    any other    m t_d of the longest device, and the idle passes of its shape (`schedule_shape`) on equal stages, whose F, I
                 and W take what these take on average

Messages are hidden in the steady state where t is longest, but not where all are equal. Nothing here is fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.cost_table import EMBEDDING, HEAD, CostTables
from meshwright.planner.form.schedule_shape import PassRatios, ScheduleShape, schedule_shape, stage_devices
from meshwright.planner.form.vocabulary_share import LATE
from meshwright.planner.space.axis import SHARDINGS
from meshwright.planner.space.space import Space
from meshwright.schedules.order import registered
from meshwright.specs.plan.plan import RECOMPUTES
from meshwright.stage.piece import MAX_COMPUTES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ALIKE = 8  # passes whose seconds differ by less than a forward's part of this share a shape
ZERO3, FULL = SHARDINGS.index("zero3"), RECOMPUTES.index("full")


class Pipelines(NamedTuple):
    """Candidates `rows` whose pipelines have p devices with v chunks each, one schedule and one split of the layers.

    Per stage [n, p v], per device [n, p]; seconds are 0 where tables have no prices. `placed`: the device of every stage.
    """

    space: Space
    tables: CostTables
    rows: Ints
    p: int
    v: int
    m: Ints
    layers: tuple[int, ...]
    placed: tuple[int, ...]
    way: Ints
    forward: Floats
    backward: Floats
    least_backward: Floats
    weight: Floats
    again: Floats
    host_waits: Floats
    inside: Floats
    saved: Floats
    pending: Floats
    dense: Floats
    expert: Floats
    share_forward: Floats
    share_backward: Floats

    @classmethod
    def of(cls, space: Space, tables: CostTables, rows: Ints) -> Pipelines:
        """The sums of these candidates."""
        p, v, layers = (
            int(space.pp[rows[0]]),
            int(space.num_chunks[rows[0]]),
            space.layers_per_stage(int(rows[0])),
        )
        schedule = space.names["schedule"][int(space.schedule[rows[0]])]
        placed = stage_devices(schedule, p, v) if p > 1 else (0,) * v
        way, run = tables.way[rows], tables.run[rows]
        edges = np.concatenate([[0], np.cumsum(layers)])
        again_counts = _first_blocks(tables, edges, layers)
        blocks = np.where(space.recompute_blocks[rows] > 0, space.recompute_blocks[rows], max(layers) + 1)
        is_full = space.recompute[rows] == FULL
        all_counts = again_counts(max(layers))

        def stages(table: Floats, row: Ints) -> Floats:
            found = np.asarray(table[row, :EMBEDDING] @ all_counts)
            found[:, 0] += table[row, EMBEDDING]
            found[:, -1] += table[row, HEAD]
            return found

        forward, saved = stages(tables.forward, run), stages(tables.saved, way)
        again = stages(tables.again, run)
        for count in np.unique(blocks[is_full]).tolist():
            if count <= max(layers):
                own, some = is_full & (blocks == count), again_counts(count)
                again[own] = tables.again[run[own], :EMBEDDING] @ some
                whole = tables.saved_whole[way[own], :EMBEDDING] @ (all_counts - some)
                kept = tables.saved[way[own], :EMBEDDING] @ some
                saved[own] += whole + kept - tables.saved[way[own], :EMBEDDING] @ all_counts
                # the embedding and the head are run again only with all blocks of their stage
                again[own, 0] += tables.again[run[own], EMBEDDING] * (layers[0] <= count)
                again[own, -1] += tables.again[run[own], HEAD] * (layers[-1] <= count)
        splits = registered()[schedule].splits_backward
        backward = stages(tables.split_backward if splits else tables.backward, run) + again
        received = tables.received[run][:, None]
        forward[:, 1:] += received
        again[:, 1:] += received * is_full[:, None]
        backward[:, 1:] += received * is_full[:, None]
        backward[:, :-1] += received
        least = (
            backward - stages(tables.split_backward, run) + stages(tables.backward, run)
            if splits
            else backward
        )
        dense = stages(tables.dense, way)
        dense[:, :p] += tables.share[way][:, None]
        if space.model.has_tied_embeddings and p * v == 1:
            dense[:, 0] -= space.model.vocabulary_size * space.model.hidden_size / space.tp[rows]
        return cls(
            space, tables, rows, p, v, space.num_microbatches[rows], layers, placed, way, forward, backward, least,
            stages(tables.weight, run) if splits else np.zeros_like(forward), again, stages(tables.host_waits, run),
            stages(tables.inside, run), saved, stages(tables.pending, way) if splits else np.zeros_like(saved), dense,
            stages(tables.expert, way), tables.share_forward[run], tables.share_backward[run],
        )  # fmt: skip

    def devices(self, of_stage: Floats) -> Floats:
        """Sums over the chunks of a device."""
        if self.v == 1:
            return of_stage
        if self.placed[self.p] == 0:  # as in most schedules: stage s on device s modulo p
            return np.asarray(of_stage.reshape(len(of_stage), self.v, self.p).sum(axis=1))
        return np.asarray(of_stage @ (np.array(self.placed)[:, None] == np.arange(self.p)))

    def first_device(self, of_stage: Floats) -> Floats:
        """Sums over the chunks of the first device, [n]."""
        return np.asarray(of_stage[:, np.flatnonzero(np.array(self.placed) == 0)].sum(axis=1))

    @property
    def schedule(self) -> str:
        """Its name."""
        return str(self.space.names["schedule"][int(self.space.schedule[self.rows[0]])])

    @property
    def vocabulary(self) -> Ints:
        """Where each candidate has its vocabulary, as a number of its axis."""
        return np.asarray(self.space.vocabulary[self.rows])

    def shapes(self) -> list[tuple[NDArray[np.bool_], ScheduleShape]]:
        """The shape of the schedule, for candidates of each number of microbatches."""
        numbers = np.unique(self.m).tolist()
        return [(self.m == m, schedule_shape(self.schedule, self.p, self.v, m)) for m in numbers]

    def timed_shapes(self, f: Floats, b: Floats) -> list[tuple[NDArray[np.intp], ScheduleShape]]:
        """The same where a device's forwards and backwards of one microbatch take so long, [n, p]: of numbers of candidates
        whose passes are alike on average."""
        forward, weight = f.mean(axis=1), self.devices(self.weight).mean(axis=1)
        each = np.stack([b.mean(axis=1) - weight, weight]) / forward
        keys = np.concatenate([self.m[None], np.round(np.maximum(each, 0.0) * ALIKE)]).T
        found, way = np.unique(keys, axis=0, return_inverse=True)
        return [
            (
                np.flatnonzero(way == number),
                schedule_shape(self.schedule, self.p, self.v, int(m), PassRatios(i / ALIKE, w / ALIKE)),
            )
            for number, (m, i, w) in enumerate(found.tolist())
        ]

    def inside_s(self) -> Floats:
        """Seconds of a step at most in which a device waits for exchanges inside stages: of all microbatches of the device
        that waits longest, and of one on its way through the others."""
        waited = self.devices(self.inside)
        return np.asarray((self.m - 1) * waited.max(axis=1) + waited.sum(axis=1))

    def busy_s(self) -> Floats:
        """Seconds that the busiest device computes in a step: no order of a schedule ends earlier."""
        return np.asarray(
            self.m
            * (
                self.devices(self.forward + self.least_backward - self.host_waits).max(axis=1)
                + self.share_forward
                + self.share_backward
            )
        )


def _first_blocks(tables: CostTables, edges: Ints, layers: tuple[int, ...]) -> Callable[[int], Ints]:
    """A function of n: kinds of the first n blocks of every stage, [kinds, stages]."""
    total = np.concatenate(
        [np.zeros((1, tables.counts.shape[1]), np.int64), np.cumsum(tables.counts, axis=0)]
    )

    def first(count: int) -> Ints:
        ends = edges[:-1] + np.minimum(count, np.array(layers))
        return np.asarray((total[ends] - total[edges[:-1]]).T)

    return first


def num_pieces(part: Pipelines, is_beside: NDArray[np.bool_], sharding: Ints) -> Ints:
    """Pieces of a stage of the first device, as `refine.num_pieces`."""
    blocks = max(1, part.layers[0])
    passes = np.where(part.space.recompute[part.rows] == FULL, 3, 2)
    most = np.maximum(1, MAX_COMPUTES // (passes * part.m * part.p * part.v))
    return np.where(sharding == ZERO3, blocks, np.where(is_beside, np.minimum(blocks, most), 1))


class Running(NamedTuple):
    """How long microbatches run.

    Attributes:
        seconds: from the first device's first forward to its last backward, without messages, [n].
        slack_s: how far every pass of the steady state is from the longest device's, on average, [n]: messages hide there
            (below zero; minus infinity: always).
        shown: messages of every microbatch that the schedule does not hide, [n].
    """

    seconds: Floats
    slack_s: Floats
    shown: Floats

    def with_messages(self, part: Pipelines, row: Ints, send: Floats, m: Ints) -> Floats:
        """Seconds with messages of `send` seconds; `row`: of every value the number here."""
        messages = 2 * (part.p - 1) * send
        # a round trip between neighbours holds two messages and one microbatch more than it has hops
        slower = np.maximum(0.0, self.slack_s[row] + messages / part.p) + self.shown[row] * send
        return np.asarray(self.seconds[row] + (m - 1) * slower + messages)


class Travelling(NamedTuple):
    """Seconds [n, p] of what travels beside the passes of one microbatch: what a forward, and a backward, gathers, and what
    a backward reduces."""

    forward_gather: Floats
    backward_gather: Floats
    reduce: Floats


def running(part: Pipelines, pieces: Ints, beside: Travelling) -> Running:
    """How long microbatches run, with what travels beside them."""
    share_forward, share_backward = part.share_forward[:, None], part.share_backward[:, None]
    f = np.maximum(part.devices(part.forward) + share_forward, beside.forward_gather)
    # gathers and scatters take turns; what scatters do not finish beside a backward they do beside the next forward
    spare = f - beside.forward_gather
    b = np.maximum(
        part.devices(part.backward) + share_backward, beside.backward_gather + beside.reduce - spare
    )
    # of a stage in pieces only the first runs again early
    again = part.devices(part.again) / pieces[:, None]
    t = f + b
    longest = t.max(axis=1)
    hidden, nothing = np.full(len(f), -np.inf), np.zeros(len(f))
    # what a microbatch passes through: who waits for its gradient has run its forward again meanwhile, and the passes of a
    # split vocabulary run on all devices at once
    once = t - again - share_forward - share_backward
    once[:, -1] += again[:, -1] + part.share_forward + part.share_backward
    if part.p == 1:
        return Running(part.m * longest, hidden, nothing)
    if part.schedule == "1f1b":
        late = LATE[part.vocabulary]
        return Running(
            _busy_and_waiting_s(f, b, once, again, part.m, late), t.mean(axis=1) - longest, nothing
        )
    if part.schedule == "interleaved_1f1b":
        return Running(_interleaved_s(part, once, longest), hidden, nothing)
    found, shown = part.m * longest, np.zeros(len(f))
    for own, shape in part.timed_shapes(f, b - again):
        found[own] += shape.idle * once[own].mean(axis=1)
        shown[own] = shape.shown
    return Running(found, hidden, shown)


def _interleaved_s(part: Pipelines, once: Floats, longest: Floats) -> Floats:
    rounds, rest = part.m // part.p, part.m % part.p
    total = once.sum(axis=1)
    # its empty places stay empty
    last = np.where(rest > 0, (part.v - 1) / part.v * total + rest * longest / part.v, 0.0)
    fill = (total - once.max(axis=1)) / part.v
    return np.asarray(rounds * _round_s(part, longest) + last + fill)


def _busy_and_waiting_s(f: Floats, b: Floats, once: Floats, again: Floats, m: Ints, late: Ints) -> Floats:
    """1F1B on unequal stages: the longest over devices of what lies before and behind, m microbatches, and two waits.

    Device d sends p - 1 - d microbatches ahead and then waits until the first has been through all devices behind;
    at the end the last one takes as long while the device works off those it had sent ahead. `late` microbatches more
    are sent ahead where backwards wait for a split vocabulary.
    """
    p, found = f.shape[1], np.zeros(len(f))
    before = np.cumsum(once, axis=1) - once
    behind = once.sum(axis=1, keepdims=True) - before - once
    for d in range(p):
        ahead = np.minimum(p - 1 - d + late, m - 1)
        first = np.maximum(0.0, behind[:, d] - ahead * f[:, d] - again[:, d])
        last = np.where(m > p - d, np.maximum(0.0, behind[:, d] - ahead * b[:, d] - again[:, d]), 0.0)
        found = np.maximum(found, before[:, d] + m * (f[:, d] + b[:, d]) + first + last)
    return found


def _round_s(part: Pipelines, longest: Floats) -> Floats:
    """One round of p microbatches through all chunks. Devices are at different places of it, so a chunk that is longer on
    some devices, not all, delays the others once for each of them but one, at most until every stage takes what the
    longest does."""
    each = (part.forward + part.backward).reshape(len(part.rows), part.v, part.p)
    most, least = each.max(axis=(1, 2)), each.min(axis=(1, 2))
    num_long = (each > ((most + least) / 2)[:, None, None]).sum(axis=2)
    delayed = np.where(num_long < part.p, np.maximum(num_long - 1, 0), 0).sum(axis=1) * (most - least)
    return np.asarray(
        np.minimum(part.p * longest + delayed, np.maximum(part.p * part.v * most, part.p * longest))
    )
