"""Speed of the planner: candidates a second in the closed form, and wall time from the model's name to the best plan.

Claims (the project's own targets): 150,000 evaluated candidates/s on one core; 8B on 64 GPUs in under 1 s after start;
405B on 16,384 H100, a million candidates, in under 10 s and 2 GB.

Run: OMP_NUM_THREADS=1 python benchmarks/plan_speed.py
"""

from __future__ import annotations

import resource
import time

from meshwright.planner.form.closed_form import closed_form
from meshwright.planner.form.cost_table import tables_of
from meshwright.planner.search.search import search
from meshwright.planner.space.space import space_of
from meshwright.specs import Cluster, Workload, load_model

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
# (model, cluster, global batch, sequence, wall seconds claimed, candidates claimed)
JOBS = (
    ("llama-3.1-8b", "8x8xH100", 256, 8192, 1.0, 0),
    ("llama-3.1-405b", "16384xH100", 2048, 8192, 10.0, 1_000_000),
)
RATE_PER_S = 150_000
MEMORY_BYTES = 2e9
REPEATS = 5  # of the closed form alone: its tables are priced once, and not counted


def line(claim: str, value: float, bound: float, unit: str, *, lower_is_better: bool = True) -> None:
    """Claim, our value, ratio to the bound (above 1 is better than claimed)."""
    ratio = bound / value if lower_is_better else value / bound
    print(f"{claim:<64} {value:>10.4g} {unit:<6} bound {bound:>8.3g}   ratio {ratio:.2f}", flush=True)


def measure(model: str, cluster: str, batch: int, sequence: int, wall_s: float, wanted: int) -> None:
    """One job: the whole search first, as a user meets it, then its closed form alone."""
    begin = time.perf_counter()
    spec, where, work = load_model(model), Cluster(cluster), Workload(batch, sequence)
    found = search(spec, where, work, fix=MIXED)
    took = time.perf_counter() - begin
    name = f"{model} on {cluster}"
    line(f"{name}: wall time to the best plan", took, wall_s, "s")
    print(f"  {found[0]}")
    print(
        f"  {found.num_candidates} candidates, {found.num_too_large} do not fit, {found.num_evaluated} may be the best; "
        f"space, tables and closed form {found.search_s:.2f} s, {len(found)} simulated in {found.simulation_s:.2f} s"
    )
    if wanted:
        line(f"{name}: candidates", found.num_candidates, wanted, "", lower_is_better=False)
    space = space_of(spec, where, work, fix=MIXED)
    tables = tables_of(space)
    begin = time.perf_counter()
    for _ in range(REPEATS):
        closed_form(space, tables)
    rate = REPEATS * len(space) / (time.perf_counter() - begin)
    line(f"{name}: closed form, one core", rate, RATE_PER_S, "/s", lower_is_better=False)


def main() -> None:
    """All jobs, then the memory of the process."""
    for job in JOBS:
        measure(*job)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line("peak memory of the process", peak, MEMORY_BYTES, "B")


if __name__ == "__main__":
    main()
