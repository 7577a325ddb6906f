"""Does `plan` see a slow link and a slow process? The plan it picks there against the one it picks on the even machine.

Two gloo processes, two situations: a token bucket in the transport holds what they send each other down to a rate, or
every compute of one process takes a multiple of its time. Each situation is measured as `calibrate` does it, `plan` ranks
every plan by that profile, and its first plan is trained beside the first plan of the even machine's profile, in
interleaved pairs, on the slowed machine. Claims, for each situation:
  - `plan` picks another plan than on the even machine;
  - that plan is faster there: the median of the ratios (step of the even machine's plan over step of its own, above one:
    ours is faster) and their first quartile are above one. The median must not become worse.
Both sides train the same batches: their first losses must agree, or the run ends. One JSON object on stdout, progress on
stderr; exit status 3 where a claim fails. `load_at_start` is the number of processes that were running before we began.

    .venv/bin/python benchmarks/plan_slow_link.py [--pairs 11] [--situations link,process] [--profiles FOLDER] [--quick]
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import meshwright
from meshwright.api import plan
from meshwright.evidence.compare import steady, step_s
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.measure.measure import measure
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.planner import Plans, Predicted
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.workload import Workload

SCHEMA = 1
NUM_PROCESSES = 2
LEAST_PAIRS = 11  # the noise policy of the design
MICROBATCH_SIZES = (1, 2, 4)
LOSS_TOLERANCE = 1e-4  # float32 against float32 in another order


@dataclass(frozen=True)
class Situation:
    """What is slowed, and the job that is planned there."""

    slowing: Slowing
    model: ModelSpec
    workload: Workload


SITUATIONS: Mapping[str, Situation] = {
    # 13 MB of gradients a step, 1 MB of activations and as much of their gradients: a slow link favours the pipeline
    "link": Situation(
        Slowing.parse(links=["0-1=50MB/s"]),
        ModelSpec.decoder(4, 256, 4, max_sequence_length=128, name="wide"),
        Workload(8, 128),
    ),
    # eight blocks: six and two keep both processes busy as long where one of them takes three times as long
    "process": Situation(
        Slowing.parse(processes=["1=3"]),
        ModelSpec.decoder(8, 144, 3, max_sequence_length=128, name="deep"),
        Workload(16, 128),
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the situations and print one JSON object; 0 where every claim holds, 3 where one does not."""
    options = parse(arguments)
    began, load = time.perf_counter(), os.getloadavg()[0]
    even = profile_of("even", Slowing(), options)
    with Pool(NUM_PROCESSES) as pool:
        results = {name: run_situation(name, even, pool, options) for name in options.situations}
    answer = {
        "schema": SCHEMA,
        "meshwright": meshwright.__version__,
        "benchmark": "plan_slow_link",
        "machine": {
            "processor": even.device,
            "python": platform.python_version(),
            "system": platform.system(),
        },
        "load_at_start": load,
        "num_pairs": options.pairs,
        "situations": results,
        "passed": all(result["passed"] for result in results.values()),
        "wall_s": time.perf_counter() - began,
    }
    print(json.dumps(answer, indent=1))
    return 0 if answer["passed"] else 3


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=LEAST_PAIRS, help="interleaved pairs")
    parser.add_argument("--iterations", type=int, default=6, help="steps of a run; the first is left out")
    parser.add_argument(
        "--situations",
        type=lambda text: text.split(","),
        default=list(SITUATIONS),
        help=", ".join(SITUATIONS),
    )
    parser.add_argument(
        "--profiles", type=Path, help="a folder: profiles that are there are not measured again"
    )
    parser.add_argument(
        "--quick", action="store_true", help="quick profiles: to try the path, not to judge it"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.situations if name not in SITUATIONS]:
        parser.error(f"unknown situations {', '.join(unknown)}; there are {', '.join(SITUATIONS)}")
    if options.iterations < 3:
        parser.error("--iterations must be 3 or more: the first is left out, a step is between two ends")
    return options


