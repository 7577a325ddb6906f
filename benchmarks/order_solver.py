"""A CP-SAT model of zero-bubble orders: proof and oracle for small cases. OR-Tools is optional, the extra ``solver``.

Start times of F, I and W of every stage and microbatch, so that what one waits for has ended (and its message has
arrived), no two computes of a device overlap, and no device keeps more activations than its memory cap (with two chunks a
device a cumulative constraint over their lives: the same as a reservoir, and found to prove far more). All microbatches are
alike, so on each stage they go in turn: any other solution becomes this one by renaming its microbatches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from meshwright.schedules.order import Compute, Orders
from meshwright.schedules.searched.pipeline import (
    KINDS,
    Pipeline,
    codes_of,
    evaluate_codes,
    pipeline_of,
    times_of,
)
from meshwright.schedules.searched.stage_times import StageTimes
from meshwright.specs.error import ExecutionError, ScheduleError, SpecError

MAX_TICKS = (
    1_000_000  # of a serial run: finer times are rounded, so that the solver's whole numbers stay small
)
LONGEST = 4 * MAX_TICKS  # of any time in the model: a serial run with its messages both ways, and rounding
OBJECTIVES = ("span", "device_time")


@dataclass(frozen=True)
class SolvedOrder:
    """What the solver found: orders, their exact span and device time, and what it proved.

    ``bound_s`` is a lower bound of the objective, to the tick of the model: ``tick_s`` times the number of computes is
    the most that rounding can hide. ``is_optimal``: the solver has proven that no order is better.
    """

    orders: Orders
    span_s: float
    device_time_s: float
    bound_s: float
    tick_s: float
    is_optimal: bool


def solve_orders(
    times: StageTimes,
    num_microbatches: int,
    cap: float | Sequence[float],
    *,
    num_chunks: int = 1,
    objective: str = "span",
    time_limit_s: float = 30.0,
    num_workers: int = 8,
    start_from: Orders | None = None,
) -> SolvedOrder:
    """The best order that CP-SAT finds within a time limit. Arguments as of `search_orders`.

    Args:
        objective: span, or device_time: the longest a device is between its first start and its last end.
            Its bound lets a device start late; ``device_time_s`` is of the order started as early as it can.
        num_workers: threads of the solver, its portfolio of strategies; only with one does a result repeat.
        start_from: an order as a hint, to be proven or bettered; without it the solver knows nothing of our heuristic.

    Raises:
        SpecError: OR-Tools is not installed, the counts, cap or objective cannot be.
        ExecutionError: no order was found in the time.
    """
    if objective not in OBJECTIVES:
        raise SpecError(f"objective {objective!r}", allowed=" or ".join(OBJECTIVES))
    if not time_limit_s > 0:
        raise SpecError(f"a time limit of {time_limit_s} s", allowed="more than 0")
    cp_model = _import_solver()
    pipeline = pipeline_of(times, num_microbatches, cap, num_chunks)
    tick_s = _tick_s(pipeline)
    model = cp_model.CpModel()
    start, end = _variables(model, pipeline, tick_s)
    _constrain(model, pipeline, tick_s, start, end)
    _minimise(model, pipeline, start, end, objective)
    if start_from is not None:
        _hint(model, pipeline, start_from, start, tick_s)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = num_workers
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise ExecutionError(
            f"the solver found no order in {time_limit_s:g} s ({solver.status_name(status)})",
            allowed="small cases: up to about 6 devices and 12 microbatches",
            next="give more time, or take the heuristic, search_orders",
        )
    orders = _orders(pipeline, lambda key: solver.value(start[key]))
    exact = times_of(times, orders, num_chunks)
    return SolvedOrder(
        orders, exact.span_s, exact.device_time_s, solver.best_objective_bound * tick_s, tick_s,
        status == cp_model.OPTIMAL,
    )  # fmt: skip


def _import_solver() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ModuleNotFoundError as error:
        raise SpecError(
            f"the solver needs OR-Tools, which is not installed ({error})",
            next='pip install "meshwright[solver]", or take the heuristic, which needs nothing',
        ) from error
    return cp_model


def _tick_s(pipeline: Pipeline) -> float:
    """The largest time of which all times are whole multiples, unless it is so small that numbers would become large."""
    times = [*pipeline.durations.tolist(), *pipeline.latency.tolist()]
    exact = [Fraction(repr(value)) for value in times if value > 0]
    # A common multiple of the denominators, then the greatest common divisor of the numerators over it.
    denominator = math.lcm(*(value.denominator for value in exact))
    common_s: float = math.gcd(*(int(value * denominator) for value in exact)) / denominator
    serial_s: float = sum(times) * pipeline.num_microbatches
    return max(common_s, serial_s / MAX_TICKS)


def _variables(model: Any, pipeline: Pipeline, tick_s: float) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Start and end, in ticks, of every (operation, microbatch); computes of a device do not overlap."""
    m = pipeline.num_microbatches
    ticks = [round(value / tick_s) for value in pipeline.durations.tolist()]
    horizon = m * (sum(ticks) + 2 * sum(round(value / tick_s) for value in pipeline.latency.tolist()))
    start, end = {}, {}
    for stages in pipeline.stages_of.tolist():
        intervals = []
        for op in (3 * stage + kind for stage in stages for kind in range(3)):
            for j in range(m):
                start[op, j] = model.new_int_var(0, horizon, f"{KINDS[op % 3]}{op // 3}.{j}")
                end[op, j] = start[op, j] + ticks[op]
                intervals.append(model.new_fixed_size_interval_var(start[op, j], ticks[op], ""))
        model.add_no_overlap(intervals)
    return start, end


