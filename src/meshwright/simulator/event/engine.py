"""The event engine: the start rule on a clock, where instructions that share a device or a link slow each other down."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.kernel.kernel import call
from meshwright.ir.table import Kind
from meshwright.ir.timing.dependency_table import RING
from meshwright.ir.timing.wiring import Wiring
from meshwright.simulator.certificate import occupies_links
from meshwright.simulator.event.kernel import EventState, EventTables, run_flows
from meshwright.simulator.event.reference import UNITS, never_posted
from meshwright.simulator.pricing import Prices
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import SpecError

Ints = NDArray[Any]
Times = NDArray[np.float64]


def run_events(
    wiring: Wiring, prices: Prices, *, iterations: int = 1, host: str = "asynchronous"
) -> tuple[Times, Times, Times]:
    """Posted, start and end of every row, ``[iterations, rows]`` in seconds, with contention.

    A resource whose demands sum to more than 1 grants each the same part of what it demands, and slows it down to that
    part, or as the curve of its cost says; an instruction runs at the speed of the resource that slows it most. Rates change
    only when something starts or ends, so time goes from event to event.
    `interpret_events` is the reference.

    Raises:
        DeadlockError: rows remain that can never be posted.
        SpecError: there is no such host.
    """
    if host not in HOSTS:
        raise SpecError(f"host {host!r}", allowed=" or ".join(HOSTS))
    tables = _tables(wiring, prices, iterations, host == "in_order")
    state = _state(wiring, tables)
    num_rows = wiring.program.num_rows
    if call(run_flows, num_rows * iterations, [tables], [state]):
        raise never_posted(wiring.program, state.end)
    return tuple(x.reshape(iterations, num_rows) for x in (state.posted, state.start, state.end))


def _tables(wiring: Wiring, prices: Prices, iterations: int, in_order: bool) -> EventTables:
    """The program and its prices as flat tables."""
    program, n = wiring.program, wiring.program.num_rows
    links = [[(name, share) for name, share in demand if share * UNITS >= 1] for demand in prices.demands]
    names = sorted({name for demand in links for name, _ in demand})
    number = {
        name: 2 * program.num_lists + k for k, name in enumerate(names)
    }  # behind compute and memory of every list
    link_ptr = np.concatenate([[0], np.cumsum([len(demand) for demand in links], dtype=np.int64)])
    compute, memory = (
        _units([getattr(cost, share) for cost in prices.costs]) for share in ("compute_share", "memory_share")
    )
    occupies = occupies_links(wiring)
    batch_size, slot_of_row, num_slots = _slots(wiring)
    leader, num_ends, num_nodes = (np.zeros(size, dtype=np.int32) for size in (n, n, num_slots))
    own = (compute > 0).astype(np.int32) + (memory > 0)
    inputs = (
        wiring.next_end,
        prices.cost_of_row,
        occupies.astype(np.uint8),
        own,
        np.diff(link_ptr),
        slot_of_row,
    )
    call(_join_ends, n, inputs, [leader, num_ends, num_nodes])
    return EventTables(
        n, iterations, int(in_order),
        wiring.stream_ptr, wiring.stream_rows, batch_size, program.offsets, wiring.stream_of_row, program.list_of_row,
        (program.kinds == Kind.COMPUTE).astype(np.uint8), leader, num_ends, wiring.next_end, occupies.astype(np.uint8),
        prices.cost_of_row, slot_of_row, *_successors(wiring), prices.seconds, prices.latency_s, compute, memory,
        link_ptr, np.array([number[name] for demand in links for name, _ in demand], dtype=np.int64),
        _units([share for demand in links for _, share in demand]),
        *_curves(prices), np.concatenate([[0], np.cumsum(num_nodes, dtype=np.int64)]),
    )  # fmt: skip


def _curves(prices: Prices) -> tuple[Ints, Ints, Times, Times]:
    """(curve of every class, ptr, shares and speeds of the points of all curves)."""
    number = {
        curve: k for k, curve in enumerate(dict.fromkeys(cost.curve for cost in prices.costs if cost.curve))
    }
    points = np.array([point for curve in number for point in curve.path], dtype=np.float64).reshape(-1, 2)
    ptr = np.concatenate([[0], np.cumsum([len(curve.path) for curve in number], dtype=np.int64)])
    of_class = [number[cost.curve] if cost.curve else -1 for cost in prices.costs]
    return np.array(of_class, dtype=np.int32), ptr, points[:, 0].copy(), points[:, 1].copy()


def _units(shares: list[float]) -> Ints:
    """Shares in whole units."""
    return np.floor(np.array(shares, dtype=np.float64) * UNITS).astype(np.int64)


def _slots(wiring: Wiring) -> tuple[Ints, Ints, int]:
    """Size of the batch that begins at each place of a stream, slot of every row's flow, and how many slots there are."""
    n = wiring.program.num_rows
    batch_size, slot_of_row, num_slots = (np.zeros(size, dtype=np.int32) for size in (n, n, 1))
    inputs = (wiring.stream_ptr, wiring.stream_rows, wiring.program.columns.batch)
    call(_number_slots, n, inputs, [batch_size, slot_of_row, num_slots])
    return batch_size, slot_of_row, int(num_slots[0])


