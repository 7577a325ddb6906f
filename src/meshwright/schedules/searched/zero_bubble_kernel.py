"""Kernels of the searched schedules: exact times of orders, construction by rules, and annealing. Imports numba.

An operation is ``3 * stage + kind``, kind 0 = F, 1 = I, 2 = W. An order is ``int32 [devices, n]`` of operations: the k-th
occurrence of an operation works on microbatch k, and nothing is lost by that: all microbatches are alike, so
renaming them in the order of their starts keeps every constraint. Arrays, all passed in, so that no call allocates:

    durations  [operations] seconds        latency [stages] seconds from the stage before; the first is unused
    slots      [devices] most activations  done    [operations, microbatches] end of each, seconds
    place      [operations, microbatches]  position in its device's order
    which      [devices, n] microbatch of each place of an order     end  [devices, n] end of each, seconds
    count      [operations] scratch        head    [devices] scratch
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.ir.kernel.kernel import compiled

TIE = 1e-9  # relative: times nearer than this are called equal


@compiled
def evaluate(
    order: Any,
    durations: Any,
    latency: Any,
    done: Any,
    place: Any,
    which: Any,
    end: Any,
    count: Any,
    head: Any,
) -> int:
    """Earliest times of an order by max-plus. Returns how many operations never ran (0: legal)."""
    num_devices, n = order.shape
    num_ops = len(durations)
    for op in range(num_ops):
        count[op] = 0
    for d in range(num_devices):
        head[d] = 0
    left: int = num_devices * n
    progress, upward = True, True
    while progress and left > 0:
        progress = False
        for turn in range(num_devices):
            d = turn if upward else num_devices - 1 - turn
            k = head[d]
            free = end[d, k - 1] if k > 0 else 0.0
            while k < n:
                op = order[d, k]
                j = count[op]
                kind = op % 3
                ready = 0.0
                if kind == 0:
                    if op >= 3:
                        if count[op - 3] <= j:
                            break
                        ready = done[op - 3, j] + latency[op // 3]
                elif kind == 1:
                    if op + 3 >= num_ops:
                        if count[op - 1] <= j:
                            break
                    else:
                        if count[op + 3] <= j:
                            break
                        ready = done[op + 3, j] + latency[op // 3 + 1]
                elif count[op - 1] <= j:
                    break
                if ready > free:
                    free = ready
                free += durations[op]
                done[op, j] = free
                place[op, j] = k
                which[d, k] = j
                end[d, k] = free
                count[op] = j + 1
                k += 1
            if k > head[d]:
                progress = True
                left -= k - head[d]
                head[d] = k
        upward = not upward
    return left


@compiled
def score(order: Any, durations: Any, end: Any, weights: Any, result: Any) -> int:
    """Span, device time and their weighted sum with the mean end of devices, into ``result [3]``."""
    num_devices, n = order.shape
    span, longest, mean = 0.0, 0.0, 0.0
    for d in range(num_devices):
        finish = end[d, n - 1]
        began = end[d, 0] - durations[order[d, 0]]
        mean += finish
        if finish > span:
            span = finish
        if finish - began > longest:
            longest = finish - began
    result[0], result[1] = span, longest
    result[2] = weights[0] * span + weights[1] * longest + weights[2] * mean / num_devices
    return 0


@compiled
def is_legal(row: Any, last: int, held: Any, slots: int) -> int:
    """Whether a device's order keeps F before I before W and its memory; ``held [operations]`` is scratch."""
    for k in range(len(held)):
        held[k] = 0
    alive = 0
    for k in range(last):
        op = row[k]
        kind = op % 3
        held[op] += 1
        if kind == 0:
            alive += 1
            if alive > slots:
                return 0
        else:
            if held[op] > held[op - 1]:
                return 0
            if kind == 2:
                alive -= 1
    return 1


