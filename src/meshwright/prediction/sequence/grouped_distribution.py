"""What a step takes whose sequences are in groups of ranks, as the mean over batches that are drawn of their lengths."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.prediction.predicted import predict
from meshwright.prediction.sequence.fitted_costs import fit_sequence_costs
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.group_seconds import (
    busy_seconds,
    finish_seconds,
    imbalance,
)
from meshwright.specs.sequence.length_distribution import LengthDistribution
from meshwright.specs.sequence.lower_bound import lower_bound_s
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import SequenceGrouping
from meshwright.specs.sequence.static_groups import STATIC, StaticGroups

NUM_BATCHES = 16
LEAST_TOKENS = 16  # of a sequence by which what a step has once is found


@dataclass(frozen=True)
class GroupedSeconds:
    """One algorithm on every drawn batch: seconds of the step, the busiest rank over the mean, seconds that its groups took
    to be decided on this machine."""

    seconds: tuple[float, ...]
    imbalances: tuple[float, ...]
    planning_s: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """The step of the distribution."""
        return math.fsum(self.seconds) / len(self.seconds)

    @property
    def error_s(self) -> float:
        """Standard error of the mean; 0 of a single batch."""
        if len(self.seconds) < 2:
            return 0.0
        return float(np.std(self.seconds, ddof=1)) / math.sqrt(len(self.seconds))

    @property
    def quartiles_s(self) -> tuple[float, float, float]:
        """Of the steps."""
        low, middle, high = np.quantile(self.seconds, (0.25, 0.5, 0.75)).tolist()
        return low, middle, high


@dataclass(frozen=True, eq=False)
class GroupedDistribution:
    """A plan's steps on drawn batches of whole sequences, by algorithm.

    Attributes:
        plan, costs: whose, and the formula that was fitted to its prices; `fit_error`: the largest it misses one by.
        batches: lengths of every drawn step.
        steps: by algorithm, in the order they were asked for, the static one first.
        bounds_s: seconds below which no grouping of a batch ends, of the same costs.
        once_s: seconds of a step that no group has: reductions, the optimizer, what lies between steps; in all of these.
    """

    plan: Plan
    costs: SequenceCosts
    fit_error: float
    batches: tuple[tuple[int, ...], ...]
    steps: Mapping[str, GroupedSeconds]
    bounds_s: tuple[float, ...]
    once_s: float

    @property
    def bound_s(self) -> float:
        """Mean of the bounds."""
        return math.fsum(self.bounds_s) / len(self.bounds_s)

    @property
    def mean_tokens(self) -> float:
        """Of a step."""
        return sum(map(sum, self.batches)) / len(self.batches)

    @property
    def best(self) -> tuple[str, GroupedSeconds]:
        """The algorithm with the shortest mean step, and its steps."""
        return min(self.steps.items(), key=lambda pair: pair[1].mean_s)

    @property
    def static(self) -> GroupedSeconds:
        """That of one degree for all sequences: what the longest one that may come needs."""
        return next(iter(self.steps.values()))


def grouped_distribution(
    plan: Plan,
    cluster: ClusterSpec,
    groupings: Mapping[str, SequenceGrouping],
    lengths: LengthDistribution,
    *,
    num_batches: int = NUM_BATCHES,
    seed: int = 0,
    **given: Any,
) -> GroupedDistribution:
    """Draw batches of the plan's global batch from `lengths`, cut at its sequence length, and group them.

    Args:
        groupings: by name; static groups of the degree that a whole sequence needs are put in front of them.
        given: memory_bytes, profile and extrapolate, as of `fit_sequence_costs`.

    Raises PlanError where the plan has no groups, or a sequence fits no degree.
    """
    work, num_ranks = plan.workload, plan.dp * plan.cp
    fit = fit_sequence_costs(plan, cluster, **given)
    costs, cut = fit.costs, lengths.cut(work.sequence_length)
    named = {**_static(work.sequence_length, num_ranks, costs), **groupings}
    batches = tuple(cut.drawn(work.global_batch, seed + number) for number in range(num_batches))
    priced = {name: value for name, value in given.items() if name != "memory_bytes"}
    once_s = _once_s(plan, cluster, int(min(work.sequence_length, costs.capacity_tokens)), priced)
    steps = {name: _grouped(one, batches, num_ranks, costs, once_s) for name, one in named.items()}
    bounds_s = tuple(once_s + lower_bound_s(each, num_ranks, costs) for each in batches)
    return GroupedDistribution(plan, costs, fit.largest_error, batches, steps, bounds_s, once_s)


def _static(longest: int, num_ranks: int, costs: SequenceCosts) -> Mapping[str, SequenceGrouping]:
    """One degree for all: the least that divides the ranks and holds the longest sequence."""
    least = costs.least_degree(longest)
    every = (degree for degree in range(least, num_ranks + 1) if num_ranks % degree == 0)
    degree = next((each for each in every if not costs.degrees or each in costs.degrees), None)
    if degree is None:
        raise PlanError(
            f"a sequence of {longest:,} tokens on {num_ranks} ranks",
            allowed=f"{least} ranks and more, by the memory of one",
            next="cut sequences shorter (--seq), recompute, or divide the state (sharding zero3)",
        )
    return {f"{STATIC}(degree={degree})": StaticGroups(degree)}


def _grouped(
    grouping: SequenceGrouping, batches: tuple[tuple[int, ...], ...], num_ranks: int, costs: SequenceCosts, once_s: float
) -> GroupedSeconds:  # fmt: skip
    seconds, imbalances, planning_s = [], [], []
    for lengths in batches:
        begun = time.perf_counter()
        batch = grouping(lengths, num_ranks, costs)
        planning_s.append(time.perf_counter() - begun)
        seconds.append(once_s + max(finish_seconds(batch, costs)))
        imbalances.append(imbalance(busy_seconds(batch, costs)))
    return GroupedSeconds(tuple(seconds), tuple(imbalances), tuple(planning_s))


def _once_s(plan: Plan, cluster: ClusterSpec, longest: int, given: Mapping[str, Any]) -> float:
    """What of a step is there once: of one microbatch and of two, on every rank alone, twice the first less the second."""
    unit = 2 * plan.tp
    length = max(unit, min(longest, max(LEAST_TOKENS, longest // 4)) // unit * unit)
    num_ranks = plan.dp * plan.cp

    def step_s(number: int) -> float:
        alone = plan.changed(
            cp=1, dp=num_ranks, ulysses=1, workload=Workload(num_ranks * number, length), microbatch_size=1
        )
        return predict(alone, cluster, **given).step.value

    return max(0.0, 2 * step_s(1) - step_s(2))
