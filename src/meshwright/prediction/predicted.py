"""Predicted: a plan on a cluster with what it will do: the one type for it, made by `predict` for every verb."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from meshwright.costs.measured.calibrated_cluster import calibrated_cluster
from meshwright.costs.pricing import Pricing, pricing_of
from meshwright.costs.step.profile import StepFit
from meshwright.ir.judge import metrics
from meshwright.ir.judge.verify import Verification, verify
from meshwright.ir.program import Program
from meshwright.ir.trace import Trace
from meshwright.prediction.composition import is_in_segments, is_refused, not_composable, sends_inside
from meshwright.prediction.description import describe
from meshwright.prediction.document.document_prices import DocumentPrices
from meshwright.prediction.document.drawn_step import DrawnBatches, DrawnSteps
from meshwright.prediction.memory_estimate import MemoryEstimate, estimate_memory
from meshwright.prediction.memory_limit import Rejection, estimated_rejection, fit_probability, rejection
from meshwright.prediction.step_interval import interval_of_costs, interval_of_parts
from meshwright.prediction.step_part import Hidden, busiest, hidden_exchanges, step_parts
from meshwright.prediction.step_program import (
    ITERATIONS,
    StepProgram,
    grouped_step_program,
    pipeline_times,
    schedule_of,
    step_program,
    step_trace,
)
from meshwright.schedules.order import Schedule
from meshwright.simulator.pricing import Prices
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Prediction
from meshwright.specs.plan.utilisation import StepFlops, Utilisation
from meshwright.specs.row_table import html_table
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.specs.units import format_bytes, format_seconds

# Of a plan, in `Predicted.row`.
ROW_FIELDS = (
    *("tp", "cp", "ep", "etp", "pp", "dp", "schedule", "num_chunks", "microbatch_size"),
    *("recompute", "sharding", "sequence_parallel", "dtype"),
)
Level = Literal["composed", "segments", "stages"]


class Outcome(NamedTuple):
    """What simulating a step gave: its seconds, its parts, the share in which compute streams idle, its exchanges."""

    step: Prediction
    parts: Mapping[str, float]
    bubble: float
    exchanges: Mapping[str, Hidden]

    def scaled(self, factor: float, ends: tuple[float, float] | None = None) -> Outcome:
        """The same where everything takes `factor` times as long; `ends`: of the interval over the step, if it is known
        better."""
        if factor == 1.0 and ends is None:
            return self
        step = self.step.scaled(factor)
        if ends is not None:
            basis = "extrapolated" if step.basis == "never seen" else step.basis
            step = Prediction(step.value, ends[0] * step.value, ends[1] * step.value, basis)
        return Outcome(
            step,
            {kind: factor * seconds for kind, seconds in self.parts.items()},
            self.bubble,
            {name: Hidden(*(factor * seconds for seconds in one)) for name, one in self.exchanges.items()},
        )


@dataclass(frozen=True, eq=False)
class Predicted:
    """A plan with what it will do; every part is worked out when it is first asked for, and then known.

    Attributes:
        plan, cluster, schedule: the decision, where it runs, and the order behind the plan's schedule.
        pricing: what its step is priced with.
        closed_form_s: what the planner's closed form said of the step; NaN where nobody asked it.
        iterations: of the simulation from which the step is taken.
        in_segments: as of `step_program`.
        composed_s: of a step in segments, seconds that the composed prices of its stages say; NaN where nobody asked them.
        factor: by which all its seconds were measured to be longer than they are priced (`of_measured_steps`).
        ends: of its interval over the step, as of runs of one's own; None: as of the fit.
        groups: which ranks share which sequences of the step; None: the plan's dp and cp say it.
    """

    plan: Plan
    cluster: ClusterSpec
    schedule: Schedule
    pricing: Pricing
    closed_form_s: float = float("nan")
    iterations: int = ITERATIONS
    in_segments: bool = False
    composed_s: float = float("nan")
    factor: float = 1.0
    ends: tuple[float, float] | None = None
    groups: GroupedBatch | None = None

    @cached_property
    def made(self) -> StepProgram:
        """The program of a step, wired and on its devices. Raises PlanError and ScheduleError as `lowering.lower`."""
        if self.groups is not None:
            return grouped_step_program(self.plan, self.cluster, self.groups)
        return step_program(self.plan, self.cluster, self.schedule, in_segments=self.in_segments)

    @property
    def program(self) -> Program:
        """What every device is told to do."""
        return self.made.wiring.program

    @cached_property
    def prices(self) -> Prices:
        """What the program's rows cost; of drawn batches in the one whose step is nearest to their mean."""
        return self.made.priced(self.pricing.costs) if self._batches is None else self._batches.nearest

    @cached_property
    def _batches(self) -> DrawnBatches | None:
        """Drawn batches, where documents differ in length; None where all microbatches are alike."""
        work = self.plan.workload
        if self.groups is not None:
            return None
        alike = {min(length, work.sequence_length) for length, _ in work.lengths}
        if not alike or (len(alike) == 1 and work.sequence_length % alike.pop() == 0):
            return None
        prices = DocumentPrices.of(self.made, self.pricing.costs, self.schedule, self.in_segments)
        return DrawnBatches(self.plan, prices, self.iterations)

    @cached_property
    def drawn(self) -> DrawnSteps | None:
        """The steps of drawn batches, where documents differ in length, of what rows take; None where all steps are alike."""
        return None if self._batches is None else self._batches.steps

    @cached_property
    def verified(self) -> Verification:
        """The proof that the program is legal, and its bound of memory. Raises ProgramError as `verify`."""
        return verify(self.made.wiring, host=self.cluster.machine.host)

    @cached_property
    def memory(self) -> MemoryEstimate | None:
        """The estimate of every device of the pipeline; None where the program's own bound is the rule, as of groups."""
        if self.cluster.machine.memory_rule == "bound" or self.groups is not None:
            return None
        return estimate_memory(self.plan, self.cluster, self.schedule)

    @cached_property
    def _iterations(self) -> Trace:
        return step_trace(self.made, self.prices, self.iterations)

    @property
    def drawn_steps_s(self) -> tuple[float, ...]:
        """Seconds of the step of every drawn batch, whose mean is the step; none where all steps are alike."""
        drawn = () if self.drawn is None else self.drawn.seconds
        return tuple(self.factor * (each + self.pricing.step_s) for each in drawn)

    @cached_property
    def outcome(self) -> Outcome:
        """What simulating the step gives."""
        trace, width = self._iterations, self.pricing.width
        shown_s = metrics.period_s(trace)
        period_s = shown_s if self.drawn is None else self.drawn.mean_s
        if width is None:
            step = interval_of_costs(self.made, self.prices, self._iterations)
            step = step if self.drawn is None else step.scaled(period_s / shown_s)
            return Outcome(step, {}, metrics.bubble(trace), {}).scaled(self.factor, self.ends)
        exchanges = hidden_exchanges(trace, busiest(self.program, self.prices)[0])
        added_s = None if self._batches is None else self._batches.added_s
        parts = step_parts(self.made, self.prices, self.pricing, period_s, trace, added_s)
        step = interval_of_parts(self.made, self.pricing, width, period_s, parts)
        return Outcome(step, parts, metrics.bubble(trace), exchanges).scaled(self.factor, self.ends)

    @property
    def step(self) -> Prediction:
        """Seconds of one step in the long run, with interval and basis."""
        return self.outcome.step

    @property
    def parts(self) -> Mapping[str, float]:
        """Seconds of the busiest device by kind of work, as of `step_parts`; empty where computes are priced as a whole."""
        return self.outcome.parts

    @property
    def exchanges(self) -> Mapping[str, Hidden]:
        """Of the busiest device's exchanges that are rows, by name: seconds, and how many of these pass beside its computes;
        empty where computes are priced as a whole."""
        return self.outcome.exchanges

    @property
    def level(self) -> Level:
        """What the step is simulated in: "composed" of its stages' prices, in "segments", or in "stages", where a layer sends
        nothing, or every process runs its own rows."""
        if self.groups is not None:
            return "segments"
        if not self.cluster.machine.has_streams or not (sends_inside(self.plan) or self.plan.has_parts):
            return "stages"
        return "segments" if self.in_segments or is_refused(self.plan) else "composed"

    @cached_property
    def not_composable(self) -> tuple[str, ...]:
        """Why a composed price of the plan leaves out what its rows would say, as of `composition.not_composable`."""
        is_composed = self.groups is None and self.level != "stages"
        return not_composable(self.plan, self.cluster) if is_composed else ()

    @property
    def bubble(self) -> float:
        """Share of an iteration in which compute streams idle, over all devices of the pipeline, as `simulate` has it.

        What is sent inside layers is waited for where it is rows, and part of computes where prices are composed.
        """
        return self.outcome.bubble

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the prediction rests on."""
        said = () if self.drawn is None else (self.drawn.sentence,)
        return (*self.pricing.assumptions, *said)

    @property
    def num_rows(self) -> int:
        """Instructions that were simulated."""
        return self.program.num_rows

    @property
    def tokens_per_s(self) -> float:
        """Of the whole cluster."""
        seconds, groups = self.step.value, self.groups
        num_tokens = self.plan.workload.tokens_per_step if groups is None else float(groups.num_tokens)
        return num_tokens / seconds if seconds > 0 else float("inf")

    @cached_property
    def flops(self) -> StepFlops:
        """Model FLOPs of a step on a device, and its peak, where somebody knows one."""
        found = StepFlops.of(self.plan, self.cluster, getattr(self.pricing.costs, "profile", None))
        if self.groups is None:
            return found
        needed = (length * self.plan.model.train_flops_per_token(length) for length in self.groups.lengths)
        return replace(found, per_device=sum(needed) / self.plan.num_devices)

    @property
    def used(self) -> Utilisation:
        """Model FLOPs a second of one device, and their share of its peak."""
        return self.flops.used(self.step.value)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs a second over the device's peak; None where nobody knows one."""
        return self.used.mfu

    @cached_property
    def peak_bytes(self) -> float:
        """What tensors take on the fullest device: by the estimate, or on the timeline."""
        if self.memory is not None:
            return self.memory.allocated_bytes
        return metrics.peak_bytes(self._iterations)

    @cached_property
    def bound_bytes(self) -> float:
        """The worst of the fullest device: of the estimate with what lies outside the allocator, or of all legal orders."""
        if self.memory is not None:
            return self.memory.upper_bytes + self.memory.context_bytes
        return self.verified.peak_of("device")

    def rejected(self, most_bytes: int | None = None) -> Rejection | None:
        """Why it does not fit its devices, or so many bytes of each; None where it does."""
        if self.memory is None:
            return rejection(self.plan, self.verified, self.made.placement, most_bytes)
        available = min(self.cluster.memory_bytes, most_bytes or self.cluster.memory_bytes)
        return estimated_rejection(self.plan, self.memory, available)

    def fit_probability(self, most_bytes: int | None = None) -> float:
        """How likely it fits its devices, or so many bytes of each: on GPUs by the interval of its memory (`memory_limit`);
        where the bound of all legal orders is the rule, that it is proven or is not."""
        if self.memory is None:
            return float(self.rejected(most_bytes) is None)
        return fit_probability(
            self.memory, min(self.cluster.memory_bytes, most_bytes or self.cluster.memory_bytes)
        )

    def trace(self, iterations: int | None = None, said: Mapping[str, Any] | None = None) -> Trace:
        """So many iterations on virtual time; the metadata carry `step`, `flops`, on GPUs its `parts`, and what is
        `said`.

        The step's overhead lies between the iterations, so that they follow each other at the step's distance; no row shows
        it. On GPUs there are no memory curves: what these hold is the estimate's to say.
        """
        if not iterations or iterations == self.iterations:
            found = self._iterations
        else:
            found = step_trace(self.made, self.prices, iterations)
        step, overhead_s = self.step, self.pricing.step_s
        told: dict[str, Any] = {"plan": self.description, "assumptions": list(self.assumptions)}
        told = {**found.metadata, **(told if said is None else said)}
        told["flops"] = self.flops.to_dict()
        told["step"] = {"value": step.value, "low": step.low, "high": step.high, "basis": step.basis}
        if self.drawn is not None:
            told["drawn_steps_s"] = list(self.drawn_steps_s)
        if self.pricing.width is None:
            return replace(found, metadata=told)
        told["step"]["overhead"], told["parts"] = self.factor * overhead_s, dict(self.parts)
        later = overhead_s * np.arange(found.num_iterations)[:, None]
        posted, start, end = (
            self.factor * (time + later) for time in (found.posted_s, found.start_s, found.end_s)
        )
        return replace(found, posted_s=posted, start_s=start, end_s=end, metadata=told)

    def refined(self) -> Predicted:
        """The plan simulated in segments, where its exchanges inside layers are all rows; else this prediction itself."""
        if self.level != "composed" or not is_in_segments(self.plan):
            return self
        return replace(self, in_segments=True, composed_s=self.step.value)

    def of_measured_steps(
        self, factor: float, said: str, ends: tuple[float, float] | None = None
    ) -> Predicted:
        """The same plan where steps of such devices were measured to take `factor` times as long as predicted, with an
        interval of these ends over the step; `said` is what that rests on, for people. Nothing is simulated again."""
        pricing = replace(self.pricing, assumptions=(*self.pricing.assumptions, said))
        found = replace(
            self, pricing=pricing, factor=factor * self.factor, closed_form_s=factor * self.closed_form_s,
            composed_s=factor * self.composed_s, ends=ends or self.ends,
        )  # fmt: skip
        known = {name: value for name, value in vars(self).items() if name not in vars(found)}
        if "outcome" in known:
            known["outcome"] = self.outcome.scaled(factor, ends)
        vars(found).update(known)
        return found

    def forget(self) -> None:
        """Let go of program, prices and timeline, whose results stay: of many plans few are asked for again."""
        known = vars(self)
        if "outcome" in known:
            _ = self.peak_bytes, self.bound_bytes, self.drawn
        for heavy in ("made", "prices", "verified", "_iterations", "_batches"):
            known.pop(heavy, None)

    @property
    def description(self) -> str:
        """The plan in a few words."""
        return describe(self.plan)

    @property
    def row(self) -> dict[str, Any]:
        """The decision and what it will do as plain values in SI units, one column each."""
        chosen = {name: getattr(self.plan, name) for name in ROW_FIELDS}
        step = self.step
        return {
            "plan": self.description, **chosen, "step_s": step.value, "step_low_s": step.low, "step_high_s": step.high,
            "basis": step.basis, "tokens_per_s": self.tokens_per_s, "mfu": self.mfu, "bubble": self.bubble,
            "peak_bytes": self.peak_bytes, "worst_bytes": self.bound_bytes, "fit_probability": self.fit_probability(),
        }  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as TOML. Raises PlanError where the file cannot be written."""
        self.plan.save(path)

    def export(self, target: str, path: str | os.PathLike[str] | None = None, **given: Any) -> str:
        """The plan in another framework's words, as `Plan.export`."""
        return self.plan.export(target, path, **given)

    def __str__(self) -> str:
        low, high = format_seconds(self.step.low), format_seconds(self.step.high)
        return (
            f"{self.description}: step {format_seconds(self.step.value)} ({low} to {high}, {self.step.basis}), "
            f"{self.tokens_per_s:,.0f} tokens/s, bubble {self.bubble:.1%}, peak {format_bytes(self.peak_bytes)}"
        )

    def __repr__(self) -> str:
        return f"<Predicted {self}>"

    def _repr_html_(self) -> str:
        name = f"{self.plan.model.name} on {self.plan.cluster}"
        return html_table([{name: key, "": value} for key, value in self.row.items()])


