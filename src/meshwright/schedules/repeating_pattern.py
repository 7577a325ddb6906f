"""Orders from a pattern of start slots that repeats every six slots, closed up at both ends by squeezing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.kernel.kernel import call
from meshwright.schedules.order import Compute, Orders
from meshwright.schedules.zigzag import zigzag

# Slots of one microbatch on a device: two chunks of F, I and W, one slot each; an unsplit B takes two.
PERIOD = 6
Ints = NDArray[np.int64]
Slots = tuple[int, int, int, int]  # where F down, F up, backward down and backward up begin on a device


@dataclass(frozen=True)
class _Operations:
    """Every operation of a job as columns; operation = (kind x stages + stage) x microbatches + microbatch.

    `before` and `after` are the one or two operations that it needs and that need it; the last number means none.
    """

    names: tuple[str, ...]
    num_devices: int
    num_microbatches: int
    device: Ints
    length: Ints  # slots
    before: tuple[Ints, Ints]
    after: tuple[Ints, Ints]

    @property
    def num_stages(self) -> int:
        """Stages of the V: two a device."""
        return 2 * self.num_devices

    def kind_of(self, operation: Ints | int) -> Ints | int:
        """Place of an operation's name in `names`."""
        return operation // (self.num_stages * self.num_microbatches)


def order_of_pattern(pattern: Sequence[Slots], num_microbatches: int, *, splits_backward: bool) -> Orders:
    """Orders of a V of two chunks a device: microbatch j starts at the slots of its device's pattern plus 6 j.

    W goes into free slots behind its I. Then everything moves to its earliest slot, and after that to its latest, that
    its inputs (its readers) and the largest number of activations of the repeated pattern allow. The steady part is
    full and stays; fill and drain close up.
    """
    ops = _operations(len(pattern), num_microbatches, splits_backward)
    start = _repeated(pattern, ops)
    max_alive = _most_alive(start, ops)
    start = _squeezed(start, ops, ops.before, max_alive, allocates=0)
    backwards = _squeezed(_mirrored(start, ops), ops, ops.after, max_alive, allocates=len(ops.names) - 1)
    return _orders(_mirrored(backwards, ops), ops)


def _operations(num_devices: int, num_microbatches: int, splits_backward: bool) -> _Operations:
    names = ("F", "I", "W") if splits_backward else ("F", "B")
    stages, m = 2 * num_devices, num_microbatches
    none = len(names) * stages * m
    number = np.arange(none).reshape(len(names), stages, m)
    missing = np.full((1, m), none)
    nothing = np.full((stages, m), none)
    from_before, from_after = np.vstack([missing, number[0, :-1]]), np.vstack([number[1, 1:], missing])
    to_next, to_previous = np.vstack([number[0, 1:], missing]), np.vstack([missing, number[1, :-1]])
    before = [(from_before, nothing), (number[0], from_after)]
    after = [(to_next, number[1]), (to_previous, nothing)]
    if splits_backward:
        before.append((number[1], nothing))
        after[1] = (to_previous, number[2])
        after.append((nothing, nothing))
    device = np.repeat(np.tile(zigzag(num_devices), len(names)), m)
    length = np.ones(none, dtype=np.int64)
    if not splits_backward:
        length[stages * m :] = 2
    return _Operations(names, num_devices, m, device, length, _columns(before), _columns(after))