def profile_of(name: str, slowing: Slowing, options: argparse.Namespace) -> Profile:
    """The machine measured under that slowing, or what was measured before."""
    path = options.profiles / f"{name}.profile.json" if options.profiles else None
    if path is not None and path.is_file():
        return Profile.load(path)
    say(f"{name}: measuring this machine")
    profile = measure(NUM_PROCESSES, effort="quick" if options.quick else "full", slowing=slowing)
    if path is not None:
        profile.save(path)
    return profile


def run_situation(name: str, even: Profile, pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    """Plan on both machines, and run both first plans on the slowed one."""
    situation = SITUATIONS[name]
    slowed = profile_of(name, situation.slowing, options)
    usual, picked = ranking(situation, even)[0], ranking(situation, slowed)[0]
    there = {c.description: c for c in ranking(situation, slowed)}
    both = {"even": usual, "picked": picked}
    steps: dict[str, list[float]] = {side: [] for side in both}
    losses: dict[str, float] = {}
    for number in range(options.pairs):
        # who goes first alternates, so that neither side always runs behind a pause
        for side in sorted(both, reverse=bool(number % 2)):
            say(f"{name}: pair {number + 1} of {options.pairs}, {both[side].description}")
            step, losses[side] = measured(both[side], situation, pool, options.iterations)
            steps[side].append(step)
    if abs(losses["even"] / losses["picked"] - 1) > LOSS_TOLERANCE:
        raise RuntimeError(f"the two plans do not train the same: first losses are {losses}")
    return {
        "slowing": str(situation.slowing),
        "process_factors": slowed.process_factors,
        **judged(usual, picked, steps, there.get(usual.description)),
    }


def ranking(situation: Situation, profile: Profile) -> Plans:
    """Every plan of the situation's job by what a profile says."""
    workload = situation.workload
    found = plan(
        situation.model, Cluster.detect(NUM_PROCESSES), global_batch=workload.global_batch,
        seq=workload.sequence_length, profile=profile, microbatch_sizes=MICROBATCH_SIZES,
    )  # fmt: skip
    assert isinstance(found, Plans), "processes of this machine are enumerated"
    return found


def measured(candidate: Predicted, situation: Situation, pool: Pool, iterations: int) -> tuple[float, float]:
    """Seconds of a step on the slowed machine, and the first loss."""
    training = TrainingConfig(
        candidate.plan.model,
        candidate.plan.layers_per_stage,
        situation.workload.sequence_length,
        source=RANDOM,
    )
    result = pool.run(Job.of(candidate.program, iterations, training=training), slowing=situation.slowing)
    assert result.trace is not None, "a job that is not interrupted has a trace"
    return step_s(steady(result.trace)), result.losses[0]


def judged(
    usual: Predicted, picked: Predicted, steps: Mapping[str, Sequence[float]], there: Predicted | None
) -> dict[str, Any]:
    """Both claims; `there` is the even machine's plan as it was predicted on the slowed one."""
    ratios = [even / ours for even, ours in zip(steps["even"], steps["picked"], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [*ratios * 3]
    is_other = usual.program.digest() != picked.program.digest()
    return {
        "claim": "plan picks another plan than on the even machine, and it is faster there",
        "even_plan": usual.description,
        "picked_plan": picked.description,
        "is_other": is_other,
        "ratio": quartiles[1],
        "ratio_quartiles": [quartiles[0], quartiles[2]],
        "ratios": ratios,
        "predicted_ratio": None if there is None else there.step.value / picked.step.value,
        "even_plan_s": {
            "predicted": None if there is None else there.step.value,
            "measured": statistics.median(steps["even"]),
            "predicted_on_even_machine": usual.step.value,
        },
        "picked_plan_s": {"predicted": picked.step.value, "measured": statistics.median(steps["picked"])},
        "passed": is_other and quartiles[0] > 1,
    }


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
