"""Orders by list scheduling in unit time: in every slot each device takes the first thing that its rules allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from meshwright.schedules.order import Compute, Orders

Queue = deque[int]  # microbatches whose input has arrived, in the order of arrival
BACKWARD_SLOTS = 2  # of an unsplit backward: B = I + W


class _SplitDevice:
    """What has arrived at one device, what it holds, and the rules by which it takes its next compute."""

    def __init__(self, stages: list[int], num_microbatches: int, max_alive: int, inputs_first: bool) -> None:
        self.forward: dict[int, Queue] = {stage: deque() for stage in reversed(stages)}  # later stages first
        self.backward: dict[int, Queue] = {stage: deque() for stage in stages}
        self.pending: deque[Compute] = deque()  # the W of every I that has run
        self.order: list[Compute] = []
        self.room = max_alive  # activations that still fit: F takes one, W gives it back
        self.num_unstarted = len(stages) * num_microbatches  # forwards
        self.inputs_first = inputs_first

    def take(self) -> Compute | None:
        """The next compute, if there is one."""
        made = None
        if self.inputs_first:
            made = self._take_input() or (self._take_forward() if self.room else None)
        elif self.room:
            made = self._take_forward() or self._take_input()
        elif not self.num_unstarted or not self.pending:
            made = self._take_input()
        if made is None and self.pending:
            self.room += 1
            made = self.pending.popleft()
        if made is not None:
            self.order.append(made)
        return made

    def _take_forward(self) -> Compute | None:
        for stage, queue in self.forward.items():
            if queue:
                self.room -= 1
                self.num_unstarted -= 1
                return Compute("F", stage, queue.popleft())
        return None

    def _take_input(self) -> Compute | None:
        for stage, queue in self.backward.items():
            if queue:
                microbatch = queue.popleft()
                self.pending.append(Compute("W", stage, microbatch))
                return Compute("I", stage, microbatch)
        return None


def eager_split_order(
    device_of: Sequence[int],
    num_devices: int,
    num_microbatches: int,
    max_alive: int,
    *,
    inputs_first: bool = False,
) -> Orders:
    """Orders of F, I, W, one slot each, with at most `max_alive` activations (one a stage and microbatch) on a device.

    A device with room takes a forward, of its latest stage that has one. Without room, and with forwards still to come,
    it takes a W: a full device goes I, W, F. Then an I, of its earliest stage; then a W. `inputs_first`: an I goes before
    all that. `device_of` is the device of every stage; `max_alive` is at least the number of stages on a device.
    """
    devices = [
        _SplitDevice(
            [s for s, d in enumerate(device_of) if d == device], num_microbatches, max_alive, inputs_first
        )
        for device in range(num_devices)
    ]
    at = [devices[d] for d in device_of]
    last = len(at) - 1
    at[0].forward[0].extend(range(num_microbatches))
    # where what a compute of each stage makes is waited for
    behind_f = [at[s + 1].forward[s + 1] for s in range(last)] + [at[last].backward[last]]
    behind_i = [Queue()] + [at[s - 1].backward[s - 1] for s in range(1, last + 1)]
    left = 3 * len(at) * num_microbatches
    while left:
        for made in [device.take() for device in devices]:
            if made is None:
                continue
            left -= 1
            name, stage, microbatch = made
            if name == "F":
                behind_f[stage].append(microbatch)
            elif name == "I":
                behind_i[stage].append(microbatch)
    return [device.order for device in devices]


def eager_order(
    device_of: Sequence[int], num_devices: int, num_microbatches: int, max_in_flight: int
) -> Orders:
    """Orders of F (one slot) and B (two), with at most `max_in_flight` microbatches between first F and last B.

    A device takes a backward if it has one, of its earliest stage, else a forward, of its latest stage that has one.
    """
    last = len(device_of) - 1
    queues: dict[str, list[Queue]] = {name: [deque() for _ in device_of] for name in "FB"}
    stages = [[s for s, d in enumerate(device_of) if d == device] for device in range(num_devices)]
    free = [0] * num_devices
    orders: Orders = [[] for _ in range(num_devices)]
    arrivals: dict[int, list[tuple[Queue, int]]] = {}
    num_started, num_finished, slot = 0, 0, 0
    while num_finished < num_microbatches:
        for queue, microbatch in arrivals.pop(slot, ()):
            queue.append(microbatch)
        while num_started < min(num_microbatches, num_finished + max_in_flight):
            queues["F"][0].append(num_started)
            num_started += 1
        for device in range(num_devices):
            taken = _take(queues, stages[device]) if free[device] <= slot else None
            if taken is None:
                continue
            orders[device].append(taken)
            name, stage, microbatch = taken
            free[device] = slot + (1 if name == "F" else BACKWARD_SLOTS)
            if name == "B" and stage == 0:
                num_finished += 1
                continue
            if name == "F":
                target = queues["F"][stage + 1] if stage < last else queues["B"][last]
            else:
                target = queues["B"][stage - 1]
            arrivals.setdefault(free[device], []).append((target, microbatch))
        slot += 1
    return orders


def _take(queues: dict[str, list[Queue]], stages: Sequence[int]) -> Compute | None:
    for name, choice in (("B", stages), ("F", stages[::-1])):
        for stage in choice:
            if queues[name][stage]:
                return Compute(name, stage, queues[name][stage].popleft())
    return None