@compiled
def critical_path(
    order: Any,
    durations: Any,
    latency: Any,
    done: Any,
    place: Any,
    which: Any,
    end: Any,
    device_of: Any,
    path: Any,
) -> int:
    """One chain of operations without slack that ends last, into ``path [rows, 2]`` (device, place); returns its length.

    Where both the operation before it on its device and the one it waits for end just in time, one of them is drawn.
    """
    num_devices, n = order.shape
    num_ops = len(durations)
    d, k = 0, n - 1
    for other in range(1, num_devices):
        if end[other, k] > end[d, k] or (end[other, k] == end[d, k] and np.random.random() < 0.5):
            d = other
    length = 0
    while True:
        path[length, 0] = d
        path[length, 1] = k
        length += 1
        op = order[d, k]
        kind = op % 3
        start = end[d, k] - durations[op]
        earliest = start - TIE * end[d, k]
        stays = k > 0 and end[d, k - 1] >= earliest
        source, late = -1, 0.0
        if kind == 0 and op >= 3:
            source, late = op - 3, latency[op // 3]
        elif kind == 1:
            source = op + 3
            if source < num_ops:
                late = latency[op // 3 + 1]
            else:
                source = op - 1
        if source >= 0:
            waits = done[source, which[d, k]] + late >= earliest
            if waits and (not stays or np.random.random() < 0.5):
                j = which[d, k]
                d = device_of[source // 3]
                k = place[source, j]
                continue
        if not stays:
            return length
        k -= 1


@compiled
def rotate(row: Any, low: int, high: int, by: int, spare: Any) -> int:
    """Rotate ``row[low:high]`` to the left by some places."""
    for k in range(by):
        spare[k] = row[low + k]
    for k in range(low, high - by):
        row[k] = row[k + by]
    for k in range(by):
        row[high - by + k] = spare[k]
    return 0


@compiled
def copy(source: Any, target: Any) -> int:
    """Rows into rows, one by one: for a slice numba compiles the message for shapes that differ, which takes seconds."""
    for d in range(source.shape[0]):
        for k in range(source.shape[1]):
            target[d, k] = source[d, k]
    return 0


@compiled
def anneal(
    order: Any,
    durations: Any,
    latency: Any,
    device_of: Any,
    slots: Any,
    weights: Any,
    hot: float,
    cold: float,
    steps: int,
    seed: int,
    best: Any,
    result: Any,
) -> int:
    """Simulated annealing over orders; ``best`` is filled with the best order, ``result [3]`` with its score.

    A move takes one to three neighbouring operations, mostly of a critical chain, some places earlier or later on their
    device. ``hot`` and ``cold`` are the first and last temperature in seconds, ``steps`` the moves tried. Returns how
    many improved the best one.
    """
    np.random.seed(seed)
    num_devices, n = order.shape
    num_ops = len(durations)
    num_microbatches = n * num_devices // num_ops
    done = np.zeros((2, num_ops, num_microbatches))
    place = np.zeros((2, num_ops, num_microbatches), np.int32)
    which = np.zeros((2, num_devices, n), np.int32)
    end = np.zeros((2, num_devices, n))
    path = np.zeros((n * num_devices, 2), np.int32)
    count, head, held = (
        np.zeros(num_ops, np.int32),
        np.zeros(num_devices, np.int32),
        np.zeros(num_ops, np.int32),
    )
    spare, trial = np.zeros(n, np.int32), np.zeros(3)
    b = 0
    evaluate(order, durations, latency, done[b], place[b], which[b], end[b], count, head)
    score(order, durations, end[b], weights, result)
    current = result[2]
    copy(order, best)
    length, improved = 0, 0
    reach = np.log(max(2.0, min(n - 1.0, max(8.0, n / 4.0))))
    cooling = (cold / hot) ** (1.0 / max(1, steps))
    heat = hot
    for _ in range(steps):
        heat *= cooling
        if length == 0:
            length = critical_path(
                order, durations, latency, done[b], place[b], which[b], end[b], device_of, path
            )
        if np.random.random() < 0.85:
            chosen = np.random.randint(0, length)
            d, k = path[chosen, 0], path[chosen, 1]
        else:
            d, k = np.random.randint(0, num_devices), np.random.randint(0, n)
        draw = np.random.random()
        size = 1 if draw < 0.6 else 2 if draw < 0.85 else 3
        distance = int(np.exp(np.random.random() * reach))
        if np.random.random() < 0.5:
            low = k - distance
            high, by = k + size, distance
        else:
            low, by = k, size
            high = k + size + distance
        if low < 0 or high > n:
            continue
        row = order[d]
        if size == 1 and distance == 1 and row[low] == row[low + 1]:
            continue
        rotate(row, low, high, by, spare)
        t = 1 - b
        accepted = False
        if is_legal(row, high, held, slots[d]) == 1:
            left = evaluate(order, durations, latency, done[t], place[t], which[t], end[t], count, head)
            if left == 0:
                score(order, durations, end[t], weights, trial)
                change = trial[2] - current
                accepted = change <= 0 or np.random.random() < np.exp(-change / heat)
        if not accepted:
            rotate(row, low, high, high - low - by, spare)
            continue
        b, current, length = t, trial[2], 0
        margin = TIE * result[0]
        if trial[0] < result[0] - margin or (trial[0] < result[0] + margin and trial[1] < result[1] - margin):
            for number in range(3):
                result[number] = trial[number]
            copy(order, best)
            improved += 1
    return improved
