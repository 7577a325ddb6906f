"""Predictions put to the test: every plan is run in interleaved rounds, and the order of the plans is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any

from meshwright.api.subjects.subject import Subject
from meshwright.api.trainings.training import run_training
from meshwright.specs.error import ExecutionError

if TYPE_CHECKING:
    from meshwright.executor.job.pool import Pool
    from meshwright.prediction.predicted import Predicted

ROUNDS = 3
ITERATIONS = 4  # of one run: the first is left out, and three ends give two distances
CLEAR_DIFFERENCE = 0.10  # predictions closer than this say nothing about an order


@dataclass(frozen=True, eq=False)
class Trial:
    """One plan with the seconds of a step in every round."""

    candidate: Predicted
    measured_s: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """Median over the rounds."""
        return median(self.measured_s)

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.step_s / self.candidate.step.value


@dataclass(frozen=True)
class Ordering:
    """Pairs of plans whose predictions differ clearly, how many measurement orders alike, and the picked plan's regret.

    ``regret``: how much longer than the best measured step the picked plan's takes; 0.03 is 3 %.
    """

    num_pairs: int
    num_agreeing: int
    regret: float

    @property
    def share(self) -> float | None:
        """Part of the pairs that agree; None where there are none."""
        return self.num_agreeing / self.num_pairs if self.num_pairs else None


def run_trials(
    candidates: Sequence[Predicted],
    subject_of: Callable[[Predicted], Subject],
    *,
    rounds: int = ROUNDS,
    iterations: int = ITERATIONS,
    pool: Pool,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> list[Trial]:
    """Run every plan once in every round, so that what disturbs the machine disturbs all of them alike.

    Ctrl-C ends it with the rounds that are complete. Raises ExecutionError where not even one is.
    """
    from meshwright.evidence.compare import steady, step_s

    subjects = [subject_of(candidate) for candidate in candidates]
    measured: list[list[float]] = [[] for _ in candidates]
    is_over = False
    for number in range(rounds):
        for place, candidate in enumerate(candidates):
            if progress is not None:
                done = number * len(candidates) + place
                progress(f"round {number + 1}: {candidate.description}", done / (rounds * len(candidates)))
            run = run_training(
                subjects[place], iterations=iterations, seed=seed, pool=pool, measures_memory=False
            )
            if run.result.interrupted or run.trace is None:
                is_over = True
                break
            measured[place].append(step_s(steady(run.trace)))
        if is_over:
            break
    complete = min(len(times) for times in measured)
    if not complete:
        raise ExecutionError("no round was complete", next="let it run longer")
    return [
        Trial(candidate, tuple(times[:complete]))
        for candidate, times in zip(candidates, measured, strict=True)
    ]


def ordering(trials: Sequence[Trial]) -> Ordering:
    """How well the predictions order the plans; the picked plan is the first."""
    pairs = [
        (one, other)
        for one, other in combinations(trials, 2)
        if _distance(one.candidate.step.value, other.candidate.step.value) > CLEAR_DIFFERENCE
    ]
    agreeing = sum(
        (one.candidate.step.value < other.candidate.step.value) == (one.step_s < other.step_s)
        for one, other in pairs
    )
    best = min(trial.step_s for trial in trials)
    return Ordering(len(pairs), agreeing, trials[0].step_s / best - 1.0)


def trial_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Plain data, SI units."""
    return [
        {
            "plan": trial.candidate.description,
            "predicted_s": trial.candidate.step.value,
            "low_s": trial.candidate.step.low,
            "high_s": trial.candidate.step.high,
            "measured_s": trial.step_s,
            "rounds_s": list(trial.measured_s),
            "ratio": trial.ratio,
        }
        for trial in trials
    ]


def _distance(one: float, other: float) -> float:
    return max(one, other) / min(one, other) - 1.0