def predict(
    plan: Plan,
    cluster: ClusterSpec,
    *,
    schedule: Schedule | None = None,
    pricing: Pricing | None = None,
    profile: Profile | None = None,
    left_out: str = "",
    fit: StepFit | None = None,
    extrapolate: bool = False,
    closed_form_s: float = float("nan"),
    iterations: int = ITERATIONS,
    in_segments: bool = False,
    groups: GroupedBatch | None = None,
) -> Predicted:
    """What a plan will do on a cluster. Nothing is lowered before it is asked for, but for a schedule whose order depends on
    where its stages stand.

    Args:
        schedule: instead of the registered one of the plan's name.
        pricing: instead of the one that the other arguments choose, as of `pricing_of`.
        profile: of processes of this machine; their cluster is then as it was measured. None: the user's own.
        closed_form_s, iterations, in_segments, groups: as of `Predicted`.

    Raises:
        PlanError: GPUs or a format that were never seen, and `extrapolate` is off; a schedule that nobody knows.
    """
    chosen, plan = schedule or schedule_of(plan), plan.placed(cluster)
    if pricing is None:
        cluster = calibrated_cluster(cluster, profile)
        pricing = pricing_of(
            plan, cluster, profile=profile, left_out=left_out, fit=fit, extrapolate=extrapolate
        )
    if chosen.takes_times:
        chosen = chosen.timed(pipeline_times(plan, cluster, pricing))
    return Predicted(plan, cluster, chosen, pricing, closed_form_s, iterations, in_segments, groups=groups)