def _columns(pairs: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    return (
        np.concatenate([one.reshape(-1) for one, _ in pairs]),
        np.concatenate([two.reshape(-1) for _, two in pairs]),
    )


def _repeated(pattern: Sequence[Slots], ops: _Operations) -> Ints:
    """Start slots of the pattern repeated, with every W in the first slot behind its I that is free in every period."""
    slots = np.array(pattern).T
    by_stage = [np.concatenate([slots[0], slots[1][::-1]]), np.concatenate([slots[3], slots[2][::-1]])]
    if len(ops.names) == 3:
        by_stage.append(_weight_slots(pattern))
    shift = PERIOD * np.arange(ops.num_microbatches)
    return np.concatenate([(starts[:, None] + shift).reshape(-1) for starts in by_stage])


def _weight_slots(pattern: Sequence[Slots]) -> Ints:
    """Of every stage, the slot of its W in the first period."""
    found = [0] * (2 * len(pattern))
    for device, slots in enumerate(pattern):
        taken = {slot % PERIOD for slot in slots}
        for stage, after in ((2 * len(pattern) - 1 - device, slots[2]), (device, slots[3])):
            slot = next(s for s in range(after + 1, after + 1 + PERIOD) if s % PERIOD not in taken)
            taken.add(slot % PERIOD)
            found[stage] = slot
    return np.array(found)


def _most_alive(start: Ints, ops: _Operations) -> int:
    """The most activations that any device holds: from the start of F to the end of the last kind."""
    cells = ops.num_stages * ops.num_microbatches
    begin, end = start[:cells], (start + ops.length)[-cells:]
    width = int(end.max()) + 1
    cell = ops.device[:cells] * width
    change = np.bincount(cell + begin, minlength=ops.num_devices * width)
    change -= np.bincount(cell + end, minlength=ops.num_devices * width)
    return int(np.cumsum(change.reshape(ops.num_devices, width), axis=1).max())


def _mirrored(start: Ints, ops: _Operations) -> Ints:
    """The same job with time running backwards."""
    end = start + ops.length
    return np.asarray(end.max() - end)


def _squeezed(
    start: Ints, ops: _Operations, inputs: tuple[Ints, Ints], max_alive: int, *, allocates: int
) -> Ints:
    """Every operation, in the order of its start, at the earliest slot that its inputs, its device and memory allow.

    The kind `allocates` makes an activation, the kind at the other end of a microbatch's visit frees it. What comes
    later in the old order never finds memory taken: an operation moves only where all that is placed so far leaves room.
    """
    # behind the last slot there is one more, for what asks whether two are free
    num_slots = int((start + ops.length).max()) + 2
    slots = [np.zeros(ops.num_devices * num_slots, dtype=np.int8) for _ in range(2)]
    ends = np.zeros(len(start) + 1, dtype=np.int64)  # the last is that of no operation
    inputs_of = (ops.device, ops.length, *inputs, np.argsort(start, kind="stable"))
    counts = (ops.num_stages * ops.num_microbatches, allocates, len(ops.names) - 1 - allocates, max_alive)
    per_device = [np.zeros(ops.num_devices, dtype=np.int64) for _ in range(2)]
    call(_squeeze, len(start), (*inputs_of, *counts, num_slots), [*slots, *per_device, ends])
    return np.asarray(ends[:-1] - ops.length)


def _squeeze(
    device: Any, length: Any, one: Any, two: Any, order: Any,
    per_kind: int, allocates: int, frees: int, max_alive: int, num_slots: int,
    busy: Any, changes: Any, alive: Any, top: Any, end: Any,
) -> int:  # fmt: skip
    """Kernel: the end of every operation. `busy` and `changes` (1: allocated in this slot, 2: freed at its end) are slots by
    device, `alive` the activations of each, `top` the end of what it has last."""
    for k in range(len(order)):
        operation = order[k]
        d, slots = device[operation], length[operation]
        first = d * num_slots
        ready = first + max(end[one[operation]], end[two[operation]])
        slot = ready
        while busy[slot] or (slots > 1 and busy[slot + 1]):
            slot += 1
        kind = operation // per_kind
        if kind == allocates:
            if slot < first + top[d]:
                # the first slot from which one more activation fits until the last, behind which `alive` live
                count, slot = alive[d], ready
                for earlier in range(first + top[d] - 1, ready - 1, -1):
                    if changes[earlier] == 2:
                        count += 1
                    if count >= max_alive:
                        slot = earlier + 1
                        break
                    if changes[earlier] == 1:
                        count -= 1
                while busy[slot] or (slots > 1 and busy[slot + 1]):
                    slot += 1
            alive[d] += 1
            changes[slot] = 1
        elif kind == frees:
            alive[d] -= 1
            changes[slot + slots - 1] = 2
        for taken in range(slot, slot + slots):
            busy[taken] = 1
        end[operation] = slot - first + slots
        top[d] = max(top[d], end[operation])
    return 0


def _orders(start: Ints, ops: _Operations) -> Orders:
    order = np.lexsort((start, ops.device))
    kind, cell = np.divmod(order, ops.num_stages * ops.num_microbatches)
    stage, microbatch = np.divmod(cell, ops.num_microbatches)
    names = map(ops.names.__getitem__, kind.tolist())
    computes = list(map(Compute, names, stage.tolist(), microbatch.tolist()))
    edges = np.searchsorted(ops.device[order], np.arange(ops.num_devices + 1)).tolist()
    return [computes[first:behind] for first, behind in itertools.pairwise(edges)]
