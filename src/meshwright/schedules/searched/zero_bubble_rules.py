"""Construction of a zero-bubble order by rules: devices take what is ready, by priority, memory and gaps. Imports numba.

Operations and arrays are those of `zero_bubble_kernel`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.ir.kernel.kernel import compiled
from meshwright.schedules.searched.zero_bubble_kernel import TIE, copy

FORWARD_FIRST, FILL, FULL_FIRST, PATIENCE = 0, 1, 2, 3  # places of the rule's numbers


@compiled
def choose(
    d: int,
    durations: Any,
    latency: Any,
    stages_of: Any,
    slots: Any,
    lead: Any,
    rule: Any,
    num_microbatches: int,
    done: Any,
    count: Any,
    free: Any,
    picked: Any,
) -> float:
    """The operation that device ``d`` would start next, into ``picked[d]`` (-1: none is known); returns its start.

    ``lead [stages]``: most microbatches between F and I of a stage. ``rule [4]`` of the device: F before I while the
    lead allows it (0 or 1); share of W that may stick out of a gap; W first where only memory keeps an F back (0 or 1);
    how many seconds the device waits for what has priority.
    """
    num_ops, now, num_chunks = len(durations), free[d], stages_of.shape[1]
    alive, alive_last, blocked = 0, 0, False
    for c in range(num_chunks):
        op = 3 * stages_of[d, c]
        alive_last = count[op] - count[op + 2]
        alive += alive_last
    best, best_start, best_rank, weight = -1, np.inf, 0.0, -1
    weight_first = 0
    for c in range(num_chunks):
        stage = stages_of[d, c]
        op = 3 * stage
        j = count[op]
        if j < num_microbatches and (op == 0 or count[op - 3] > j):
            ready = 0.0 if op == 0 else done[op - 3, j] + latency[stage]
            # The last chunk's activations leave when it comes back; the first's only after the last chunk's F. So one
            # slot is kept for the last chunk, unless it has one: without this the chunks wait for each other for ever.
            reserved = 1 if c + 1 < num_chunks and alive_last == 0 else 0
            if j - count[op + 1] < lead[stage]:
                if alive + 1 + reserved <= slots[d]:
                    rank = 4.0 * rule[0] + c  # depth first
                    start = max(now, ready)
                    if (
                        best < 0
                        or start < best_start - rule[3]
                        or (start < best_start + rule[3] and rank > best_rank)
                    ):
                        best, best_start, best_rank = op, start, rank
                elif ready <= now:
                    blocked = True
        j = count[op + 1]
        if j < count[op]:
            last = op + 3 >= num_ops
            source = op if last else op + 4
            if count[source] > j:
                start = max(now, done[source, j] + (0.0 if last else latency[stage + 1]))
                rank = 2.0 + num_chunks - 1 - c
                if (
                    best < 0
                    or start < best_start - rule[3]
                    or (start < best_start + rule[3] and rank > best_rank)
                ):
                    best, best_start, best_rank = op + 1, start, rank
        if count[op + 2] < count[op + 1] and (
            weight < 0 or done[op + 1, count[op + 2]] < done[weight - 1, weight_first]
        ):
            weight, weight_first = op + 2, count[op + 2]
    if weight >= 0:
        gap = best_start - now
        fits = gap > 0 and gap >= (1.0 - rule[1]) * durations[weight] - TIE * durations[weight]
        if best < 0 or fits or (blocked and rule[2] > 0):
            best, best_start = weight, now
    picked[d] = best
    return best_start if best >= 0 else np.inf


@compiled
def construct(
    durations: Any,
    latency: Any,
    device_of: Any,
    stages_of: Any,
    slots: Any,
    lead: Any,
    rules: Any,
    order: Any,
    result: Any,
) -> int:
    """Fill ``order [devices, n]`` in the order of virtual time by ``rules [devices, 4]``; returns how many operations found
    no place (0: all did). ``result [2]``: span and device time in seconds.
    """
    num_devices, n = order.shape
    num_ops = len(durations)
    m = n * num_devices // num_ops
    done = np.zeros((num_ops, m))
    count, free = np.zeros(num_ops, np.int32), np.zeros(num_devices)
    head, picked = np.zeros(num_devices, np.int32), np.zeros(num_devices, np.int32)
    start, first = np.zeros(num_devices), np.zeros(num_devices)
    for d in range(num_devices):
        start[d] = choose(
            d, durations, latency, stages_of, slots, lead, rules[d], m, done, count, free, picked
        )
    for placed in range(num_devices * n):
        d = num_devices - 1  # no literal, for which `choose` would be compiled once more
        for other in range(num_devices - 2, -1, -1):
            if start[other] <= start[d]:
                d = other
        if start[d] == np.inf:
            missing: int = num_devices * n - placed
            return missing
        op = picked[d]
        order[d, head[d]] = op
        if head[d] == 0:
            first[d] = start[d]
        head[d] += 1
        free[d] = start[d] + durations[op]
        done[op, count[op]] = free[d]
        count[op] += 1
        start[d] = choose(
            d, durations, latency, stages_of, slots, lead, rules[d], m, done, count, free, picked
        )
        kind, neighbour = op % 3, op // 3
        if kind == 0:
            neighbour += 1
        elif kind == 1:
            neighbour -= 1
        if kind < 2 and 0 <= neighbour < num_ops // 3 and device_of[neighbour] != d:
            e = np.int64(device_of[neighbour])
            start[e] = choose(
                e, durations, latency, stages_of, slots, lead, rules[e], m, done, count, free, picked
            )
    result[0], result[1] = free[0], free[0] - first[0]
    for d in range(1, num_devices):
        result[0] = max(result[0], free[d])
        result[1] = max(result[1], free[d] - first[d])
    return 0


@compiled
def tune(
    durations: Any,
    latency: Any,
    device_of: Any,
    stages_of: Any,
    slots: Any,
    lead: Any,
    rules: Any,
    device_weight: float,
    trials: int,
    seed: int,
    best: Any,
    result: Any,
) -> int:
    """Change leads and rules of one device, of all from it on, or of all, and keep what is not worse.

    ``lead`` and ``rules`` are changed in place; ``best`` and ``result [2]`` are of the last that was kept. What is
    compared is span + device_weight x device time. Returns how many changes were kept.
    """
    np.random.seed(seed)
    num_devices, num_chunks = stages_of.shape
    mean = durations.mean()
    order, found = best.copy(), np.zeros(2)
    left = construct(durations, latency, device_of, stages_of, slots, lead, rules, best, result)
    value = np.inf if left > 0 else result[0] + device_weight * result[1]
    kept = 0
    old_lead, old_rules = lead.copy(), rules.copy()
    for _ in range(trials):
        for _ in range(np.random.randint(1, 4)):
            first, last = 0, num_devices
            draw = np.random.random()
            if draw < 0.8:
                first = np.random.randint(0, num_devices)
            if draw < 0.6:
                last = first + 1
            what = np.random.randint(0, 5)
            step = np.random.randint(1, 3) * (1 if np.random.random() < 0.5 else -1)
            chunk = np.random.randint(0, num_chunks)
            quarter = np.random.randint(0, 5) / 4.0
            for d in range(first, last):
                if what == 4:
                    stage = stages_of[d, chunk]
                    lead[stage] = max(1, lead[stage] + step)
                elif what == PATIENCE:
                    rules[d, what] = quarter * mean
                elif what == FILL:
                    rules[d, what] = quarter
                else:
                    rules[d, what] = 1.0 if quarter > 0.5 else 0.0
        left = construct(durations, latency, device_of, stages_of, slots, lead, rules, order, found)
        now = found[0] + device_weight * found[1]
        if left == 0 and now <= value:
            value = now
            result[0], result[1] = found[0], found[1]
            copy(order, best)
            for stage in range(len(lead)):
                old_lead[stage] = lead[stage]
            copy(rules, old_rules)
            kept += 1
        else:
            for stage in range(len(lead)):
                lead[stage] = old_lead[stage]
            copy(old_rules, rules)
    return kept
