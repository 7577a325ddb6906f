"""What the peers of `plan_peers.py` are asked, and how both sides' answers are judged.

job    = PlanJob(...)                     # a model, GPUs, a batch: the same for both sides
answer = apart(0, search, ...)            # in a process of its own, on one core
judged(plan, job.cluster)                 # seconds of the step and whether it fits, by us, for both sides
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from meshwright.planner.form.closed_form import closed_form
from meshwright.planner.form.cost_table import tables_of
from meshwright.planner.search.search import search
from meshwright.planner.space.space import space_of
from meshwright.prediction.description import describe
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import estimated_rejection
from meshwright.prediction.predicted import predict
from meshwright.schedules.order import registered
from meshwright.specs import Workload
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan

Answer = TypeVar("Answer")
NUM_PAIRS = 11  # of interleaved measurements, as for every speed that is compared
MIXED: Mapping[str, Any] = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
MICROBATCH_SIZES = (1, 2, 4, 8, 16)  # sequences; what these peers try
# What none of these peers has in its own search: a space of the same kind as theirs is without it.
PEERS_AXES: Mapping[str, Any] = {
    "cp": 1, "schedule": ("1f1b", "interleaved_1f1b"), "layers": "even", "recompute_blocks": 0,
    "sharding": ("none", "zero1"), "sharding_degree": 0, "mesh_order": "pp-dp-cp-tp",
}  # fmt: skip


@dataclass(frozen=True)
class PlanJob:
    """One job of a peer's own: `fix` is what its model takes for granted, `axes` what its search decides."""

    name: str
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    fix: Mapping[str, Any]
    axes: Mapping[str, Any]
    microbatch_sizes: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The best plan of one side.

    `core_s`: seconds of one core that finding it took (both sides have one thread). `own_s`: what the peer's own model says
    of its step. `is_bound`: the plan here is one that is no slower than the peer's, as ours cannot say exactly what the
    peer's does. `fitting` is the peer's best plan among those that fit by our estimate of memory, where `plan` does not.
    """

    plan: Plan | None
    core_s: float
    num_evaluated: int
    own_s: float = 0.0
    is_bound: bool = False
    fitting: Plan | None = None


def apart(core: int, function: Callable[..., Answer], *arguments: Any) -> Answer:
    """Call it in a fresh process on one core: nothing that was cached before helps it, nothing it changes stays."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(_pinned, core, function, arguments).result()


def _pinned(core: int, function: Callable[..., Answer], arguments: tuple[Any, ...]) -> Answer:
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[core % len(allowed)]})
    return function(*arguments)


@contextlib.contextmanager
def peer_modules(folder: Path) -> Iterator[None]:
    """The peer's packages can be imported, what it prints and logs goes nowhere: the fastest that it can be."""
    sys.path.insert(0, str(folder))
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
        sys.path.remove(str(folder))


def searched(job: PlanJob, axes: Mapping[str, Any], limit_s: float | None) -> Found:
    """Our search of a job: of everything, or of the peer's axes alone; `limit_s` is by the clock on the wall."""
    begin = time.process_time()
    found = search(
        job.model, job.cluster, job.workload, fix={**job.fix, **axes}, time_limit_s=limit_s,
        microbatch_sizes=job.microbatch_sizes,
    )  # fmt: skip
    return Found(found[0].plan, time.process_time() - begin, found.num_candidates)


def is_fitting(plan: Plan, cluster: ClusterSpec) -> bool:
    """Does it fit by our estimate of its memory?"""
    memory = estimate_memory(plan, cluster, registered()[plan.schedule])
    return estimated_rejection(plan, memory, cluster.memory_bytes) is None


def judged(plan: Plan, cluster: ClusterSpec) -> tuple[float, bool]:
    """Seconds of a step by simulation, and whether the plan fits by our estimate of its memory."""
    fits = is_fitting(plan, cluster)
    return predict(plan, cluster).step.value, fits


def with_memory(cluster: ClusterSpec, memory_bytes: int) -> ClusterSpec:
    """The cluster with the memory that the peer's system file gives its devices."""
    device = replace(cluster.devices[0], memory_bytes=memory_bytes)
    return replace(cluster, devices=(device,) * cluster.num_devices)


def divisors(number: int) -> tuple[int, ...]:
    """All of them, in order."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def rates(job: PlanJob, chunk: Callable[[], tuple[int, float]]) -> list[tuple[float, float, float]]:
    """Interleaved pairs of candidates/s: the peer's (`chunk` gives a count and its seconds), our closed form alone, and
    ours with its space and tables, which a search makes once. All in this process."""
    found = []
    for _ in range(NUM_PAIRS):
        count, seconds = chunk()
        begin = time.process_time()
        space = space_of(
            job.model, job.cluster, job.workload, fix={**job.fix, **job.axes}, microbatch_sizes=job.microbatch_sizes
        )  # fmt: skip
        tables = tables_of(space)
        prepared = time.process_time()
        closed_form(space, tables)
        ended = time.process_time()
        found.append((count / seconds, len(space) / (ended - prepared), len(space) / (ended - begin)))
    return found


def show_rates(name: str, pairs: list[tuple[float, float, float]]) -> None:
    """Claim, ours, the peer's, ratio: medians, and quartiles of the ratio."""
    for words, place in (("closed form alone", 1), ("closed form, its space and tables", 2)):
        ratios = sorted(pair[place] / pair[0] for pair in pairs)
        low, middle, high = statistics.quantiles(ratios, n=4)
        ours = statistics.median(pair[place] for pair in pairs)
        peers = statistics.median(pair[0] for pair in pairs)
        print(
            f"{name}, {words:<34} ours {ours:>11,.0f}/s   peer's {peers:>8,.0f}/s   "
            f"ratio {middle:,.1f} ({low:,.1f} to {high:,.1f})",
            flush=True,
        )


def show_plan(who: str, found: Found, cluster: ClusterSpec, peers_s: str) -> float:
    """One line of an answer; gives the judged seconds of its step."""
    if found.plan is None:
        print(
            f"  {who:<26} {found.core_s:>8.2f} s  {found.num_evaluated:>9,} candidates  no plan fits",
            flush=True,
        )
        return float("inf")
    seconds, fits = apart(0, judged, found.plan, cluster)  # apart: what it caches would help a later search
    fitting = "memory not judged" if found.is_bound else "fits" if fits else "does not fit here"
    at_least = " at least" if found.is_bound else ""
    print(
        f"  {who:<26} {found.core_s:>8.2f} s  {found.num_evaluated:>9,} candidates  step{at_least} {seconds:.4g} s, {fitting}"
        f"{peers_s}  {describe(found.plan)}",
        flush=True,
    )
    return seconds
