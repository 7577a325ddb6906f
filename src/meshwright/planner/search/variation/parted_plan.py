"""Parted plans: of what was searched those with microbatches in parts, one's exchanges in layers beside another's computes.

The closed form prices microbatches as whole: what runs beside what is only seen in segments. But cutting saves no more than
the exchanges inside stages that nothing hides, and kernels of fewer samples are no faster: what is left may be shorter than
the best step of a few candidates only. These are cut in two, as evenly as can be, and the best of them in other shares.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshwright.planner.search.contender import Contenders
from meshwright.planner.search.objective import DIGITS
from meshwright.prediction.composition import is_in_segments
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.token_part import TokenParts, shares_of

NUM_PARTED = 3  # candidates of which microbatches are cut,
NUM_PRICED = 24  # of so many, whose kernels are priced in parts,
NUM_ALIKE = (
    8  # and at most so many of one tp and cp: what hides is much the same in those that exchange alike
)
OTHERS: tuple[TokenParts, ...] = ("2:1", "3:1", 4)  # than halves, of the best
LEAST_INSIDE = 1e-3  # of a step; what exchanges less gains nothing


def halved(contenders: Contenders, best_s: float) -> list[Plan]:
    """Candidates with microbatches of two parts whose steps may be shorter than `best_s`, the most hopeful first."""
    form, found = contenders.form, list[tuple[float, int, Plan]]()
    for number in itertools.islice(_hopeful(contenders, best_s), NUM_PRICED):
        whole = contenders.space.plan(number)
        plan = whole.changed(token_parts=halves(_num_divided(whole)))
        slower_s = 0.0
        if plan.parts_of == "samples":
            parts_s = sum(_computed_s(contenders, whole, part.num_samples) for part in plan.parts)
            slower_s = parts_s - _computed_s(contenders, whole, whole.microbatch_size)
        hoped_s = form.step_s[number] - form.inside_s[number] + plan.num_microbatches * slower_s / plan.pp
        if hoped_s < best_s:
            found.append((float(hoped_s), number, plan))
    ordered = [plan for _, _, plan in sorted(found, key=lambda each: each[:2])]
    return _of_every_kind(ordered)[:NUM_PARTED]


def _of_every_kind(plans: Sequence[Plan]) -> list[Plan]:
    """The most hopeful of each tp and cp in front."""
    first: dict[tuple[int, int], Plan] = {}
    for plan in plans:
        first.setdefault((plan.tp, plan.cp), plan)
    chosen = list(first.values())
    return chosen + [plan for plan in plans if plan not in chosen]


def _hopeful(contenders: Contenders, best_s: float) -> Iterator[int]:
    """Numbers of candidates that are faster without what they exchange inside, of those that are alike the first; rows have
    to say these exchanges."""
    space, form = contenders.space, contenders.form
    left_s, seen = form.step_s - form.inside_s, set[tuple[float, float]]()
    alike = Counter[tuple[int, int]]()
    is_cut = (form.inside_s > LEAST_INSIDE * form.step_s) & (left_s < best_s)
    is_cut &= space.ep == 1  # what goes to experts is no row: no plan is made to be refused
    if space.formats.get("parts_of", Plan.parts_of) == "samples":
        is_cut &= space.microbatch_size > 1
    else:
        is_cut &= space.cp == 1  # which cuts sequences otherwise
    for number in np.flatnonzero(is_cut)[np.argsort(left_s[is_cut], kind="stable")].tolist():
        key = (round(float(form.step_s[number]), DIGITS), round(float(form.needed_bytes[number])))
        degrees = (int(space.tp[number]), int(space.cp[number]))
        if key not in seen and alike[degrees] < NUM_ALIKE and is_in_segments(space.plan(number)):
            seen.add(key)
            alike[degrees] += 1
            yield number


def _computed_s(contenders: Contenders, plan: Plan, size: int) -> float:
    """Seconds that microbatches of so many samples compute in all stages."""
    batch = plan.workload.global_batch // plan.microbatch_size * size  # of as many microbatches
    workload = replace(plan.workload, global_batch=batch)
    return contenders.sources.computed_s(plan.changed(microbatch_size=size, workload=workload))


def _num_divided(plan: Plan) -> int:
    """Of what its parts are made: samples of a microbatch, or tokens of a sequence."""
    return plan.microbatch_size if plan.parts_of == "samples" else plan.workload.sequence_length


def halves(size: int) -> TokenParts:
    """Two parts of so many samples, or tokens, as even as can be, the larger first."""
    return 2 if size % 2 == 0 else f"{size - size // 2}:{size // 2}"


def recut(plan: Plan) -> Iterator[Plan]:
    """The plan with its microbatches in other parts."""
    for parts in OTHERS:
        if _num_divided(plan) % sum(shares_of(parts)) == 0 and parts != plan.token_parts:
            yield plan.changed(token_parts=parts)
