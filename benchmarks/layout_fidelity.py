"""Predicted beside measured over layouts of one model on processes of this machine: seconds of a step and peak memory.

    python benchmarks/layout_fidelity.py [--rounds 5]

In every round `calibrate` measures the machine, and then every layout is simulated with that profile and trained: a machine
that others use, too, changes its pace within minutes, and a profile tells it as it was. Step: the median over rounds of
predicted over measured, where measured is the median of the iterations. Peak: live storages of one iteration against the
simulated peak of the fullest device. Claims: the median error of the step is 15 % at most, every peak within 10 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any, NamedTuple

from meshwright.api.exchange.calibrating import calibrate
from meshwright.api.trainings.training import run_training
from meshwright.executor.job.pool import Pool
from meshwright.ir.judge.metrics import peak_bytes
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

MODEL = ModelSpec.decoder(8, 256, 8, num_kv_heads=4, vocabulary_size=2048, max_sequence_length=256)
WORKLOAD = Workload(8, 256)
NUM_PROCESSES = 2
ITERATIONS, NUM_WARM_UPS = 6, 2
LARGEST_STEP_ERROR, LARGEST_PEAK_ERROR = 0.15, 0.10
MIXED = {"dtype": "bfloat16", "reduction_dtype": "float32", "master_dtype": "float32"}
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"pp": 1, "dp": 1, "tp": 1},
    {"pp": 2, "schedule": "gpipe"},
    {"pp": 2},
    {"pp": 2, "recompute": "full"},
    {"pp": 2, "schedule": "interleaved_1f1b"},
    {"pp": 2, "schedule": "zb_h1"},
    {"pp": 2, "schedule": "zbv"},
    {"dp": 2},
    {"dp": 2, "sharding": "zero1"},
    {"dp": 2, "sharding": "zero2"},
    {"dp": 2, "sharding": "zero3"},
    {"dp": 2, "sharding": "zero3", "recompute": "full"},
    {"tp": 2},
    {"tp": 2, "sequence_parallel": True},
    {"tp": 2, "sequence_parallel": True, "recompute": "full"},
)


def main() -> int:
    """Print the table; 3 where a claim fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="calibrations, and trainings of every layout")
    rounds = parser.parse_args().rounds
    seen: list[list[Seen]] = [[] for _ in LAYOUTS]
    for _ in range(rounds):
        calibrate(NUM_PROCESSES)
        with Pool(NUM_PROCESSES) as pool:
            for found, choices in zip(seen, LAYOUTS, strict=True):
                found.append(train(choices, pool))
    return report(seen)


class Seen(NamedTuple):
    """Of one training."""

    predicted_s: float
    measured_s: float
    predicted_bytes: float
    measured_bytes: float


def train(choices: dict[str, Any], pool: Pool) -> Seen:
    """Predict and run one layout."""
    num_devices = choices.get("pp", 1) * choices.get("dp", 1) * choices.get("tp", 1)
    plan = Plan.of(MODEL, Cluster.detect(num_devices), WORKLOAD, **choices)
    done = run_training(plan, data="random", iterations=ITERATIONS, pool=pool)
    assert done.trace is not None
    measured_s = statistics.median(one.seconds for one in done.iterations[NUM_WARM_UPS:])
    peaks = [
        max(peak_bytes(trace, device) for device in range(num_devices) if trace.memory)
        for trace in (done.predicted, done.trace)
    ]
    return Seen(float(done.predicted.metadata["step"]["value"]), measured_s, *peaks)


def report(seen: list[list[Seen]]) -> int:
    """One line a layout, then the claims."""
    errors, peak_errors = [], []
    for choices, rounds in zip(LAYOUTS, seen, strict=True):
        ratio = statistics.median(one.predicted_s / one.measured_s for one in rounds)
        peaks = [one.predicted_bytes / one.measured_bytes for one in rounds]
        peak = max(peaks, key=lambda each: abs(each - 1.0))
        errors.append(abs(ratio - 1.0))
        peak_errors.append(abs(peak - 1.0))
        words = " ".join(f"{name}={value}" for name, value in choices.items())
        times = [f"{one.predicted_s * 1e3:.0f}/{one.measured_s * 1e3:.0f}" for one in rounds]
        print(f"{words:48} step {ratio:.2f} of measured; peak {peak:.2f}; ms {' '.join(times)}", flush=True)
    median, worst = statistics.median(errors), max(peak_errors)
    print(f"median error of the step {median:.1%} (claim {LARGEST_STEP_ERROR:.0%})")
    print(f"largest error of the peak {worst:.1%} (claim {LARGEST_PEAK_ERROR:.0%})")
    return 0 if median <= LARGEST_STEP_ERROR and worst <= LARGEST_PEAK_ERROR else 3


if __name__ == "__main__":
    sys.exit(main())
