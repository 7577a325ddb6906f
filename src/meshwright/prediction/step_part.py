"""step_parts: where the seconds of a step go on its busiest device, by kind of work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.costs.pricing import Pricing
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace
from meshwright.lowering.segment.chain_rows import WORDS
from meshwright.prediction.step_program import StepProgram
from meshwright.simulator.pricing import Prices

Floats = NDArray[np.float64]
INNER_ROWS = frozenset(WORDS.names)  # of exchanges between segments
INSIDE, OVERHEAD, WAITING = "exchanges inside, host", "step overhead", "waiting"
ATTENTION = "attention"
HOST_MEMORY = "host memory"  # waiting for it
HOST_KINDS = (Kind.LOAD, Kind.STORE)
# What adds up to a step on its busiest device; a part of any other name is what rows of other streams take.
ADDS_UP = frozenset(("matmul", ATTENTION, "stream", "gap", INSIDE, OVERHEAD, WAITING, HOST_MEMORY))


def is_beside(part: str) -> bool:
    """Does a part of a step run on another stream? What the step waits for of it is in another part."""
    return part not in ADDS_UP


class Hidden(NamedTuple):
    """What the exchanges, loads or stores of one name take on a device in a step, and how much of that passes beside its
    computes, in s."""

    seconds: float
    hidden_s: float

    @property
    def exposed_s(self) -> float:
        """Seconds in which the device's compute stream idles meanwhile."""
        return self.seconds - self.hidden_s


def busiest(program: Program, prices: Prices) -> tuple[int, float]:
    """The list whose computes take longest, and how long in seconds."""
    is_compute = program.kinds == Kind.COMPUTE
    seconds = prices.seconds[prices.cost_of_row]
    busy = np.bincount(
        program.list_of_row[is_compute], weights=seconds[is_compute], minlength=program.num_lists
    )
    device = int(np.argmax(busy))
    return device, float(busy[device])


def hidden_exchanges(trace: Trace, device: int) -> dict[str, Hidden]:
    """Of the last iteration's exchanges, loads and stores of a device, by name: seconds, and how many of these its compute
    stream is busy."""
    program, computed_s = trace.program, _computed(trace, device)
    rows = np.arange(program.offsets[device], program.offsets[device + 1])
    takes_time = (program.columns.exchange[rows] >= 0) | (program.columns.work[rows] >= 0)
    exchanges = rows[(program.kinds[rows] != Kind.COMPUTE) & takes_time]
    starts, stops = trace.start_s[-1, exchanges], trace.end_s[-1, exchanges]
    beside = computed_s(stops) - computed_s(starts)
    effect = program.columns.effect[exchanges]
    found: dict[str, Hidden] = {}
    for number in np.unique(effect).tolist():
        own, name = effect == number, program.tables.effects[number].name
        before = found.get(name, Hidden(0.0, 0.0))
        found[name] = Hidden(
            before.seconds + float((stops - starts)[own].sum()), before.hidden_s + float(beside[own].sum())
        )
    return found


def _computed(trace: Trace, device: int) -> Callable[[Floats], Floats]:
    """Of moments, for how many seconds the device has computed before them."""
    program = trace.program
    rows = np.arange(program.offsets[device], program.offsets[device + 1])
    computes = rows[program.kinds[rows] == Kind.COMPUTE]
    begins, ends = np.sort(trace.start_s[:, computes].ravel()), np.sort(trace.end_s[:, computes].ravel())
    edges = np.stack([begins, ends], axis=1).ravel()  # of one stream: they follow each other
    busy_s = np.concatenate([[0.0], np.cumsum(np.where(np.arange(len(edges) - 1) % 2, 0.0, np.diff(edges)))])
    return lambda moments: np.interp(moments, edges, busy_s)


def _host_memory_s(trace: Trace, device: int) -> float:
    """Seconds of a step in which a device loads or stores, whichever or both, and computes nothing; of the step before the
    last, as stores pass beside the computes of the next one."""
    program = trace.program
    rows = np.arange(program.offsets[device], program.offsets[device + 1])
    moves = rows[np.isin(program.kinds[rows], HOST_KINDS)]
    if not len(moves):
        return 0.0
    which = max(-2, -trace.num_iterations)
    moves = moves[np.argsort(trace.start_s[which, moves], kind="stable")]
    starts, stops = trace.start_s[which, moves], np.maximum.accumulate(trace.end_s[which, moves])
    starts[1:] = np.maximum(
        starts[1:], np.minimum(stops[:-1], stops[1:])
    )  # what another has begun counts once
    computed_s = _computed(trace, device)
    return float((stops - starts).sum() - (computed_s(stops) - computed_s(starts)).sum())


def step_parts(
    made: StepProgram,
    prices: Prices,
    pricing: Pricing,
    period_s: float,
    trace: Trace,
    added_s: Floats | None = None,
) -> dict[str, float]:
    """Seconds by kind on the list whose computes take longest: what its computes are made of, what the rows of its other
    streams take (beside computes or not, `is_beside`), the step's fixed overhead, and "waiting", in which its compute stream
    idles. What it waits for exchanges inside layers that are rows is told apart from that, as where they are priced in
    computes, and so is what it waits for the host's memory. All but what is beside sums to the step.
    ``added_s``: of rows what their attention takes beyond what their works say."""
    program = made.wiring.program
    device, busy_s = busiest(program, prices)
    rows = np.arange(program.offsets[device], program.offsets[device + 1])
    found: defaultdict[str, float] = defaultdict(float)
    effects = program.tables.effects
    shape = (len(effects), 1 + len(program.tables.works), len(prices.costs))
    keys = program.columns.effect[rows], 1 + program.columns.work[rows], prices.cost_of_row[rows]
    codes, counts = np.unique(np.ravel_multi_index(keys, shape), return_counts=True)
    kinds = np.stack(np.unravel_index(codes, shape), axis=1) - (0, 1, 0)
    for (effect, work, cost), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        total = prices.costs[cost].seconds * count
        if work < 0 or effects[effect].kind != Kind.COMPUTE:
            found[effects[effect].name] += total
            continue
        inside = pricing.parts(program.tables.works[work])
        for kind, each in inside.items():
            found[kind] += each * count
        found[INSIDE] += total - sum(inside.values()) * count
    if added_s is not None:
        found[INSIDE] -= (moved := float(added_s[rows].sum()))
        found[ATTENTION] += moved
    found[OVERHEAD] = pricing.step_s
    for kind, seconds in idle_parts(trace, device, max(0.0, period_s - busy_s)).items():
        found[kind] += seconds
    ordered = sorted(found.items(), key=lambda pair: -pair[1])
    return {name: value for name, value in ordered if value > 0}


def idle_parts(trace: Trace, device: int, idle_s: float) -> dict[str, float]:
    """What of the seconds of a step in which a device's compute stream idles passes beside exchanges between segments, beside
    loads and stores, and beside neither: by part, together `idle_s`."""
    between = (one for name, one in hidden_exchanges(trace, device).items() if name in INNER_ROWS)
    exposed = {INSIDE: sum(one.exposed_s for one in between), HOST_MEMORY: _host_memory_s(trace, device)}
    found = {}
    for part, seconds in exposed.items():
        found[part] = min(seconds, idle_s)
        idle_s -= found[part]
    return {**found, WAITING: idle_s}
