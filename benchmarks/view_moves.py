"""Speed of a move: from words of a plan to its timeline, memory and parts, as a slider of a view asks for it in one process.

Claim (the project's own target, of which the browser and the wire take the rest): the 95th percentile of 50 random moves
over degrees, schedule, microbatches, recompute and sharding takes at most 70 ms of CPU time, for 64 H100 and 16 to 64
microbatches, at the level of stages with composed prices. A move is all of it: the plan is made and checked, lowered, wired,
priced, run for three iterations, its step divided into parts, its memory estimated and drawn as curves of the last iteration.
No plan is asked for twice, and plans that are refused are not counted. The collector of cyclic garbage is told once, as a
service would tell it, that what is there before the first counted move stays.

Run: OMP_NUM_THREADS=1 python benchmarks/view_moves.py [--moves 50] [--seed 0]
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

from meshwright.api.subjects.subject import plan_subject
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.prediction.memory_estimate import MemoryEstimate
from meshwright.schedules.order import registered
from meshwright.simulator import memory_curves
from meshwright.specs import Cluster, MeshwrightError, ModelSpec, Plan, Workload, load_model
from meshwright.specs.cluster.cluster import ClusterSpec

SEQUENCE = 2048
# GPT-3 by its layers, width and heads (Brown et al., arXiv 2005.14165, table 2.1)
GPT_175B = ModelSpec.gpt(
    96, 12288, 96, vocabulary_size=50257, max_sequence_length=SEQUENCE, name="gpt-175b", source="its paper"
)
CLUSTER = "8x8xH100"
NUM_DEVICES = 64
PIPELINES, TENSORS = (2, 4, 8, 16), (1, 2, 4, 8)  # degrees; data parallelism takes the devices that are left
MICROBATCHES = (16, 24, 32, 48, 64)
CHOICES = {
    "recompute": ("none", "selective", "full"),
    "sharding": ("none", "zero1", "zero2"),
    "schedule": tuple(name for name, each in registered().items() if not each.takes_times),
}
MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
CLAIMED_S = 0.070
WARM = 10  # moves before any is counted: kernels are compiled, tables of measured costs read


def moves(seed: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Random plans for ever, none twice: microbatches, and fields of a plan."""
    chance, known = random.Random(seed), set[str]()
    while True:
        pp, tp = chance.choice(PIPELINES), chance.choice(TENSORS)
        if NUM_DEVICES % (pp * tp):
            continue
        degrees = {"pp": pp, "tp": tp, "dp": NUM_DEVICES // (pp * tp), "sequence_parallel": tp > 1}
        chosen = {name: chance.choice(values) for name, values in CHOICES.items()}
        found = chance.choice(MICROBATCHES), {**degrees, **chosen}
        if str(found) not in known:
            known.add(str(found))
            yield found


def move(
    model: ModelSpec, cluster: ClusterSpec, num_microbatches: int, fields: dict[str, Any]
) -> tuple[Trace, tuple[MemoryCurve, ...], MemoryEstimate | None]:
    """All that a view shows of a plan: timeline with step and parts, curves of memory, and the estimate of it."""
    workload = Workload(num_microbatches * fields["dp"], SEQUENCE)
    plan = Plan.of(model, cluster, workload, **MIXED, **fields)
    found = plan_subject(plan, cluster, segments=False).predicted
    assert found is not None, "a plan is predicted"
    trace = found.trace()
    return trace, memory_curves(found.made.wiring, trace.posted_s, trace.end_s), found.memory


def measured(
    model: ModelSpec, cluster: ClusterSpec, num_moves: int, seed: int
) -> tuple[list[float], list[int]]:
    """CPU seconds and instructions of so many moves that were not refused."""
    seconds, rows = [], []
    for number, fields in moves(seed):
        if len(rows) == WARM:
            gc.freeze()
        begin = time.process_time()
        try:
            trace, *_ = move(model, cluster, number, fields)
        except MeshwrightError:
            continue
        seconds.append(time.process_time() - begin)
        rows.append(trace.program.num_rows)
        if len(rows) == WARM + num_moves:
            break
    return seconds[WARM:], rows[WARM:]


def main() -> None:
    """The claim beside its value, for both models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--moves", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for model in (load_model("llama-3.1-70b"), GPT_175B):
        seconds, rows = measured(model, Cluster(CLUSTER), given.moves, given.seed)
        p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1]
        print(
            f"{model.name}, {given.moves} moves of {min(rows):,} to {max(rows):,} instructions: median "
            f"{statistics.median(seconds) * 1e3:.0f} ms of CPU, largest {max(seconds) * 1e3:.0f} ms"
        )
        print(
            f"{'95th percentile':<20} {p95:>8.3f} s   bound {CLAIMED_S} s   ratio {CLAIMED_S / p95:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
