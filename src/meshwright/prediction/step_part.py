"""step_parts: where the seconds of a step go on its busiest device, by kind of work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from meshwright.costs.pricing import Pricing
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace
from meshwright.lowering.segment.chain_rows import WORDS
from meshwright.prediction.step_program import StepProgram
from meshwright.simulator.pricing import Prices

INNER_ROWS = frozenset(WORDS.names)  # of exchanges between segments
INSIDE, OVERHEAD, WAITING = "exchanges inside, host", "step overhead", "waiting"


class Hidden(NamedTuple):
    """What the exchanges of one name take on a device in a step, and how much of that passes beside its computes, in s."""

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
    """Of the last iteration's exchanges of a device, by name: seconds, and how many of these its compute stream is busy."""
    program = trace.program
    rows = np.arange(program.offsets[device], program.offsets[device + 1])
    is_compute = program.kinds[rows] == Kind.COMPUTE
    computes, exchanges = rows[is_compute], rows[program.columns.exchange[rows] >= 0]
    begins, ends = np.sort(trace.start_s[:, computes].ravel()), np.sort(trace.end_s[:, computes].ravel())
    edges = np.stack([begins, ends], axis=1).ravel()  # of one stream: they follow each other
    busy_s = np.concatenate([[0.0], np.cumsum(np.where(np.arange(len(edges) - 1) % 2, 0.0, np.diff(edges)))])
    starts, stops = trace.start_s[-1, exchanges], trace.end_s[-1, exchanges]
    beside = np.interp(stops, edges, busy_s) - np.interp(starts, edges, busy_s)
    effect = program.columns.effect[exchanges]
    found: dict[str, Hidden] = {}
    for number in np.unique(effect).tolist():
        own, name = effect == number, program.tables.effects[number].name
        before = found.get(name, Hidden(0.0, 0.0))
        found[name] = Hidden(
            before.seconds + float((stops - starts)[own].sum()), before.hidden_s + float(beside[own].sum())
        )
    return found


def step_parts(
    made: StepProgram, prices: Prices, pricing: Pricing, period_s: float, exchanges: Mapping[str, Hidden]
) -> dict[str, float]:
    """Seconds by kind on the list whose computes take longest: what its computes are made of, what its exchanges take (beside
    computes or not), the step's fixed overhead, and "waiting", in which its compute stream idles. Where exchanges inside
    layers are rows, what it waits for these is told apart from that, as where they are priced in computes. `exchanges`: as of
    `hidden_exchanges`."""
    program = made.wiring.program
    device, busy_s = busiest(program, prices)
    rows = np.arange(program.offsets[device], program.offsets[device + 1])
    found: defaultdict[str, float] = defaultdict(float)
    names = [effect.name for effect in program.tables.effects]
    shape = (len(names), 1 + len(program.tables.works), len(prices.costs))
    keys = program.columns.effect[rows], 1 + program.columns.work[rows], prices.cost_of_row[rows]
    codes, counts = np.unique(np.ravel_multi_index(keys, shape), return_counts=True)
    kinds = np.stack(np.unravel_index(codes, shape), axis=1) - (0, 1, 0)
    for (effect, work, cost), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        total = prices.costs[cost].seconds * count
        if work < 0:
            found[names[effect]] += total
            continue
        inside = pricing.parts(program.tables.works[work])
        for kind, each in inside.items():
            found[kind] += each * count
        found[INSIDE] += total - sum(inside.values()) * count
    found[OVERHEAD] = pricing.step_s
    waiting_s = max(0.0, period_s - busy_s)
    exposed_s = min(inside_s(exchanges), waiting_s)
    found[INSIDE] += exposed_s
    found[WAITING] = waiting_s - exposed_s
    ordered = sorted(found.items(), key=lambda pair: -pair[1])
    return {name: value for name, value in ordered if value > 0}


def inside_s(exchanges: Mapping[str, Hidden]) -> float:
    """Seconds of a device's exchanges between segments beside which it computes nothing."""
    return sum(each.exposed_s for name, each in exchanges.items() if name in INNER_ROWS)