def _number_slots(
    stream_ptr: Any, stream_rows: Any, batches: Any, batch_size: Any, slot_of_row: Any, num_slots: Any
) -> int:
    """Kernel: a stream has as many slots as its largest batch has members."""
    for s in range(len(stream_ptr) - 1):
        first, widest = stream_ptr[s], 1
        while first < stream_ptr[s + 1]:
            batch, stop = batches[stream_rows[first]], first + 1
            while batch != 0 and stop < stream_ptr[s + 1] and batches[stream_rows[stop]] == batch:
                stop += 1
            batch_size[first] = stop - first
            for k in range(first, stop):
                slot_of_row[stream_rows[k]] = num_slots[0] + k - first
            widest = max(widest, stop - first)
            first = stop
        num_slots[0] += widest
    return 0


def _join_ends(
    next_end: Any, cost_of_row: Any, occupies: Any, own: Any, links: Any, slot_of_row: Any, leader: Any, num_ends: Any,
    num_nodes: Any,
) -> int:  # fmt: skip
    """Kernel: of every row the first end of its exchange, and how many there are; of every slot the most demands."""
    for i in range(len(next_end)):
        if num_ends[i] > 0:
            continue
        e, ends, nodes = i, 0, 0
        while ends == 0 or e != i:
            leader[e] = i
            nodes += own[cost_of_row[e]] + (links[cost_of_row[e]] if occupies[e] else 0)
            ends += 1
            e = next_end[e]
        num_ends[i] = ends
        e = next_end[i]
        while e != i:
            num_ends[e] = ends
            e = next_end[e]
        num_nodes[slot_of_row[i]] = max(num_nodes[slot_of_row[i]], nodes)
    return 0


def _successors(wiring: Wiring) -> tuple[Ints, Ints, Ints, Ints]:
    """Who waits for every row: (ptr, row, lag, waits only until it has ended)."""
    deps, n = wiring.deps, wiring.program.num_rows
    ptr = np.concatenate([[0], np.cumsum(np.bincount(deps.row, minlength=n), dtype=np.int64)])
    row, lag = np.zeros(len(deps.row), dtype=np.int32), np.zeros(len(deps.row), dtype=np.int16)
    is_order = np.zeros(len(deps.row), dtype=np.uint8)
    call(
        _turn_round,
        n,
        (deps.ptr, deps.row, deps.lag, deps.version, RING, ptr[:-1].copy()),
        [row, lag, is_order],
    )
    return ptr, row, lag, is_order


def _turn_round(
    dep_ptr: Any,
    dep_row: Any,
    dep_lag: Any,
    dep_version: Any,
    ring: int,
    place: Any,
    row: Any,
    lag: Any,
    is_order: Any,
) -> int:
    """Kernel: a counting sort of the dependencies by the row that is waited for."""
    for i in range(len(dep_ptr) - 1):
        for k in range(dep_ptr[i], dep_ptr[i + 1]):
            p = place[dep_row[k]]
            place[dep_row[k]] += 1
            row[p], lag[p] = i, dep_lag[k]
            is_order[p] = 1 if dep_version[k] == ring else 0
    return 0


def _state(wiring: Wiring, p: EventTables) -> EventState:
    """Before anything ran."""
    total, num_slots, num_nodes = p.num_rows * p.iterations, len(p.node_ptr) - 1, int(p.node_ptr[-1])
    num_resources = 2 * wiring.program.num_lists + int(p.link.max(initial=-1)) + 1
    place = np.concatenate([p.stream_ptr[:-1], p.list_ptr[:-1]] if p.in_order else [p.stream_ptr[:-1]])
    turn = np.zeros(len(place), dtype=np.int64)
    if p.in_order:
        turn[len(p.stream_ptr) - 1 :][np.diff(p.list_ptr) == 0] = (
            p.iterations
        )  # an empty list is walked already
    num_late = total if p.latency_s.any() else 1

    def zeros(size: int) -> Ints:
        return np.zeros(size, dtype=np.int32)

    def none(size: int) -> Ints:
        return np.full(size, -1, dtype=np.int64)

    return EventState(
        posted=np.full(total, -1.0), start=np.full(total, -1.0), end=np.full(total, -1.0), waits=_waits(wiring, p),
        arrived=zeros(p.num_rows), turn=turn, place=place.astype(np.int64), is_busy=zeros(wiring.program.num_lists),
        queue=zeros(len(place)), is_queued=zeros(len(place)),
        flow=none(num_slots), left_s=np.zeros(num_slots), since_s=np.zeros(num_slots), rate=np.zeros(num_slots),
        end_s=np.zeros(num_slots), heap=zeros(num_slots), where=zeros(num_slots), node_end=zeros(num_slots),
        touched=zeros(num_slots), is_touched=zeros(num_slots),
        resource=zeros(num_nodes), share=none(num_nodes), node_curve=zeros(num_nodes),
        owner=zeros(num_nodes), following=none(num_nodes),
        before=none(num_nodes), total=np.zeros(num_resources, dtype=np.int64), first=none(num_resources),
        late=none(num_late), late_where=zeros(num_late), counts=np.array([0, 0, 0, 0, total]), clock=np.zeros(1),
    )  # fmt: skip


def _waits(wiring: Wiring, p: EventTables) -> Ints:
    """What every (iteration, row) waits for: what would have been before the first iteration is there."""
    deps = wiring.deps
    reader = np.repeat(np.arange(p.num_rows), np.diff(deps.ptr)) if deps.max_lag else None
    return np.concatenate(
        [
            np.diff(deps.ptr)
            if reader is None or turn >= deps.max_lag
            else np.bincount(reader[deps.lag <= turn], minlength=p.num_rows)
            for turn in range(p.iterations)
        ]
    ).astype(np.int32)
