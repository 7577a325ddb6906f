"""Orders from a pattern of start slots that repeats every six slots, closed up at both ends by squeezing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    most = 0
    for device in range(ops.num_devices):
        own = ops.device[:cells] == device
        change = np.bincount(begin[own], minlength=int(end.max()) + 1) - np.bincount(
            end[own], minlength=int(end.max()) + 1
        )
        most = max(most, int(np.cumsum(change).max()))
    return most


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
    frees = len(ops.names) - 1 - allocates
    num_slots = int((start + ops.length).max()) + 1
    busy = [bytearray(num_slots) for _ in range(ops.num_devices)]
    changes = [bytearray(num_slots) for _ in range(ops.num_devices)]  # 1: allocated here, 2: freed at its end
    alive, top = [0] * ops.num_devices, [0] * ops.num_devices
    end = [0] * (len(start) + 1)
    per_kind = ops.num_stages * ops.num_microbatches
    room = {1: b"\0", 2: b"\0\0"}
    full = {1: b"\1", 2: b"\1\1"}
    order = np.argsort(start, kind="stable")
    rows = (x[order].tolist() for x in (ops.device, ops.length, *inputs))
    for operation, device, length, one, two in zip(order.tolist(), *rows, strict=True):
        kind = operation // per_kind
        ready = end[one] if end[one] > end[two] else end[two]
        slot = busy[device].find(room[length], ready)
        if kind == allocates:
            if slot < top[device]:
                ready = _room_from(changes[device], ready, top[device], alive[device], max_alive)
                slot = busy[device].find(room[length], ready)
            alive[device] += 1
            changes[device][slot] = 1
        elif kind == frees:
            alive[device] -= 1
            changes[device][slot + length - 1] = 2
        busy[device][slot : slot + length] = full[length]
        end[operation] = slot + length
        if slot + length > top[device]:
            top[device] = slot + length
    return np.array(end[:-1]) - ops.length


def _room_from(changes: bytearray, ready: int, top: int, alive: int, max_alive: int) -> int:
    """The first slot from `ready` on from which one more activation fits until `top`, behind which `alive` live."""
    for slot in range(top - 1, ready - 1, -1):
        if changes[slot] == 2:
            alive += 1
        if alive >= max_alive:
            return slot + 1
        if changes[slot] == 1:
            alive -= 1
    return ready


def _orders(start: Ints, ops: _Operations) -> Orders:
    orders: Orders = [[] for _ in range(ops.num_devices)]
    order = np.argsort(start, kind="stable")
    kind, cell = np.divmod(order, ops.num_stages * ops.num_microbatches)
    stage, microbatch = np.divmod(cell, ops.num_microbatches)
    rows = zip(ops.device[order].tolist(), kind.tolist(), stage.tolist(), microbatch.tolist(), strict=True)
    for device, k, s, m in rows:
        orders[device].append(Compute(ops.names[k], s, m))
    return orders
