"""How much memory a program can need at most, over all legal orders, by the clock of each device's computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.kernel.kernel import call
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.timing.wiring import Wiring

Ints = NDArray[Any]
MAX_PEERS = 6  # peers whose clock a device carries; to know less only loosens the bound


def peak_bound_bytes(wiring: Wiring, order: Ints) -> NDArray[np.float64]:
    """Upper bound of the peak in bytes, ``[lists, tiers]`` (tiers as in ``wiring.deps.space.tiers``).

    A version may be alive while ``c`` computes of its device have ended only if ``lo <= c <= hi``: at least ``lo`` have
    certainly ended when its writer is posted, and the compute ``hi`` certainly starts after its last reader has ended.
    What each device knows of its neighbours' clocks travels with the exchanges. ``order`` is a possible order of the rows
    (of `replay`). What may be posted before the first compute counts throughout: the iteration before may still run.
    """
    program, deps = wiring.program, wiring.deps
    n = program.num_rows
    index, num_computes = _compute_clock(program)
    slots, translate = _peer_slots(wiring)
    width = slots.shape[1]
    total = num_computes.astype(np.int32)[program.list_of_row]
    from_last = np.where(index >= 0, total - 1 - index, -1).astype(np.int32)
    num_streams = len(wiring.stream_ptr) - 1

    def clocks(counted: Ints, backward: int) -> Ints:
        inputs = (
            order, program.list_of_row, counted, wiring.stream_of_row, program.columns.batch, deps.ptr, deps.row,
            deps.lag, wiring.next_end, slots.reshape(-1), translate.reshape(-1), width, backward,
        )  # fmt: skip
        by_stream = [np.zeros(num_streams * width, dtype=np.int32) for _ in range(2)]
        know, clock = np.zeros(n * width, dtype=np.int32), np.zeros(n, dtype=np.int32)
        seen, last_batch = np.zeros(n, dtype=np.int8), np.zeros(num_streams, dtype=np.int32)
        call(_clocks, n, inputs, [seen, last_batch, *by_stream, know, clock])
        return clock

    ended, starts = clocks(index, 0), total - clocks(from_last, 1)
    size = wiring.deps.space.bytes
    peaks = _peaks(wiring, index, num_computes, ended, starts, size)
    in_ring, slots_bytes = _ring_bytes(wiring)
    if slots_bytes.any():  # rings never hold more than their slots, whatever the clocks say
        outside = np.where(in_ring, 0.0, size)
        peaks = np.minimum(peaks, _peaks(wiring, index, num_computes, ended, starts, outside) + slots_bytes)
    return peaks


def _ring_bytes(wiring: Wiring) -> tuple[Ints, NDArray[np.float64]]:
    """Which values stand in rings, and the bytes of all slots, ``[lists, tiers]``."""
    program, deps = wiring.program, wiring.deps
    space, kinds = deps.space, program.tables.value_kinds
    slots = np.array([0 if kind.carried else kind.ring for kind in kinds] or [0])
    of_code = np.repeat(np.arange(len(kinds)), space.counts)
    result = np.zeros((program.num_lists, len(space.tiers)))
    for k in np.flatnonzero(slots):
        written = np.flatnonzero(of_code[deps.code] == k)
        lists = program.list_of_row[deps.writer_of()[written]]
        largest = np.zeros(program.num_lists)
        np.maximum.at(largest, lists, space.bytes[deps.code[written]])
        result[:, space.tiers.index(kinds[k].tier)] += slots[k] * largest
    return slots[of_code] > 0, result


def _compute_clock(program: Program) -> tuple[Ints, Ints]:
    """Number of every COMPUTE of stream ``compute`` within its list (-1 elsewhere), and how many each list has."""
    streams = program.tables.streams
    clock = streams.index("compute") if "compute" in streams else -1
    ticks = (program.kinds == Kind.COMPUTE) & (program.columns.stream == clock)
    counts = np.bincount(program.list_of_row[ticks], minlength=program.num_lists)
    index = np.full(program.num_rows, -1, dtype=np.int32)
    first = np.concatenate([[0], np.cumsum(counts)])[:-1]
    index[ticks] = np.arange(int(counts.sum())) - np.repeat(first, counts)
    return index, counts


def _peer_slots(wiring: Wiring) -> tuple[Ints, Ints]:
    """Whose clocks every list carries (itself first, -1: nobody), and for slot ``k`` of peer ``s`` of a list the slot of
    the same device on this list (-1: not carried): ``translate[list, s, k]``."""
    program = wiring.program
    rows = np.flatnonzero(program.kinds == Kind.SEND)
    own, other = (
        program.list_of_row[rows].astype(np.int64),
        program.list_of_row[wiring.next_end[rows]].astype(np.int64),
    )
    pairs = np.unique(np.concatenate([own * program.num_lists + other, other * program.num_lists + own]))
    peers: list[list[int]] = [[d] for d in range(program.num_lists)]
    for pair in pairs.tolist():
        a, b = divmod(pair, program.num_lists)
        if a != b and len(peers[a]) <= MAX_PEERS:
            peers[a].append(b)
    width = max(len(row) for row in peers)
    slots = np.full((program.num_lists, width), -1, dtype=np.int32)
    translate = np.full((program.num_lists, width, width), -1, dtype=np.int32)
    for d, row in enumerate(peers):
        slots[d, : len(row)] = row
        place = {device: k for k, device in enumerate(row)}
        for s, peer in enumerate(row):
            for k, device in enumerate(peers[peer]):
                translate[d, s, k] = place.get(device, -1)
    return slots, translate


def _clocks(
    order: Any, lists: Any, index: Any, streams: Any, batches: Any, ptr: Any, dep_row: Any, dep_lag: Any, next_end: Any,
    slots: Any, translate: Any, width: int, backward: int, seen: Any, last_batch: Any, settled: Any, running: Any,
    know: Any, clock: Any,
) -> int:  # fmt: skip
    """Kernel: for every row how many computes of its own list have certainly ended when it is posted.

    ``backward``: time runs the other way, ``index`` counts computes from the last; then it is how many certainly start
    after the row has ended. Knowledge only grows, along streams, dependencies and exchanges.
    """
    for position in range(len(order)):
        first = order[len(order) - 1 - position] if backward else order[position]
        if seen[first]:
            continue
        e = first
        while True:  # what each end knows by itself
            seen[e] = 1
            s = streams[e]
            if batches[e] == 0 or last_batch[s] != batches[e]:
                for k in range(width):
                    if running[s * width + k] > settled[s * width + k]:
                        settled[s * width + k] = running[s * width + k]
                last_batch[s] = batches[e]
            for k in range(width):
                if settled[s * width + k] > know[e * width + k]:
                    know[e * width + k] = settled[s * width + k]
            if not backward:
                for d in range(ptr[e], ptr[e + 1]):
                    if dep_lag[d] == 0:
                        for k in range(width):
                            if know[dep_row[d] * width + k] > know[e * width + k]:
                                know[e * width + k] = know[dep_row[d] * width + k]
                clock[e] = know[e * width]
            e = next_end[e]
            if e == first:
                break
        turns = (
            2 if next_end[first] != first else 0
        )  # then all know what each knew: two turns round the circle
        for _turn in range(turns):
            e = first
            while True:
                f = next_end[e]
                a, b = lists[e], lists[f]
                if a != b:
                    for s in range(width):
                        if slots[b * width + s] == a:
                            for k in range(width):
                                to = translate[(b * width + s) * width + k]
                                if to >= 0 and know[e * width + k] > know[f * width + to]:
                                    know[f * width + to] = know[e * width + k]
                e = f
                if e == first:
                    break
        e = first
        while True:  # what follows knows of this row, too
            if backward:
                clock[e] = know[e * width]
            if index[e] >= 0 and index[e] + 1 > know[e * width]:
                know[e * width] = index[e] + 1
            s = streams[e]
            for k in range(width):
                if know[e * width + k] > running[s * width + k]:
                    running[s * width + k] = know[e * width + k]
            if backward:
                for d in range(ptr[e], ptr[e + 1]):
                    if dep_lag[d] == 0:
                        for k in range(width):
                            if know[e * width + k] > know[dep_row[d] * width + k]:
                                know[dep_row[d] * width + k] = know[e * width + k]
            e = next_end[e]
            if e == first:
                break
    return 0


def _peaks(
    wiring: Wiring, index: Ints, num_computes: Ints, ended: Ints, starts: Ints, size: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Add up, for every list, tier and clock, the bytes that may be alive."""
    program, deps = wiring.program, wiring.deps
    space = deps.space
    num_tiers = len(space.tiers)
    low, high = (
        np.full(len(deps.code), np.iinfo(np.int32).max, np.int32),
        np.full(len(deps.code), -1, np.int32),
    )
    first = np.concatenate([[0], np.cumsum(num_computes + 2)]).astype(np.int64)
    curve = np.zeros(int(first[-1]) * num_tiers)
    carried = np.array([kind.carried for kind in program.tables.value_kinds], dtype=bool)
    per_code = np.repeat(carried, space.counts).astype(np.int8)
    inputs = (
        program.list_of_row, index, ended, starts, num_computes, deps.ptr, deps.row, deps.lag, deps.version, deps.write_ptr,
        deps.code, deps.root, per_code, size, space.tier, num_tiers, first,
    )  # fmt: skip
    peaks = np.zeros(program.num_lists * num_tiers)
    call(_sum_alive, program.num_rows, inputs, [low, high, curve, peaks])
    resident = np.repeat(np.arange(program.num_lists), np.diff(deps.resident_ptr))
    place = resident * num_tiers + space.tier[deps.resident_code]
    peaks += np.bincount(place, weights=size[deps.resident_code], minlength=len(peaks))
    return peaks.reshape(program.num_lists, num_tiers)


