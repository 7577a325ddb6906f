"""Span, period, device time, bubble, idle, peak: one definition each, for simulated and measured traces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.table import Kind
from meshwright.ir.timing.dependencies import dependencies
from meshwright.ir.trace import Trace

Times = NDArray[np.float64]


def span_s(trace: Trace, iteration: int = -1) -> float:
    """Makespan of one iteration in seconds: from the first start to the last end of its rows."""
    if not trace.program.num_rows:
        return 0.0
    return float(trace.end_s[iteration].max() - trace.start_s[iteration].min())


def period_s(trace: Trace) -> float:
    """Seconds an iteration takes in the long run: from the middle iteration's last end to the last one's.

    With one iteration it is the span.
    """
    if trace.num_iterations < 2 or not trace.program.num_rows:
        return span_s(trace)
    first = (trace.num_iterations - 1) // 2
    ends = trace.end_s.max(axis=1)
    return float((ends[-1] - ends[first]) / (trace.num_iterations - 1 - first))


def device_time_s(trace: Trace, iteration: int = -1) -> float:
    """The longest any device is between the start of its first COMPUTE and the end of its last, in seconds."""
    start, end = _compute_bounds(trace, iteration)
    return float((end - start).max(initial=0.0))


def busy_s(trace: Trace, iteration: int = -1) -> Times:
    """Seconds of COMPUTE of every list of the program."""
    chosen = trace.program.kinds == Kind.COMPUTE
    length = (trace.end_s[iteration] - trace.start_s[iteration])[chosen]
    busy = np.bincount(trace.program.list_of_row[chosen], weights=length, minlength=trace.program.num_lists)
    return busy.astype(np.float64)


def idle_s(trace: Trace, iteration: int = -1) -> float:
    """Seconds in which compute streams idle, summed over the lists: lists x span - busy."""
    return trace.program.num_lists * span_s(trace, iteration) - float(busy_s(trace, iteration).sum())


def bubble(trace: Trace, iteration: int = -1) -> float:
    """Idle share of the compute streams: 1 - busy / (lists x span)."""
    span = span_s(trace, iteration)
    return 1.0 - float(busy_s(trace, iteration).sum()) / (trace.program.num_lists * span) if span > 0 else 0.0


def peak_bytes(trace: Trace, device: int | None = None, tier: str = "device") -> float:
    """The largest memory of a device (None: of any) in a tier, in bytes, from the trace's curves."""
    curves = [c for c in trace.memory if c.tier == tier and (device is None or c.device == device)]
    return max((curve.peak_bytes for curve in curves), default=0.0)


def seconds_by_name(trace: Trace) -> dict[str, float]:
    """Median seconds between start and end of the rows of each name."""
    effects = trace.program.columns.effect
    length = trace.end_s - trace.start_s
    names = [effect.name for effect in trace.program.tables.effects]
    result: dict[str, float] = {}
    for name in dict.fromkeys(names):
        chosen = np.isin(effects, [e for e, other in enumerate(names) if other == name])
        if chosen.any():
            result[name] = float(np.median(length[:, chosen]))
    return result


def peak_alive(trace: Trace, kind: str = "saved", iteration: int = -1) -> list[float]:
    """For every list the most versions of a value kind alive at once, each weighted with the share of its writer's work.

    With ``saved`` this is the peak of activations: each from the start of its F (or R) to the end of its W (or B).
    """
    program = trace.program
    deps = dependencies(program)
    chosen = np.flatnonzero(deps.space.kind_of(deps.code) == program.tables.index_of_kind(kind))
    writer = deps.writer_of()[chosen]
    begin = trace.start_s[iteration][writer]
    last = np.full(len(deps.code), -np.inf)
    reader = np.repeat(np.arange(program.num_rows), np.diff(deps.ptr))
    own = (deps.version >= 0) & (deps.lag == 0)
    np.maximum.at(last, deps.version[own], trace.end_s[iteration][reader[own]])
    finish = np.maximum(last[chosen], trace.end_s[iteration][writer])
    shares = np.array([work.share for work in program.tables.works] or [1.0])
    share = shares[program.columns.work[writer]] if program.tables.works else np.ones(len(writer))
    return [
        _peak(begin[of], finish[of], share[of])
        for of in (np.flatnonzero(program.list_of_row[writer] == d) for d in range(program.num_lists))
    ]


def _peak(begin: Times, finish: Times, weight: Times) -> float:
    """Largest sum of weights of intervals that overlap; one that ends when another begins does not overlap it."""
    times = np.concatenate([begin, finish])
    change = np.concatenate([weight, -weight])
    order = np.lexsort((change, times))
    return float(np.round(np.cumsum(change[order]).max(initial=0.0), 12))


def _compute_bounds(trace: Trace, iteration: int) -> tuple[Times, Times]:
    """Start of the first and end of the last COMPUTE of every list that has one."""
    chosen = np.flatnonzero(trace.program.kinds == Kind.COMPUTE)
    lists = trace.program.list_of_row[chosen]
    start = np.full(trace.program.num_lists, np.inf)
    end = np.full(trace.program.num_lists, -np.inf)
    np.minimum.at(start, lists, trace.start_s[iteration][chosen])
    np.maximum.at(end, lists, trace.end_s[iteration][chosen])
    has = np.isfinite(start)
    return start[has], end[has]
