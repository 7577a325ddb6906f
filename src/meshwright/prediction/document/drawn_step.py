"""DrawnSteps: the step of a distribution of lengths, as the mean over drawn batches of documents packed into rows.

Sequences of a batch are dealt out to replicas and microbatches as a training does. Replicas that meet only where a step ends
wait there for the slowest; those that divide parameters, gradients or experts meet in every microbatch, and then each takes
as long as its slowest. (Between the two lies what a program in which they are apart for longer would take.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.judge import metrics
from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.prediction.document.document_prices import DocumentPrices
from meshwright.prediction.step_program import step_trace
from meshwright.simulator.pricing import Prices
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.sequence.drawn_rows import drawn_rows
from meshwright.stage.mesh import context_axes, data_axes, expert_axes

Floats = NDArray[np.float64]

NUM_DRAWN, LEAST_DRAWN = 16, 4  # batches
MOST_DOCUMENTS = 4_000_000  # that are drawn for one plan; of larger batches there are fewer


@dataclass(frozen=True)
class DrawnSteps:
    """Seconds of the step of every drawn batch."""

    seconds: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """The step of the distribution."""
        return math.fsum(self.seconds) / len(self.seconds)

    @property
    def error_s(self) -> float:
        """Standard error of the mean."""
        return float(np.std(self.seconds, ddof=1)) / math.sqrt(len(self.seconds))

    @property
    def nearest(self) -> int:
        """The batch whose step is nearest to the mean."""
        return int(np.argmin(np.abs(np.array(self.seconds) - self.mean_s)))

    @property
    def words(self) -> str:
        """How many there are and how well their mean is known."""
        return f"{len(self.seconds)} of them with a standard error of {self.error_s / self.mean_s:.1%}"

    @property
    def sentence(self) -> str:
        """What the step is, for people."""
        return (
            f"the step is the mean of drawn batches of documents packed into sequences, {self.words}: attention stays within "
            "documents, ranks wait for the slowest; cp devices are taken to share every document evenly"
        )


@dataclass(frozen=True, eq=False)
class DrawnBatches:
    """Drawn batches of a plan's workload, priced and replayed one by one."""

    plan: Plan
    prices: DocumentPrices
    iterations: int

    def __post_init__(self) -> None:
        if self.plan.model.num_encoder_layers:
            raise PlanError(
                "an encoder-decoder on documents of different lengths",
                allowed="a decoder, whose attention stays within documents",
                next="leave --lengths out",
            )

    @cached_property
    def _shares(self) -> Floats:
        """[draws, replicas, microbatches, K]."""
        plan, work = self.plan, self.plan.workload
        documents = max(1.0, work.tokens_per_step / min(work.mean_length, work.sequence_length))
        number = max(LEAST_DRAWN, min(NUM_DRAWN, int(MOST_DOCUMENTS / documents)))
        rows = self.prices.shares(
            drawn_rows(work.lengths, work.sequence_length, number * work.global_batch), work.sequence_length
        )
        size = plan.microbatch_size
        shape = (number, plan.dp, plan.num_microbatches, size, rows.shape[-1])
        return np.asarray(rows.reshape(shape).mean(axis=3))

    @cached_property
    def steps(self) -> DrawnSteps:
        """The step of every batch: of replicas that meet at its end only that with the most work is replayed."""
        return DrawnSteps(tuple(self._period_s(number) for number in range(len(self._shares))))

    @cached_property
    def row_s(self) -> Floats:
        """Seconds of every row in the batch whose step is nearest to the mean."""
        return self._row_s(self.steps.nearest)

    @property
    def added_s(self) -> Floats:
        """What attention of every row takes longer in that batch than among documents all alike, `DocumentPrices.base`."""
        base = self.prices.base
        return self.row_s - base.seconds[base.cost_of_row]

    @cached_property
    def nearest(self) -> Prices:
        """The prices of that batch."""
        return self.prices.prices(self.row_s)

    def _period_s(self, number: int) -> float:
        trace = step_trace(self.prices.made, self.prices.prices(self._row_s(number)), self.iterations)
        return metrics.period_s(trace)

    def _row_s(self, number: int) -> Floats:
        """Seconds of every row in a batch."""
        shares, program = self._shares[number], self.prices.made.wiring.program
        replicas = replica_of_list(program, self.plan)
        if replicas is not None:
            return self.prices.seconds(shares[replicas])
        candidates = [self.prices.seconds(own[None]) for own in shares]
        if meets_in_microbatches(self.plan):
            slowest = np.max(candidates, axis=0)
            return np.asarray(slowest)
        return max(candidates, key=lambda row_s: _busiest_s(program, row_s))


def replica_of_list(program: Program, plan: Plan) -> NDArray[np.int64] | None:
    """Of every list which replica of the data it is of; None where replicas have one list together."""
    axes = [name for name in data_axes(plan) if name not in context_axes(plan)]
    places = [program.coordinates(each) for each in range(program.num_lists)]
    if not axes or not all(name in places[0] for name in axes):
        return None if plan.dp > 1 else np.zeros(program.num_lists, np.int64)
    found = np.zeros(program.num_lists, np.int64)
    for name in axes:
        found = found * program.axis(name).size + np.array([place[name] for place in places])
    return found


def meets_in_microbatches(plan: Plan) -> bool:
    """Do replicas exchange something within every microbatch: parameters, gradients, or tokens for experts?"""
    is_routed = plan.ep > 1 and any(name in data_axes(plan) for name in expert_axes(plan))
    return plan.shared.divides_values or plan.shared.divides_gradients or is_routed


def _busiest_s(program: Program, row_s: Floats) -> float:
    computes = program.kinds == Kind.COMPUTE
    busy = np.bincount(program.list_of_row[computes], weights=row_s[computes], minlength=program.num_lists)
    return float(busy.max())
