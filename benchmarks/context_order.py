"""Predicted against measured order of the ways in which two processes share sequences: ring, zigzag, Ulysses, all-gather.

Every way is predicted from this machine's profile (measured first, unless one is given) and trained for a few steps, all of
them in each of at least 11 rounds, so that a machine that slows down slows all. Of every two ways whose predicted steps
differ by more than 10 % the ratio of their measured steps is taken round by round: its median has to be above 1.
Printed are medians and quartiles. One JSON object on stdout, progress on stderr; exit status 3 where a pair is in
another order. It is to be run on a machine with nothing else to do: `is_quiet` says whether it was.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/context_order.py [--rounds 11] [--shapes long,grouped] [--profile FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import meshwright
from meshwright.api.trainings.training import run_training
from meshwright.executor.job.pool import Pool
from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from prediction import QUIET_LOAD, load_average, measured_profile, say

NUM_PROCESSES, LEAST_ROUNDS, ORDER_GAP = 2, 11, 0.10
WAYS: Mapping[str, Mapping[str, str]] = {
    "ring": {"context": "ring", "token_layout": "contiguous"},
    "zigzag": {"context": "ring"},
    "stripe": {"context": "ring", "token_layout": "stripe"},
    "ulysses": {"context": "ulysses"},
    "all-gather": {"context": "all_gather"},
    "all-gather, contiguous": {"context": "all_gather", "token_layout": "contiguous"},
}
# Attention is most of the first; messages are most of the last.
SHAPES: Mapping[str, tuple[ModelSpec, Workload]] = {
    "long": (ModelSpec.decoder(2, 128, 4, max_sequence_length=2048, name="long"), Workload(1, 2048)),
    "grouped": (
        ModelSpec.decoder(2, 256, 8, num_kv_heads=2, max_sequence_length=1536, name="grouped"),
        Workload(1, 1536),
    ),
    "short": (ModelSpec.decoder(4, 256, 4, max_sequence_length=128, name="short"), Workload(8, 128)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the shapes and print one JSON object."""
    options = parse(arguments)
    load = load_average()
    profile = Profile.load(options.profile) if options.profile else measured_profile(options.quick)
    with Pool(NUM_PROCESSES) as pool:
        shapes = {name: of_shape(name, profile, pool, options) for name in options.shapes}
    passed = all(shape["passed"] for shape in shapes.values())
    answer = {
        "schema": 1,
        "meshwright": meshwright.__version__,
        "benchmark": "context_order",
        "machine": {"processor": profile.device},
        "load_at_start": load,
        "is_quiet": load is not None and load < QUIET_LOAD,
        "num_rounds": options.rounds,
        "shapes": shapes,
        "passed": passed,
    }
    print(json.dumps(answer, indent=1))
    return 0 if passed else 3


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS, help="of all ways, by turns")
    parser.add_argument(
        "--iterations", type=int, default=4, help="steps of a way in a round, the first left out"
    )
    parser.add_argument(
        "--shapes", type=lambda text: text.split(","), default=list(SHAPES), help=", ".join(SHAPES)
    )
    parser.add_argument("--profile", type=Path, help="a profile instead of measuring this machine")
    parser.add_argument(
        "--quick", action="store_true", help="a quick profile: to try the path, not to judge it"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 2 or options.iterations < 2:
        parser.error(
            "--rounds and --iterations are 2 at least: quartiles are of several, the first step is left out"
        )
    if unknown := [name for name in options.shapes if name not in SHAPES]:
        parser.error(f"unknown shapes {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    return options


def of_shape(name: str, profile: Profile, pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    """Predict and measure all ways of a shape, who begins changing from round to round."""
    model, workload = SHAPES[name]
    cluster = Cluster.detect(NUM_PROCESSES)
    plans = {
        way: predict(Plan.of(model, cluster, workload, cp=NUM_PROCESSES, **choices), cluster, profile=profile)
        for way, choices in WAYS.items()
    }
    measured: dict[str, list[float]] = {way: [] for way in plans}
    ways = list(plans)
    for number in range(options.rounds):
        say(f"{name}: round {number + 1} of {options.rounds}")
        for way in (*ways[number % len(ways) :], *ways[: number % len(ways)]):
            measured[way].append(step_s(plans[way], pool, options.iterations))
    return judge(plans, measured)


def step_s(way: Predicted, pool: Pool, iterations: int) -> float:
    """Seconds of a step of a training, the median of all but the first."""
    done = run_training(way.plan, data="random", iterations=iterations, pool=pool)
    return statistics.median(each.seconds for each in done.iterations[1:])


def judge(plans: Mapping[str, Predicted], measured: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Steps of every way, and of every two that are predicted apart on which side of each other they are."""
    pairs = []
    for one, other in combinations(sorted(plans, key=lambda way: plans[way].step.value), 2):
        predicted = plans[other].step.value / plans[one].step.value
        if predicted > 1 + ORDER_GAP:
            ratios = [b / a for a, b in zip(measured[one], measured[other], strict=True)]
            low, median, high = statistics.quantiles(ratios, n=4)
            pairs.append(
                {
                    "faster": one, "slower": other, "predicted": predicted, "measured": median,
                    "quartiles": [low, high], "agrees": median > 1,
                }
            )  # fmt: skip
    steps = {}
    for way, own in measured.items():
        low, median, high = statistics.quantiles(own, n=4)
        predicted_s = plans[way].step.value
        steps[way] = {"predicted_s": predicted_s, "measured_s": median, "quartiles_s": [low, high]}
    return {"ways": steps, "pairs": pairs, "passed": all(pair["agrees"] for pair in pairs)}


if __name__ == "__main__":
    sys.exit(main())
