"""Safe plans: of what was searched those that fit also where their memory comes out at the upper end of its interval.

The closed form says what candidates are expected to need. How much more they may need the estimate of one plan tells, in well
under 10 ms, and for all that recompute, shard and order alike it is nearly the same share of it: where one of them is not
safe, only such are asked that need less.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.planner.form.distinct import distinct
from meshwright.planner.search.contender import Contenders
from meshwright.planner.search.objective import DIGITS
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import fit_probability
from meshwright.schedules.order import registered

NUM_ASKED = 200  # candidates whose interval is worked out: about a second at most
# What decides how much more than expected a candidate may need.
SMALLER = 0.98  # of what one of a kind needs that is no safe one: the next that is asked needs less
ALIKE = ("recompute", "sharding", "sequence_parallel", "context", "schedule")


def safe_numbers(contenders: Contenders, capacity_bytes: int, risk: float) -> Iterator[int]:
    """Numbers of candidates that fit with a chance of 1 - `risk` or more, the fastest by the closed form first, of those that
    are alike the first."""
    space, form = contenders.space, contenders.form
    kind, _ = distinct([getattr(space, name) for name in ALIKE]) if len(space) else (np.empty(0, int), None)
    most_bytes = np.full(
        int(kind.max(initial=-1)) + 1, np.inf
    )  # that one of the kind may be expected to need
    seen, num_asked = set[tuple[float, float]](), 0
    for number in np.argsort(form.step_s, kind="stable").tolist():
        needed = float(form.needed_bytes[number])
        key = (round(float(form.step_s[number]), DIGITS), round(needed))
        if key in seen or needed > most_bytes[kind[number]]:
            continue
        seen.add(key)
        plan = space.plan(number)
        memory = estimate_memory(plan, space.cluster, registered()[plan.schedule])
        num_asked += 1
        if fit_probability(memory, capacity_bytes) >= 1.0 - risk:
            yield number
        else:  # what needs as much, or nearly, of the same kind is as little likely to fit
            most_bytes[kind[number]] = SMALLER * needed
        if num_asked >= NUM_ASKED:
            return
