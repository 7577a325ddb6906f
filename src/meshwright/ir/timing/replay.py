"""`replay`: the start rule as one worklist over stream heads, the loop that verification and simulation share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.grid import grid
from meshwright.ir.kernel.kernel import call
from meshwright.ir.program import Program
from meshwright.ir.timing.wait_cycle import advice, cycle_text, wait_cycle
from meshwright.ir.timing.wiring import Wiring, wire
from meshwright.specs.cluster.machine import HOSTS
from meshwright.specs.error import DeadlockError, SpecError

Ints = NDArray[Any]
Times = NDArray[np.float64]


def _replay(
    stream_ptr: Any, stream_rows: Any, stream_of_row: Any, offsets: Any, kinds: Any, batches: Any,
    ptr: Any, dep_row: Any, dep_lag: Any, dep_version: Any, next_end: Any, seconds: Any, latency: Any, cost_of_row: Any,
    in_order: int, history: int, iteration: int, num_rows: int,
    posted: Any, start: Any, end: Any, held: Any, past_end: Any, past_held: Any, free: Any, walker: Any, issued: Any,
    head: Any, host_head: Any, waiter: Any, next_waiter: Any, waits: Any, queue: Any, queued: Any, left: Any, order: Any,
) -> int:  # fmt: skip
    """Kernel: one iteration. ``end`` is complete, < 0 while unknown; ``past_*`` hold ``history`` iterations as circles.

    Lanes are streams, and behind them one host a list when hosts walk in order. A lane runs until its head waits for a row
    that is not known yet; it is then woken by that row. Returns the number of rows that never ran.
    """
    num_streams = len(stream_ptr) - 1
    num_hosts = len(offsets) - 1 if in_order else 0
    size = 0
    for lane in range(num_streams + num_hosts):
        queue[size] = lane
        queued[lane] = 1
        size += 1
    remaining = num_rows
    while size > 0:
        size -= 1
        lane = queue[size]
        queued[lane] = 0
        running = True
        while running:
            running = False
            if lane >= num_streams:
                d = lane - num_streams
                i = host_head[d]
                if i >= offsets[d + 1]:
                    break
                at = walker[d]
                blocked = -1
                for k in range(ptr[i], ptr[i + 1]):
                    other, lag = dep_row[k], dep_lag[k]
                    if lag == 0:
                        if end[other] < 0:
                            blocked = other
                            break
                        finished = held[other] if dep_version[k] == -2 else end[other]
                    elif lag > iteration:
                        continue
                    else:
                        past = ((iteration - lag) % history) * num_rows + other
                        finished = past_held[past] if dep_version[k] == -2 else past_end[past]
                    if finished > at:
                        at = finished
                if blocked >= 0:
                    if waits[lane] == 0:
                        waits[lane] = 1
                        next_waiter[lane] = waiter[blocked]
                        waiter[blocked] = lane
                    break
                s = stream_of_row[i]
                if kinds[i] == 0:
                    if (
                        stream_rows[head[s]] != i
                    ):  # something else stands before it in its stream: that wakes the host
                        left[s] = lane + 1
                        break
                    if free[s] > at:
                        at = free[s]
                    c = cost_of_row[i]
                    posted[i] = at
                    start[i] = at
                    held[i] = at + seconds[c]
                    end[i] = held[i] + latency[c]
                    order[num_rows - remaining] = i
                    remaining -= 1
                    walker[d] = held[i]
                    free[s] = held[i]
                    head[s] += 1
                    woken = waiter[i]
                    waiter[i] = -1
                    while woken >= 0:
                        waits[woken] = 0
                        if queued[woken] == 0:
                            queued[woken] = 1
                            queue[size] = woken
                            size += 1
                        woken = next_waiter[woken]
                else:
                    issued[i] = at
                    walker[d] = at
                if queued[s] == 0:
                    queued[s] = 1
                    queue[size] = s
                    size += 1
                host_head[d] += 1
                running = True
                continue
            s = lane
            place = head[s]
            if place >= stream_ptr[s + 1]:
                break
            i = stream_rows[place]
            stop = place + 1
            if batches[i] != 0:
                while stop < stream_ptr[s + 1] and batches[stream_rows[stop]] == batches[i]:
                    stop += 1
            if posted[i] < 0:
                if in_order and kinds[i] == 0:
                    break  # the host runs it and wakes this stream
                at = free[s]
                blocked = -1
                for p in range(place, stop):
                    j = stream_rows[p]
                    if in_order:
                        if issued[j] < 0:
                            blocked = -2
                            break
                        if issued[j] > at:
                            at = issued[j]
                    for k in range(ptr[j], ptr[j + 1]):
                        other, lag = dep_row[k], dep_lag[k]
                        if lag == 0:
                            if end[other] < 0:
                                blocked = other
                                break
                            finished = held[other] if dep_version[k] == -2 else end[other]
                        elif lag > iteration:
                            continue
                        else:
                            past = ((iteration - lag) % history) * num_rows + other
                            finished = past_held[past] if dep_version[k] == -2 else past_end[past]
                        if finished > at:
                            at = finished
                    if blocked >= 0:
                        break
                if blocked >= 0:
                    if waits[lane] == 0:
                        waits[lane] = 1
                        next_waiter[lane] = waiter[blocked]
                        waiter[blocked] = lane
                    break
                if blocked == -2:
                    break
                for p in range(place, stop):
                    posted[stream_rows[p]] = at
            if next_end[i] == i and stop == place + 1:  # alone: by far the commonest, and short
                c = cost_of_row[i]
                begin = posted[i]
                start[i] = begin
                held[i] = begin + seconds[c]
                end[i] = begin + seconds[c] + latency[c]
                order[num_rows - remaining] = i
                remaining -= 1
                woken = waiter[i]
                waiter[i] = -1
                while woken >= 0:
                    waits[woken] = 0
                    if queued[woken] == 0:
                        queued[woken] = 1
                        queue[size] = woken
                        size += 1
                    woken = next_waiter[woken]
                until = held[i]
            else:
                until = free[s]
            missing = -1
            for p in range(place, stop):
                j = stream_rows[p]
                if end[j] < 0:
                    begin = posted[j]
                    length = seconds[cost_of_row[j]]
                    late = latency[cost_of_row[j]]
                    e = next_end[j]
                    complete = True
                    while e != j:
                        if posted[e] < 0:
                            complete = False
                            break
                        if posted[e] > begin:
                            begin = posted[e]
                        if seconds[cost_of_row[e]] > length:
                            length = seconds[cost_of_row[e]]
                        if latency[cost_of_row[e]] > late:
                            late = latency[cost_of_row[e]]
                        e = next_end[e]
                    if not complete:
                        missing = j
                        continue
                    e = j
                    while True:
                        start[e] = begin
                        held[e] = begin + length
                        end[e] = begin + length + late
                        order[num_rows - remaining] = e
                        remaining -= 1
                        if e != j:
                            other_lane = stream_of_row[e]
                            if queued[other_lane] == 0:
                                queued[other_lane] = 1
                                queue[size] = other_lane
                                size += 1
                        woken = waiter[e]
                        waiter[e] = -1
                        while woken >= 0:
                            waits[woken] = 0
                            if queued[woken] == 0 and woken != lane:
                                queued[woken] = 1
                                queue[size] = woken
                                size += 1
                            woken = next_waiter[woken]
                        e = next_end[e]
                        if e == j:
                            break
                if held[j] > until:
                    until = held[j]
            if missing >= 0:
                break  # the last end to be posted wakes this stream
            free[s] = until
            head[s] = stop
            if left[s] > 0:
                woken = left[s] - 1
                left[s] = 0
                if queued[woken] == 0:
                    queued[woken] = 1
                    queue[size] = woken
                    size += 1
            running = True
    return remaining


def replay(
    wiring: Wiring,
    seconds: Times,
    latency_s: Times,
    cost_of_row: Ints | None = None,
    *,
    iterations: int = 1,
    host: str = "asynchronous",
    order: Ints | None = None,
) -> tuple[Times, Times, Times]:
    """Posted, start and end (complete) of every row on virtual time without contention, ``[iterations, rows]`` in seconds.

    ``seconds`` and ``latency_s`` are per class of cost, ``cost_of_row`` the class of every row (None: one class a row).
    The ends of an exchange take the largest cost of any end. ``order`` (int32, a row each) is filled with the rows in an
    order in which they can run: what a row waits for stands before it.

    Raises:
        DeadlockError: rows remain that can never be posted; the message shows the grid.
        SpecError: there is no such host.
    """
    program, deps, n = wiring.program, wiring.deps, wiring.program.num_rows
    if cost_of_row is None:
        cost_of_row = np.arange(n, dtype=np.int32)
    if host not in HOSTS:
        raise SpecError(f"host {host!r}", allowed=" or ".join(HOSTS))
    in_order = int(host == "in_order")
    history = max(1, deps.max_lag + 1)
    keep = history if deps.max_lag else 1
    num_streams = len(wiring.stream_ptr) - 1
    num_lanes = num_streams + (program.num_lists if in_order else 0)
    tables = tuple(np.empty((iterations, n)) for _ in range(3))
    past_end, past_held = (np.zeros(keep * n if deps.max_lag else 1) for _ in range(2))
    free, walker = np.zeros(num_streams), np.zeros(program.num_lists)
    if order is None:
        order = np.zeros(n, dtype=np.int32)
    scratch = [
        np.full(n, -1, dtype=np.int32),
        *(np.zeros(num_lanes, dtype=np.int32) for _ in range(4)),
        np.zeros(num_streams, dtype=np.int32),
    ]
    inputs = (
        wiring.stream_ptr, wiring.stream_rows, wiring.stream_of_row, program.offsets, program.kinds, program.columns.batch,
        deps.ptr, deps.row, deps.lag, deps.version, wiring.next_end, np.asarray(seconds, dtype=np.float64),
        np.asarray(latency_s, dtype=np.float64), cost_of_row, in_order, history,
    )  # fmt: skip
    held = np.empty(n)
    for t in range(iterations):
        posted, start, end = (table[t] for table in tables)
        posted[:], end[:] = -1.0, -1.0
        issued = np.full(n if in_order else 1, -1.0)
        head, host_head = wiring.stream_ptr[:-1].copy(), program.offsets[:-1].copy()
        for array in scratch[1:]:
            array[:] = 0
        scratch[0][:] = -1
        outputs = [
            posted,
            start,
            end,
            held,
            past_end,
            past_held,
            free,
            walker,
            issued,
            head,
            host_head,
            *scratch,
            order,
        ]
        remaining = call(_replay, n, (*inputs, t, n), outputs)
        if remaining:
            raise _deadlock(wiring, posted, end, issued if in_order else None, remaining)
        if deps.max_lag:
            place = (t % history) * n
            past_end[place : place + n] = end
            past_held[place : place + n] = held
    return tables  # type: ignore[return-value]


def replay_program(
    program: Program, seconds: Times, latency_s: Times, *, iterations: int = 1, host: str = "asynchronous"
) -> tuple[Times, Times, Times]:
    """`replay` of a program that was not wired before, with one cost a row."""
    return replay(wire(program), seconds, latency_s, iterations=iterations, host=host)


def _deadlock(
    wiring: Wiring, posted: Times, end: Times, issued: Times | None, remaining: int
) -> DeadlockError:
    """What says who waits for whom in a circle, what opens it, and shows the grid at its first row."""
    program, cycle = wiring.program, wait_cycle(wiring, posted, end, issued)
    return DeadlockError(
        f"deadlock: {remaining} of {program.num_rows} rows can never start\n{cycle_text(program, cycle)}\n"
        f"{advice(program, cycle)}\n{grid(program, cycle[0].row)}"
    )
