"""Plans whose all-to-alls of tokens pass beside another microbatch's computes: of what was searched those with pairs of a
forward and a backward, and, for another program, the best that it can be told.

No candidate of the space has that where nobody fixes it: one column more for everybody, of what only models gain that send
tokens to experts. No step is shorter by more than what its exchanges inside stages take; candidates that may be the fastest
so are priced with it by the closed form, and the best of these are simulated: as our own programs run it, where the order is
made of such pairs (`lowering/segment/beside_plan`). Megatron-LM's combined 1F1B takes pipelines in chunks and one stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwright.lowering.segment.beside_plan import BESIDE, has_pairs
from meshwright.planner.form.closed_form import closed_form
from meshwright.planner.form.cost_table import CostSources, tables_of
from meshwright.planner.search.contender import Contenders
from meshwright.planner.search.objective import DIGITS
from meshwright.planner.space.space import Space
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import estimated_rejection, fit_probability
from meshwright.prediction.predicted import Predicted
from meshwright.schedules.order import registered
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.token_part import shares_of

NUM_VARIED = 3  # of the best plans of a program that can; and of candidates, of any risk and safe ones each
MOST_PRICED = 1024  # of those whose exchanges alone may make up for it, the most hopeful
MOST_ASKED = 64  # of the priced, whose memory is estimated: each in well under 10 ms
LEAST_INSIDE = 1e-3  # of a step; what exchanges less gains nothing
IN_CHUNKS = "interleaved_1f1b"


def beside_experts(ranked: Sequence[Predicted]) -> Iterator[Plan]:
    """Of the best few plans that may have it in Megatron-LM, the same with it: with two microbatches at least, nothing run
    again as a whole, and in a pipeline with several chunks a device."""
    open_plans = (each.plan for each in ranked if _may_have(each.plan))
    for _, plan in zip(range(NUM_VARIED), open_plans, strict=False):
        yield plan.changed(overlap=(*plan.overlap, BESIDE))


def _may_have(plan: Plan) -> bool:
    is_in_chunks = plan.pp == 1 or plan.schedule == IN_CHUNKS
    is_open = plan.ep > 1 and BESIDE not in plan.overlap and not plan.has_parts
    return is_open and is_in_chunks and plan.num_microbatches > 1 and plan.recompute != "full"


def paired(
    contenders: Contenders, best_s: float, capacity_bytes: int, risk: float | None
) -> list[tuple[Plan, float]]:
    """Candidates with microbatches beside each other whose steps may be shorter than `best_s`, that of the fastest plan that
    fits with this risk; the fastest first, each with its seconds by the closed form. They are expected to fit, with the
    further microbatch in flight, and as many of them with this risk."""
    chosen, num_safe = list[tuple[Plan, float]](), 0
    seen = set[tuple[float, int]]()
    for number, (space, row, step_s, needed) in enumerate(_priced(contenders, best_s)):
        key = (round(step_s / best_s, DIGITS), round(needed))
        if step_s >= best_s or number == MOST_ASKED or num_safe == NUM_VARIED:
            break
        if key in seen:
            continue
        seen.add(key)
        plan = space.plan(row)
        schedule = registered()[plan.schedule]
        memory = estimate_memory(plan, space.cluster, schedule)
        is_safe = risk is None or fit_probability(memory, capacity_bytes) >= 1.0 - risk
        fits = estimated_rejection(plan, memory, capacity_bytes) is None
        is_wanted = is_safe or len(chosen) - num_safe < NUM_VARIED
        if fits and is_wanted and has_pairs(plan, schedule):
            chosen.append((plan, step_s))
            num_safe += is_safe
    return chosen


def _priced(contenders: Contenders, best_s: float) -> list[tuple[Space, int, float, float]]:
    """Of those that may be faster than that, the fastest by the closed form first: a space, the row there, seconds, bytes."""
    space, form = contenders.space, contenders.form
    rows = _hopeful(contenders, best_s)
    found = list[tuple[Space, int, float, float]]()
    # what runs beside computes otherwise is the sharding's
    for number in np.unique(space.sharding[rows]).tolist():
        own = rows[space.sharding[rows] == number]
        formats = {**space.formats, "overlap": (*space.overlap(number), BESIDE)}
        beside = replace(space.taken(own), formats=formats, open_contexts={})
        sources = CostSources(beside, extrapolate=contenders.sources.extrapolate)
        priced = closed_form(beside, tables_of(beside, sources=sources), has_memory=False)
        needed = form.needed_bytes[own]
        found += [(beside, row, float(priced.step_s[row]), float(needed[row])) for row in range(len(own))]
    return sorted(found, key=lambda each: each[2])


def _hopeful(contenders: Contenders, best_s: float) -> NDArray[np.int64]:
    """Numbers of the candidates that have pairs, and are faster without what they exchange inside."""
    space, form = contenders.space, contenders.form
    if not len(space) or len(shares_of(space.formats.get("token_parts", 1))) > 1:
        return np.empty(0, dtype=np.int64)
    has_pairs = np.array([bool(registered()[name].pairs) for name in space.names["schedule"]])[space.schedule]
    left_s = form.step_s - form.inside_s
    is_open = (space.ep > 1) & (space.num_microbatches > 1) & (has_pairs | (space.pp == 1))
    is_open &= (left_s < best_s) & (form.inside_s > LEAST_INSIDE * form.step_s)
    rows = np.flatnonzero(is_open)
    return rows[np.argsort(left_s[rows], kind="stable")][:MOST_PRICED]
