"""step_parts: where the seconds of a step go on its busiest device, by kind of work."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from meshwright.costs.pricing import Pricing
from meshwright.ir.table import Kind
from meshwright.prediction.step_program import StepProgram
from meshwright.simulator.pricing import Prices

INSIDE, OVERHEAD, WAITING = "exchanges inside, host", "step overhead", "waiting"


def step_parts(made: StepProgram, prices: Prices, pricing: Pricing, period_s: float) -> dict[str, float]:
    """Seconds by kind on the list whose computes take longest: what its computes are made of, what its exchanges take (beside
    computes or not), the step's fixed overhead, and "waiting", in which its compute stream idles."""
    program = made.wiring.program
    is_compute = program.kinds == Kind.COMPUTE
    seconds = prices.seconds[prices.cost_of_row]
    busy = np.bincount(
        program.list_of_row[is_compute], weights=seconds[is_compute], minlength=program.num_lists
    )
    device = int(np.argmax(busy))
    rows = np.arange(program.offsets[device], program.offsets[device + 1])
    found: defaultdict[str, float] = defaultdict(float)
    names = [effect.name for effect in program.tables.effects]
    keys = np.stack([program.columns.effect[rows], program.columns.work[rows], prices.cost_of_row[rows]])
    kinds, counts = np.unique(keys, axis=1, return_counts=True)
    for (effect, work, cost), count in zip(kinds.T.tolist(), counts.tolist(), strict=True):
        total = prices.costs[cost].seconds * count
        if work < 0:
            found[names[effect]] += total
            continue
        inside = pricing.parts(program.tables.works[work])
        for kind, each in inside.items():
            found[kind] += each * count
        found[INSIDE] += total - sum(inside.values()) * count
    found[OVERHEAD] = pricing.step_s
    found[WAITING] = max(0.0, period_s - float(busy[device]))
    ordered = sorted(found.items(), key=lambda pair: -pair[1])
    return {name: value for name, value in ordered if value > 0}


def busy_share(made: StepProgram, prices: Prices, step_s: float) -> float:
    """Share of a step in which a device computes, in the mean over the devices of the pipeline."""
    program = made.wiring.program
    seconds = prices.seconds[prices.cost_of_row]
    return float(seconds[program.kinds == Kind.COMPUTE].sum()) / program.num_lists / step_s
