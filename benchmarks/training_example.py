"""Plans of the page on how a step is predicted: the worked example, and three more whose time goes elsewhere.

python benchmarks/training_example.py prints the parts of each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import meshwright as mw
from meshwright.prediction.predicted import predict
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan


class Job(NamedTuple):
    """A model on a cluster: sequences a step, tokens a sequence, and fields of the plan."""

    model: str
    cluster: str
    global_batch: int
    sequence_length: int
    choices: Mapping[str, Any]


FORMATS = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}
EXAMPLE = "Llama-3.1-70B, 64 H100"
JOBS: Mapping[str, Job] = {
    EXAMPLE: Job(
        "llama-3.1-70b", "8x8xH100", 128, 8192,
        {"schedule": "interleaved_1f1b", "num_chunks": 5, "pp": 4, "tp": 8, "sequence_parallel": True,
         "sharding": "zero1", "overlap": ("reduce", "gather")},
    ),
    "Llama-3.1-8B, 8 H100, FSDP": Job(
        "llama-3.1-8b", "8xH100", 64, 8192,
        {"sharding": "zero3", "recompute": "selective_op", "overlap": ("reduce", "gather")},
    ),
    "Llama-3.1-8B, 131,072 tokens": Job(
        "llama-3.1-8b", "8x8xH100", 64, 131072,
        {"cp": 8, "tp": 2, "sequence_parallel": True, "sharding": "zero1", "overlap": ("reduce", "gather", "tp")},
    ),
    "Qwen3-30B-A3B, 8 B200, ep 8": Job(
        "qwen3-30b-a3b", "8xB200", 256, 4096,
        {"ep": 8, "microbatch_size": 4, "sharding": "zero1", "overlap": ("reduce", "gather")},
    ),
}  # fmt: skip


def example(label: str) -> tuple[Plan, ClusterSpec]:
    """The plan and the cluster of a job."""
    job = JOBS[label]
    cluster = mw.Cluster(job.cluster)
    workload = mw.Workload(job.global_batch, job.sequence_length)
    return mw.Plan.of(mw.Model(job.model), cluster, workload, **FORMATS, **job.choices), cluster


def main() -> None:
    """Every step with its parts, in seconds."""
    for label in JOBS:
        found = predict(*example(label))
        print(f"{label}: {found.step.value:.3f} s, {found.step.low:.3f} to {found.step.high:.3f} s")
        for name, seconds in found.parts.items():
            print(f"  {name:24}{seconds:9.3f} s")


if __name__ == "__main__":
    main()
