"""The planner beside its peers: evaluations a second, and the best plan with the time to find it, on the peers' own jobs.

    python benchmarks/plan_peers.py --calculon DIR --simumax DIR --llm-analysis DIR [--packages DIR] [--long]

DIR are checkouts of the peers' sources; a peer that is not given, or that cannot be imported, is reported as absent.
`--packages` is a folder with what the peers import and this environment lacks (`pip install --no-deps --target FOLDER
pandas tabulate graphviz fire termcolor`).

Speed: at least 11 interleaved pairs on one core; the ratio is our candidates/s over the peer's, above one we are faster.
Plans: both sides search in a process of their own on one core, timed from behind their imports, in seconds of that core
(both have one thread, and others may run on this machine). Both plans are judged by our simulation of their steps, and by
the peer's own model where that can say our plan. Where the peer's best plan does not fit by our estimate of memory, its best
that does is what ours is compared with. Three searches of ours: of everything; of everything with less than a tenth of the
peer's time as its limit; with that limit, and only over what the peer's search decides too. Asked: a plan that is equal or
better in at most a tenth of the peer's time; exit status 3 where no search of ours gives it. 6 minutes, 12 with `--long`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import plan_peers_calculon
import plan_peers_llm_analysis
import plan_peers_simumax
from plan_peers_job import Found, PlanJob, apart, searched, show_plan, show_rates

from meshwright.specs.error import MeshwrightError

PEERS: tuple[tuple[str, ModuleType], ...] = (
    ("llm-analysis", plan_peers_llm_analysis), ("Calculon", plan_peers_calculon), ("SimuMax", plan_peers_simumax),
)  # fmt: skip
TENTH = 0.1
SAME = 1e-6  # steps that differ by less are equally good
FAILED = 3


def words_of(seconds: float | None) -> str:
    """What the peer's model says of a plan."""
    return "; the peer says: cannot" if seconds is None else f"; the peer says {seconds:.4g} s"


def compare(name: str, peer: ModuleType, folder: Path, job: PlanJob) -> tuple[bool, str]:
    """One job, both sides: is a plan as good found in a tenth of the time, and a line for the summary."""
    print(f"\n{name}: {job.name} GPUs, batch {job.workload.global_batch} of {job.workload.sequence_length}")
    theirs: Found = apart(0, peer.peer_search, folder, job)
    best_s = show_plan(name, theirs, job.cluster, words_of(theirs.own_s or None))
    if theirs.fitting:
        own = apart(0, peer.peer_judges, folder, job, theirs.fitting)
        fitting = replace(theirs, plan=theirs.fitting)
        best_s = show_plan("its best that fits here", fitting, job.cluster, words_of(own))
    limit_s = TENTH * theirs.core_s / 2  # a simulation that is running at its end is finished
    rows = []
    for words, axes, limit in (
        ("ours, everything", {}, None),
        (f"ours, in {limit_s:.2g} s", {}, limit_s),
        (f"ours, its axes, {limit_s:.2g} s", job.axes, limit_s),
    ):
        try:
            found: Found = apart(0, searched, job, axes, limit)
        except MeshwrightError as error:
            print(f"  {words:<26} no answer: {str(error).splitlines()[0]}", flush=True)
            rows.append((float("inf"), float("inf")))
            continue
        own = apart(0, peer.peer_judges, folder, job, found.plan) if found.plan else None
        step_s = show_plan(words, found, job.cluster, words_of(own))
        rows.append((step_s / best_s, found.core_s / theirs.core_s))
    good = [step <= 1 + SAME and share <= TENTH for step, share in rows]
    cells = "  ".join(
        f"{step:6.3f} at {share:6.3f}{'*' if is_good else ' '}" for (step, share), is_good in zip(rows, good)
    )
    return any(good), f"{name + ', ' + job.name:<34} {cells}  {'holds' if any(good) else 'FAILS'}"


def speed(name: str, peer: ModuleType, folder: Path) -> str:
    """Shows evaluations a second; what went wrong otherwise."""
    try:
        show_rates(name, apart(0, peer.rate_pairs, folder))
    except ImportError as missing:
        return f"{name}: absent, {missing}"
    return ""


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, _ in PEERS:
        parser.add_argument(f"--{name.lower()}", type=Path, metavar="DIR")
    parser.add_argument("--packages", type=Path, metavar="DIR")
    parser.add_argument(
        "--long", action="store_true", help="also the jobs on which a peer searches for minutes"
    )
    return parser.parse_args(given)


def main() -> int:
    """All peers that are there."""
    chosen = arguments(sys.argv[1:])
    if chosen.packages:
        sys.path.append(str(chosen.packages.resolve()))
    present: list[tuple[str, ModuleType, Path]] = []
    for name, peer in PEERS:
        folder = getattr(chosen, name.lower().replace("-", "_"))
        reason = (
            f"{name}: absent, no folder was given" if folder is None else speed(name, peer, folder.resolve())
        )
        if reason:
            print(reason, flush=True)
        else:
            present.append((name, peer, folder.resolve()))
    results = [
        compare(name, peer, folder, job)
        for name, peer, folder in present
        if hasattr(peer, "jobs")
        for job in peer.jobs(folder, chosen.long)
    ]
    if results:
        print("\nour step over the peer's (below 1: better) at our time over the peer's; *: holds")
        print("searches of ours: everything; everything, limited; what the peer decides, limited")
        print("\n".join(line for _, line in results))
    return 0 if all(holds for holds, _ in results) else FAILED


if __name__ == "__main__":
    sys.exit(main())
