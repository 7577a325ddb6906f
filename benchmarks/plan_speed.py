"""Speed of the planner, and what it finds: wall time from the model's name to the best plan, and the closed form's rate.

Claims (the project's own targets): 8B on 64 GPUs in under 1 s in the loop and 2 s with start-up; 70B on 64 in under 3 s and
405B on 16,384 in under 10 s with start-up, and 2 GB; 150,000 evaluated candidates/s on one core; microbatches that are no
powers of two, or large, where they are faster.

Run: OMP_NUM_THREADS=1 python benchmarks/plan_speed.py [gains|quick]
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from meshwright.planner.form.closed_form import closed_form
from meshwright.planner.form.cost_table import tables_of
from meshwright.planner.search.plans import NUM_SHOWN
from meshwright.planner.search.search import search
from meshwright.planner.space.space import space_of
from meshwright.specs import Cluster, Workload, load_model

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
# (model, cluster, global batch, sequence, seconds claimed in the loop, and of a new process; 0: none claimed)
JOBS = (
    ("llama-3.1-8b", "8x8xH100", 256, 8192, 1.0, 2.0),
    ("llama-3.1-70b", "8x8xH100", 512, 8192, 0.0, 3.0),
    ("llama-3.1-405b", "16384xH100", 2048, 8192, 0.0, 10.0),
)
# (model, cluster, global batch, sequence, microbatch that is found): the steps with powers of two up to 16 are compared
GAINS = (
    ("llama-3.2-1b", "8xH100", 24, 2048, 3),
    ("gpt2", "8xH100", 56, 1024, 7),
    ("gpt2", "1xH100", 15, 1024, 15),
    ("gpt2", "8xH100", 512, 1024, 64),
)
POWERS = (1, 2, 4, 8, 16)
RATE_PER_S = 150_000
MEMORY_BYTES = 2e9
STARTS = 3  # of the command, of which the median counts
REPEATS = 5  # of the closed form alone: its tables are priced once, and not counted


def line(claim: str, value: float, bound: float, unit: str, *, lower_is_better: bool = True) -> None:
    """Claim, our value, ratio to the bound (above 1 is better than claimed)."""
    ratio = bound / value if lower_is_better else value / bound
    print(f"{claim:<64} {value:>10.4g} {unit:<6} bound {bound:>8.3g}   ratio {ratio:.2f}", flush=True)


def measure(model: str, cluster: str, batch: int, sequence: int, loop_s: float, process_s: float) -> None:
    """One job: a process of its own, as a user meets it; then the search, and its closed form, in this one."""
    name, job = f"{model} on {cluster}", (load_model(model), Cluster(cluster), Workload(batch, sequence))
    command = [
        sys.executable,
        "-m",
        "meshwright",
        "plan",
        model,
        cluster,
        "--global-batch",
        str(batch),
        "--seq",
        str(sequence),
    ]
    once(
        command
    )  # bytecode and compiled kernels are there from then on, as in an installation that was used before
    run(f"{name}: the command, start-up and all", [once(command) for _ in range(STARTS)], process_s)
    with tempfile.TemporaryDirectory() as empty:
        run(f"{name}: the same without compiled kernels", [once(command, NUMBA_CACHE_DIR=empty)], 0.0)
    begin, cpu_s = time.perf_counter(), time.process_time()
    found = search(*job, fix=MIXED)
    took, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_s
    if loop_s:
        line(f"{name}: in the loop", took, loop_s, "s")
    print(
        f"  in the loop {cpu_s:.2f} s of CPU; levels of the plans shown: {[each.level for each in found[:NUM_SHOWN]]}"
    )
    print(f"  {found[0]}")
    print(
        f"  {found.num_candidates:,} candidates, {found.num_too_large:,} do not fit; space, tables and closed form "
        f"{found.search_s:.2f} s, {len(found)} simulated in {found.simulation_s:.2f} s"
    )
    space = space_of(*job, fix=MIXED)
    tables = tables_of(space)
    begin = time.perf_counter()
    for _ in range(REPEATS):
        closed_form(space, tables)
    rate = REPEATS * len(space) / (time.perf_counter() - begin)
    line(f"{name}: closed form, one core", rate, RATE_PER_S, "/s", lower_is_better=False)


def once(command: list[str], **environment: str) -> tuple[float, float]:
    """A new process: its wall time, and what it took of the CPU, which other programs disturb less. It may keep bytecode, as
    an installed package has it."""
    environment = {**os.environ, **environment}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(claim: str, taken: list[tuple[float, float]], bound_s: float) -> None:
    """The median of so many processes."""
    took, cpu_s = (statistics.median(each) for each in zip(*taken, strict=True))
    if bound_s:
        line(claim, took, bound_s, "s")
    else:
        print(f"{claim:<64} {took:>10.4g} s")
    print(f"  {cpu_s:.2f} s of CPU, load {os.getloadavg()[0]:.1f}", flush=True)


def gain(model: str, cluster: str, batch: int, sequence: int, size: int) -> None:
    """The microbatch that is found, and its step against the best with powers of two up to 16."""
    job = (load_model(model), Cluster(cluster), Workload(batch, sequence))
    best, usual = search(*job, fix=MIXED)[0], search(*job, fix=MIXED, microbatch_sizes=POWERS)[0]
    line(f"{model}, {batch} sequences on {cluster}: microbatch", best.plan.microbatch_size, size, "")
    line(f"{model}, {batch} sequences on {cluster}: step", best.step.value, usual.step.value, "s")


def main() -> None:
    """The gains, and all jobs, then the memory of the process."""
    asked = sys.argv[1:]
    for each in GAINS:
        gain(*each)
    if "gains" in asked:
        return
    for job in JOBS[: 1 if "quick" in asked else None]:
        measure(*job)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line("peak memory of the process", peak, MEMORY_BYTES, "B")


if __name__ == "__main__":
    main()