def _sum_alive(
    lists: Any, index: Any, ended: Any, starts: Any, num_computes: Any, ptr: Any, dep_row: Any, dep_lag: Any,
    dep_version: Any, write_ptr: Any, codes: Any, root: Any, carried: Any, size: Any, tier: Any, num_tiers: int, first: Any,
    low: Any, high: Any, curve: Any, peaks: Any,
) -> int:  # fmt: skip
    """Kernel: bounds of every piece of memory in its device's clock, their sum, and its largest value."""
    n = len(lists)
    for i in range(n):
        total = num_computes[lists[i]]
        last = index[i] if index[i] >= 0 else min(starts[i], total)
        for v in range(write_ptr[i], write_ptr[i + 1]):
            r = root[v]
            if ended[i] < low[r]:
                low[r] = ended[i]
            if last > high[r]:
                high[r] = last
            if index[i] < 0 and ended[i] == 0:
                high[r] = total
        for k in range(ptr[i], ptr[i + 1]):
            if dep_version[k] >= 0:
                r = root[dep_version[k]]
                if dep_lag[k] > 0:
                    low[r] = 0
                    high[r] = total
                elif last > high[r]:
                    high[r] = last
    for i in range(n):
        for v in range(write_ptr[i], write_ptr[i + 1]):
            code = codes[v]
            if root[v] != v or carried[code] or size[code] == 0:
                continue
            base = first[lists[i]]
            curve[(base + low[v]) * num_tiers + tier[code]] += size[code]
            curve[(base + high[v] + 1) * num_tiers + tier[code]] -= size[code]
    for d in range(len(first) - 1):
        for t in range(num_tiers):
            now = 0.0
            for c in range(first[d], first[d + 1]):
                now += curve[c * num_tiers + t]
                if now > peaks[d * num_tiers + t]:
                    peaks[d * num_tiers + t] = now
    return 0
