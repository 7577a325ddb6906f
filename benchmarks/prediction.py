"""Predicted against measured: every plan that two processes allow, for model shapes that the calibration has not seen.

Predicts every plan from this machine's profile (measured first, unless one is given), then trains each for a few steps
in interleaved rounds, and says per shape
  - how far the median of the rounds is from the prediction (must be within 15 %),
  - how many pairs of plans, of those whose predictions differ by more than 10 %, the measurement orders the same way
    (must be at least 90 % of at least 10),
  - the regret of the plan that was picked: its measured step over that of the best one (must be at most 5 %).
One JSON object on stdout, progress on stderr. A machine with other work on it measures the other work: `load_at_start`
is the number of processes that were running before we began, and `is_quiet` is false from half a process on.

    .venv/bin/python benchmarks/prediction.py [--rounds 5] [--shapes wide,long,deep] [--profile FILE] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import meshwright
from meshwright.evidence.compare import compare
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.measure.measure import measure
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.planner import Plans, Predicted, every_plan
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.workload import Workload

SCHEMA = 1
NUM_PROCESSES = 2
MICROBATCH_SIZES = (1, 4)
QUIET_LOAD = 0.5
ERROR_LIMIT, ORDER_GAP, ORDER_LIMIT, LEAST_PAIRS, REGRET_LIMIT = 0.15, 0.10, 0.90, 10, 0.05
# None of these widths, lengths and depths is among the stages that calibrate (`executor.measure_stages`).
SHAPES: Mapping[str, tuple[ModelSpec, Workload]] = {
    "wide": (ModelSpec.decoder(4, 320, 5, max_sequence_length=160, name="wide"), Workload(8, 160)),
    "long": (ModelSpec.decoder(4, 192, 4, max_sequence_length=384, name="long"), Workload(8, 384)),
    "deep": (ModelSpec.decoder(8, 144, 3, max_sequence_length=224, name="deep"), Workload(8, 224)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the shapes and print one JSON object; 0 where every limit holds, 3 where one does not."""
    options = parse(arguments)
    began, load = time.perf_counter(), load_average()
    profile = Profile.load(options.profile) if options.profile else measured_profile(options.quick)
    with Pool(NUM_PROCESSES) as pool:
        shapes = {name: run_shape(name, profile, pool, options) for name in options.shapes}
    answer = {
        "schema": SCHEMA,
        "meshwright": meshwright.__version__,
        "benchmark": "prediction",
        "machine": {
            "processor": profile.device,
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "load_at_start": load,
        "is_quiet": load is not None and load < QUIET_LOAD,
        "num_rounds": options.rounds,
        "limits": {"error": ERROR_LIMIT, "order": ORDER_LIMIT, "regret": REGRET_LIMIT},
        "shapes": shapes,
        "passed": all(shape["passed"] for shape in shapes.values()),
        "wall_s": time.perf_counter() - began,
    }
    print(json.dumps(answer, indent=1))
    return 0 if answer["passed"] else 3


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds over all plans")
    parser.add_argument(
        "--iterations", type=int, default=4, help="steps of a plan in a round; the first is left out"
    )
    parser.add_argument(
        "--shapes", type=lambda text: text.split(","), default=list(SHAPES), help=", ".join(SHAPES)
    )
    parser.add_argument("--plans", type=int, default=0, help="only so many, spread over the ranking (0: all)")
    parser.add_argument("--profile", type=Path, help="a profile instead of measuring this machine")
    parser.add_argument(
        "--quick", action="store_true", help="a quick profile: to try the path, not to judge it"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.shapes if name not in SHAPES]:
        parser.error(f"unknown shapes {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    if options.iterations < 3:
        parser.error("--iterations must be 3 or more: the first is left out, a step is between two ends")
    return options


def measured_profile(is_quick: bool) -> Profile:
    """This machine, measured now, so that the profile and the runs are of the same hour."""
    say("measuring this machine")
    return measure(NUM_PROCESSES, effort="quick" if is_quick else "full")


def run_shape(name: str, profile: Profile, pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    """Predict and measure all plans of a shape."""
    model, workload = SHAPES[name]
    ranking = every_plan(
        model, Cluster.detect(NUM_PROCESSES), workload, profile=profile, microbatch_sizes=MICROBATCH_SIZES
    )
    chosen = spread(ranking, options.plans)
    steps: list[list[float]] = [[] for _ in chosen]
    for number in range(options.rounds):
        for place, candidate in enumerate(chosen):
            say(
                f"{name}: round {number + 1} of {options.rounds}, plan {place + 1} of {len(chosen)}: {candidate.description}"
            )
            steps[place].append(measured_step_s(candidate, pool, options.iterations))
    return judge([c.description for c in chosen], [c.step.value for c in chosen], steps)


def spread(ranking: Plans, count: int) -> list[Predicted]:
    """`count` candidates evenly over the ranking, the first and the last among them; all for 0."""
    if count < 2 or count >= len(ranking):
        return list(ranking)
    return [ranking[round(k * (len(ranking) - 1) / (count - 1))] for k in range(count)]


def measured_step_s(candidate: Predicted, pool: Pool, iterations: int) -> float:
    """Train a few steps on random tokens and compare: the executed program is the simulated one, or this raises."""
    plan = candidate.plan
    training = TrainingConfig(plan.model, plan.layers_per_stage, plan.workload.sequence_length, source=RANDOM)
    result = pool.run(
        Job.of(candidate.program, iterations, training=training),
        timeout_s=max(30.0, 20 * candidate.step.value),
    )
    assert result.trace is not None, "a job that is not interrupted has a trace"
    step = compare(candidate.trace(), result.trace).step.measured
    assert step is not None, "a trace has a step"
    return step


def judge(
    names: Sequence[str], predicted: Sequence[float], rounds: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """The three questions. Plans stand in the order of prediction, the picked one first."""
    medians = [statistics.median(steps) for steps in rounds]
    errors = [ours / theirs - 1 for ours, theirs in zip(predicted, medians)]
    pairs = [
        (a, b) for a, b in combinations(range(len(names)), 2) if predicted[b] > predicted[a] * (1 + ORDER_GAP)
    ]
    agreeing = sum(medians[a] < medians[b] for a, b in pairs)
    median_error = statistics.median(abs(error) for error in errors)
    order = agreeing / len(pairs) if pairs else 1.0
    regret = medians[0] / min(medians) - 1
    has_pairs = len(pairs) >= LEAST_PAIRS
    return {
        "num_plans": len(names),
        "median_error": median_error,
        "worst_error": max(errors, key=abs),
        "within_limit": sum(abs(error) <= ERROR_LIMIT for error in errors) / len(errors),
        "num_pairs": len(pairs),
        "order": order,
        "regret": regret,
        "picked": names[0],
        "best": names[medians.index(min(medians))],
        "passed": median_error <= ERROR_LIMIT
        and order >= ORDER_LIMIT
        and has_pairs
        and regret <= REGRET_LIMIT,
        "plans": [
            {
                "plan": name,
                "predicted_s": ours,
                "measured_s": theirs,
                "error": error,
                "spread": max(steps) / min(steps) - 1,
            }
            for name, ours, theirs, error, steps in zip(names, predicted, medians, errors, rounds)
        ],
    }


def load_average() -> float | None:
    """Processes running in the last minute; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
