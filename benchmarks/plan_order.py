"""How often composed prices and full simulation order plans differently, over twenty jobs of jobs.toml.

Of every job the ten plans that `plan` shows: in how many of their pairs the composed numbers say another order than the steps
simulated in segments, and by how much the composed first is behind the best of the ten in full. Plans that stay composed
(rings, experts, recompute of a part) are on one side of no pair, and counted. Of the stacks overlap "tp" is left out, which
rows do not say. CPU seconds are of the whole search, and of the ten in full. Exit status 3 where a first plan is behind.

Run: OMP_NUM_THREADS=1 python benchmarks/plan_order.py [NUMBER OF JOBS]
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Sequence

from jobs import Job, load_jobs

from meshwright.planner.search.plans import NUM_SHOWN
from meshwright.planner.search.search import search
from meshwright.prediction.predicted import Predicted

NUM_JOBS = 20
LEAST = 1e-6  # of a step: plans that differ by less are equally fast


def composed_s(each: Predicted) -> float:
    """The composed number of a plan, whichever it was simulated in; where a layer sends nothing both are the same."""
    return each.step.value if math.isnan(each.composed_s) else each.composed_s


def disagreements(shown: Sequence[Predicted]) -> tuple[int, int]:
    """Pairs that composed and full order differently, and all pairs that differ in full, of which one is in segments."""
    wrong = found = 0
    for one, other in itertools.combinations(shown, 2):
        full, composed = one.step.value - other.step.value, composed_s(one) - composed_s(other)
        if "segments" in (one.level, other.level) and abs(full) > LEAST * one.step.value:
            found += 1
            wrong += full * composed < 0
    return wrong, found


def measure(job: Job) -> tuple[int, int, float]:
    """A line of one job: pairs that disagree, all pairs, and how far the composed first is behind the best."""
    fixed = {**job.fixed, "overlap": tuple(each for each in job.fixed["overlap"] if each != "tp")}
    begun = time.process_time()
    found = search(job.model, job.cluster, job.workload, fix=fixed, extrapolate=True)
    took_s = time.process_time() - begun
    shown = [each for each in found[:NUM_SHOWN] if each.level != "composed"]
    wrong, pairs = disagreements(shown)
    behind = 0.0
    if shown:
        first = min(shown, key=composed_s)
        behind = first.step.value / min(each.step.value for each in shown) - 1
    num_rows = sum(each.level == "segments" for each in shown)
    most = max((abs(each.step.value / composed_s(each) - 1) for each in shown), default=0.0)
    print(
        f"{job.name:<58} {len(found[:NUM_SHOWN]):>3} shown, {num_rows:>2} in segments: {wrong:>2} of {pairs:>2} pairs "
        f"disagree, first {100 * behind:.3f} % behind, both differ by up to {100 * most:.2f} %; {took_s:.1f} CPU s",
        flush=True,
    )
    return wrong, pairs, behind


def main() -> int:
    """All jobs, then the sums."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_JOBS
    results = [measure(job) for job in load_jobs()[:number]]
    wrong, pairs, behind = (list(each) for each in zip(*results, strict=True))
    num_first = sum(each <= LEAST for each in behind)
    num_told = sum(count > 0 for count in pairs)
    print(
        f"\n{len(results)} jobs, {num_told} with plans in segments: "
        f"{sum(wrong)} of {sum(pairs)} pairs in another order; the composed first is the best of the "
        f"ten in full in {num_first}, and at most {100 * max(behind):.3f} % behind"
    )
    return 0 if num_first == len(results) else 3


if __name__ == "__main__":
    sys.exit(main())
