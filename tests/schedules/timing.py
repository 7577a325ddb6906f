"""Runs a schedule's program on virtual time with three stage times and a latency; and the latency-edge model beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.ir.program import Program
from meshwright.ir.table import Kind, Work
from meshwright.ir.timing.replay import replay
from meshwright.ir.timing.wiring import wire
from meshwright.ir.trace import Trace
from meshwright.lowering.order import program_of_orders, with_works
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import Compute, Orders, registered

Times = tuple[float, float, float]


def program_of(name: str, p: int, m: int, v: int = 1) -> Program:
    """The program of a registered schedule, with transfers, every compute's work of share 1/v."""
    program = Transfers()(program_of_orders(registered()[name].orders(p, m, v)))
    names = {effect.name for effect in program.tables.effects if effect.kind == Kind.COMPUTE}
    works = {(n, s): Work(n, share=1 / v) for n in names for s in range(program.tables.num_stages)}
    return with_works(program, works)


def trace_of(
    program: Program,
    times: Times,
    share: float = 1.0,
    comm: float = 0.0,
    iterations: int = 1,
    host: str = "asynchronous",
) -> Trace:
    """Replay with F, I, W of a full stage (B = I + W, R = F), `share` of them a chunk, and `comm` as latency only."""
    f, i, w = times
    cost = {"F": f, "B": i + w, "I": i, "W": w, "R": f}
    names = [effect.name for effect in program.tables.effects]
    seconds = np.array([cost.get(name, 0.0) * share for name in names])
    latency_s = np.array([comm if name.startswith(("SEND", "RECV")) else 0.0 for name in names])
    effect = program.columns.effect.astype(np.int32)
    posted, start, end = replay(wire(program), seconds, latency_s, effect, iterations=iterations, host=host)
    return Trace(program, posted, start, end, "max-plus")


def schedule_trace(
    name: str, p: int, m: int, v: int = 1, times: Times = (1, 1, 1), comm: float = 0.0
) -> Trace:
    """The trace of a registered schedule."""
    return trace_of(program_of(name, p, m, v), times, 1 / v, comm)


def latency_edge_span(orders: Orders, times: Times, share: float, comm: float) -> float:
    """Longest path over the computes alone: list order, path order, and `comm` on edges between devices.

    It knows nothing of programs, sends, streams or hosts.
    """
    f, i, w = times
    cost = {"F": f, "B": i + w, "I": i, "W": w}
    device_of = {c.stage: d for d, row in enumerate(orders) for c in row}
    last = len(device_of) - 1
    end: dict[Compute, float] = {}
    place = [0] * len(orders)

    def inputs(c: Compute) -> list[Compute]:
        if c.name == "F":
            return [Compute("F", c.stage - 1, c.microbatch)] if c.stage else []
        if c.name == "W":
            return [Compute("I", c.stage, c.microbatch)]
        own = [Compute("F", c.stage, c.microbatch)]
        return own + ([Compute(c.name, c.stage + 1, c.microbatch)] if c.stage < last else [])

    moved = True
    free = [0.0] * len(orders)
    while moved:
        moved = False
        for d, row in enumerate(orders):
            while place[d] < len(row) and all(x in end for x in inputs(row[place[d]])):
                c = row[place[d]]
                arrive = [end[x] + (comm if device_of[x.stage] != d else 0.0) for x in inputs(c)]
                free[d] = max([free[d], *arrive]) + cost[c.name] * share
                end[c] = free[d]
                place[d] += 1
                moved = True
    assert all(place[d] == len(row) for d, row in enumerate(orders)), "the order is not legal"
    return max(end.values(), default=0.0)


def ideal_s(m: int, times: Times) -> float:
    """What a device has to compute."""
    return m * sum(times)


def idle_of_devices(trace: Trace) -> Sequence[float]:
    """Seconds every device idles within the span."""
    from meshwright.ir.judge.metrics import busy_s, span_s

    return [float(idle) for idle in span_s(trace) - busy_s(trace)]