def _constrain(model: Any, pipeline: Pipeline, tick_s: float, start: Any, end: Any) -> None:
    """What waits for what, microbatches in turn, and memory."""
    m, num_stages = pipeline.num_microbatches, pipeline.times.num_stages
    latency = [round(value / tick_s) for value in pipeline.latency.tolist()]
    for stage in range(num_stages):
        f, i, w = 3 * stage, 3 * stage + 1, 3 * stage + 2
        for j in range(m):
            if stage:
                model.add(start[f, j] >= end[f - 3, j] + latency[stage])
            if stage + 1 < num_stages:
                model.add(start[i, j] >= end[i + 3, j] + latency[stage + 1])
            model.add(start[i, j] >= end[f, j])
            model.add(start[w, j] >= end[i, j])
            for op in (f, i, w):
                if j:
                    model.add(start[op, j] >= end[op, j - 1])
    for stages, slots in zip(pipeline.stages_of.tolist(), pipeline.slots, strict=True):
        if len(stages) == 1:  # the k-th F waits for the W of the activation whose place it takes
            for j in range(slots, m):
                model.add(start[3 * stages[0], j] >= end[3 * stages[0] + 2, j - slots])
            continue
        lives = [
            model.new_interval_var(start[f, j], model.new_int_var(0, LONGEST, ""), end[f + 2, j], "")
            for f in (3 * stage for stage in stages)
            for j in range(m)
        ]
        model.add_cumulative(lives, [1] * len(lives), slots)


def _minimise(model: Any, pipeline: Pipeline, start: Any, end: Any, objective: str) -> None:
    """The largest end, or the longest time of a device."""
    value = model.new_int_var(0, LONGEST, objective)
    last = pipeline.num_microbatches - 1
    for stages in pipeline.stages_of.tolist():
        first = start[3 * stages[0], 0] if objective == "device_time" else 0
        for stage in stages:
            model.add(value >= end[3 * stage + 2, last] - first)
    model.minimize(value)


def _hint(model: Any, pipeline: Pipeline, orders: Orders, start: Any, tick_s: float) -> None:
    """The start times of an order as a hint."""
    exact = evaluate_codes(pipeline, codes_of(pipeline, orders))
    if exact is None:
        raise ScheduleError("the order to start from can never run", next="give one of search_orders")
    begin_s = exact.done_s - pipeline.durations[:, None]
    for (op, j), variable in start.items():
        model.add_hint(variable, round(float(begin_s[op, j]) / tick_s))


def _orders(pipeline: Pipeline, value_of: Any) -> Orders:
    """Computes of every device by their start; of those that start together the shorter, which take no time, first."""
    durations = pipeline.durations.tolist()
    result: Orders = []
    for stages in pipeline.stages_of.tolist():
        keys = [(3 * s + k, j) for s in stages for k in range(3) for j in range(pipeline.num_microbatches)]
        keys.sort(key=lambda key: (value_of(key), durations[key[0]], key[1], key[0]))
        result.append([Compute(KINDS[op % 3], op // 3, j) for op, j in keys])
    return result
