"""Pipeline: a searched pipeline as the kernels see it, and the exact times and peaks of its orders.

Memory is counted as `ir.metrics.peak_alive` counts ``saved``: an activation lives from the start of its F to the end of
its W and weighs 1 / chunks of a full stage; one that ends when another begins does not overlap it. A device does one
compute after another, so its peak follows from its order alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.schedules.order import Compute, Orders
from meshwright.schedules.searched.stage_times import StageTimes
from meshwright.specs.bound.bound import MOST_CELLS, check_most
from meshwright.specs.error import ScheduleError, SpecError

KINDS = "FIW"
Numbers = NDArray[np.float64]
Codes = NDArray[np.int32]


@dataclass(frozen=True)
class OrderTimes:
    """What an order takes: span and device time in seconds, peak activations of each device in full stages."""

    span_s: float
    device_time_s: float
    peaks: tuple[float, ...]


@dataclass(frozen=True)
class Pipeline:
    """A searched pipeline as the kernels see it; see `zero_bubble_kernel` for the arrays."""

    times: StageTimes
    num_microbatches: int
    num_chunks: int
    slots: tuple[int, ...]

    @property
    def num_devices(self) -> int:
        return self.times.num_stages // self.num_chunks

    @property
    def num_rows(self) -> int:
        """Computes of one iteration."""
        return 3 * self.times.num_stages * self.num_microbatches

    @cached_property
    def durations(self) -> Numbers:
        columns = (self.times.forward_s, self.times.input_s, self.times.weight_s)
        return np.array(columns, dtype=np.float64).T.ravel()

    @cached_property
    def device_of(self) -> Codes:
        """Device of each stage: the second chunks come back from the last device to the first."""
        p = self.num_devices
        return np.array([*range(p), *reversed(range(p))][: self.times.num_stages], dtype=np.int32)

    @cached_property
    def stages_of(self) -> Codes:
        p = self.num_devices
        return np.array([[d, 2 * p - 1 - d][: self.num_chunks] for d in range(p)], dtype=np.int32)

    @cached_property
    def latency(self) -> Numbers:
        """Seconds from the stage before; nothing where the V turns on its device."""
        crosses = np.diff(self.device_of, prepend=self.device_of[0]) != 0
        return np.where(crosses, self.times.communication_s, 0.0)

    @property
    def arrays(self) -> tuple[Numbers, Numbers, Codes, Codes, Codes]:
        """What every kernel of the rules takes first."""
        return (
            self.durations,
            self.latency,
            self.device_of,
            self.stages_of,
            np.array(self.slots, dtype=np.int32),
        )

    def empty_order(self) -> Codes:
        return np.zeros((self.num_devices, 3 * self.num_chunks * self.num_microbatches), dtype=np.int32)

    def orders(self, codes: Codes) -> Orders:
        """The computes of every device, from operations."""
        result: Orders = []
        for row in codes.tolist():
            count: dict[int, int] = {}
            computes = []
            for op in row:
                microbatch = count.get(op, 0)
                count[op] = microbatch + 1
                computes.append(Compute(KINDS[op % 3], op // 3, microbatch))
            result.append(computes)
        return result


def pipeline_of(
    times: StageTimes, num_microbatches: int, cap: float | Sequence[float], num_chunks: int = 1
) -> Pipeline:
    """The problem, checked: counts, stages that fold, and room for one microbatch on every device.

    Raises:
        SpecError: a count below one, chunks other than 1 or 2, stages that do not fold, a cap below one full stage.
    """
    if num_microbatches < 1:
        raise SpecError(f"{num_microbatches} microbatches", allowed="1 or more")
    if num_chunks not in (1, 2) or times.num_stages % num_chunks:
        raise SpecError(
            f"{num_chunks} chunks a device and {times.num_stages} stages",
            allowed="1 chunk, or 2 (V shape) with an even number of stages",
            next="StageTimes.folded() cuts each stage in two",
        )
    num_devices = times.num_stages // num_chunks
    caps = [float(c) for c in cap] if isinstance(cap, Sequence) else [float(cap)] * num_devices
    if len(caps) != num_devices or not all(c >= 1 for c in caps):
        raise SpecError(
            f"memory caps {', '.join(f'{c:g}' for c in caps)} for {num_devices} devices",
            allowed="one number, or one a device, each of at least 1 full-stage activation",
        )
    check_most("stages x microbatches of a searched order", times.num_stages * num_microbatches, MOST_CELLS)
    most = num_chunks * num_microbatches
    slots = tuple(most if c >= num_microbatches else int(c * num_chunks + 1e-9) for c in caps)
    return Pipeline(times, num_microbatches, num_chunks, slots)


def times_of(times: StageTimes, orders: Orders, num_chunks: int = 1) -> OrderTimes:
    """Exact times and peaks of orders of F, I and W whose microbatches go in turn on every stage.

    Raises:
        ScheduleError: the orders are not of that form, or can never run.
    """
    most = max((c.microbatch for row in orders for c in row), default=0) + 1
    pipeline = pipeline_of(times, most, math.inf, num_chunks)
    codes = codes_of(pipeline, orders)
    evaluated = evaluate_codes(pipeline, codes)
    if evaluated is None:
        raise ScheduleError(
            "these orders wait for each other for ever; give an order in which every compute can run"
        )
    return OrderTimes(evaluated.span_s, evaluated.device_time_s, peaks_of(pipeline, codes))


def peaks_of(pipeline: Pipeline, codes: Codes) -> tuple[float, ...]:
    """Most activations alive at once on every device, in full stages."""
    change = np.array([1, 0, -1], dtype=np.int64)[codes % 3]
    alive: list[int] = change.cumsum(axis=1).max(axis=1).tolist()
    return tuple(count / pipeline.num_chunks for count in alive)


def codes_of(pipeline: Pipeline, orders: Orders, in_turn: bool = True) -> Codes:
    """Operations of orders, ``3 * stage + kind`` of each compute.

    ``in_turn`` off renames the microbatches of each stage in the order in which they come; that makes nothing later.

    Raises:
        ScheduleError: not every F, I and W is there once, on its stage's device, microbatches of a stage in turn.
    """
    codes = pipeline.empty_order()
    legal = len(orders) == len(codes) and all(len(row) == codes.shape[1] for row in orders)
    for d, row in enumerate(orders if legal else ()):
        own = set(pipeline.stages_of[d].tolist())
        if not all(compute.stage in own and compute.name in KINDS for compute in row):
            legal = False
            break
        codes[d] = [3 * compute.stage + KINDS.index(compute.name) for compute in row]
    named = pipeline.orders(codes) if legal else []
    if named != orders and (in_turn or not legal or list(map(sorted, named)) != list(map(sorted, orders))):
        raise ScheduleError(
            f"the orders are not of the searched form: every F, I and W once, on {pipeline.num_devices} devices of "
            f"{pipeline.num_chunks} stages (two in V shape), microbatches of a stage counted up"
        )
    return codes


@dataclass(frozen=True, eq=False)
class Evaluated:
    """An order with its exact times: operations, span, device time, end of each (operation, microbatch), seconds."""

    codes: Codes
    span_s: float
    device_time_s: float
    done_s: Numbers


def evaluate_codes(pipeline: Pipeline, codes: Codes) -> Evaluated | None:
    """Earliest times of an order, None if it can never run."""
    from meshwright.schedules.searched.zero_bubble_kernel import evaluate, score

    num_ops, m = len(pipeline.durations), pipeline.num_microbatches
    done, end, result = np.zeros((num_ops, m)), np.zeros(codes.shape), np.zeros(3)
    left = evaluate(
        codes, pipeline.durations, pipeline.latency, done, np.zeros((num_ops, m), np.int32),
        np.zeros(codes.shape, np.int32), end, np.zeros(num_ops, np.int32), np.zeros(len(codes), np.int32),
    )  # fmt: skip
    if left:
        return None
    score(codes, pipeline.durations, end, np.zeros(3), result)
    return Evaluated(codes, float(result[0]), float(result[1]), done)
