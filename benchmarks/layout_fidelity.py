"""Predicted beside measured over layouts of one model on processes of this machine: seconds of a step and peak memory.

    python benchmarks/layout_fidelity.py [--rounds 3]

Every layout is simulated with the profile that `meshwright calibrate` measured here, and trained; step: median of the
measured iterations; peak: live storages of one iteration against the simulated peak of the fullest device. Claims: the
median error of the step is 15 % at most, every peak within 10 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from meshwright.api.training import run_training
from meshwright.executor.pool import Pool
from meshwright.ir.metrics import peak_bytes
from meshwright.specs.cluster_source import Cluster
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import Plan
from meshwright.specs.workload import Workload

MODEL = ModelSpec.decoder(8, 256, 8, num_kv_heads=4, vocabulary_size=2048, max_sequence_length=256)
WORKLOAD = Workload(8, 256)
ITERATIONS = 6
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="trainings of every layout, interleaved")
    rounds = parser.parse_args().rounds
    steps: dict[int, list[float]] = {number: [] for number in range(len(LAYOUTS))}
    predicted_s, peaks = {}, {}
    with Pool(2) as pool:
        for _ in range(rounds):
            for number, choices in enumerate(LAYOUTS):
                num_devices = choices.get("pp", 1) * choices.get("dp", 1) * choices.get("tp", 1)
                plan = Plan.of(MODEL, Cluster.detect(num_devices), WORKLOAD, **choices)
                done = run_training(plan, data="random", iterations=ITERATIONS, pool=pool)
                assert done.trace is not None
                steps[number] += [iteration.seconds for iteration in done.iterations[2:]]
                predicted_s[number] = float(done.predicted.metadata["step"]["value"])
                peaks[number] = [
                    max(peak_bytes(trace, device) for device in range(num_devices) if trace.memory)
                    for trace in (done.predicted, done.trace)
                ]
    return report(steps, predicted_s, peaks)


def report(
    steps: dict[int, list[float]], predicted_s: dict[int, float], peaks: dict[int, list[float]]
) -> int:
    """One line a layout, then the claims."""
    errors, peak_errors = [], []
    for number, choices in enumerate(LAYOUTS):
        measured_s = statistics.median(steps[number])
        predicted, measured = peaks[number]
        errors.append(abs(predicted_s[number] / measured_s - 1.0))
        peak_errors.append(abs(predicted / measured - 1.0))
        words = " ".join(f"{name}={value}" for name, value in choices.items())
        print(
            f"{words:50} step {predicted_s[number] * 1e3:7.0f} ms predicted, {measured_s * 1e3:7.0f} measured, "
            f"ratio {predicted_s[number] / measured_s:.2f}; peak {predicted / 2**20:6.1f} MiB, {measured / 2**20:6.1f}, "
            f"ratio {predicted / measured:.2f}"
        )
    median, worst = statistics.median(errors), max(peak_errors)
    print(f"median error of the step {median:.1%} (claim {LARGEST_STEP_ERROR:.0%})")
    print(f"largest error of the peak {worst:.1%} (claim {LARGEST_PEAK_ERROR:.0%})")
    return 0 if median <= LARGEST_STEP_ERROR and worst <= LARGEST_PEAK_ERROR else 3


if __name__ == "__main__":
    sys.exit(main())
