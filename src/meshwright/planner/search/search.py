"""Search: all candidates by the closed form, then the best few dozen as programs on virtual time, ranked by their steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.table import Kind
from meshwright.planner.form.closed_form import ClosedForm
from meshwright.planner.search.fitting import Fitting
from meshwright.planner.search.layer_plan import is_uneven
from meshwright.planner.search.layer_plan import layer_wise as layer_wise_plan
from meshwright.planner.search.objective import DIGITS, Objective, rank, sort_key
from meshwright.planner.search.ranked import Ranked
from meshwright.planner.space.axis import RECOMPUTES
from meshwright.planner.space.space import Space, space_of
from meshwright.prediction.description import describe, sentence
from meshwright.prediction.memory_estimate import MemoryEstimate
from meshwright.prediction.memory_limit import NUM_NEAREST, Rejection, checked_memory, out_of_memory
from meshwright.prediction.step_prediction import StepProgram, estimate_of, period_s, step_program
from meshwright.prediction.step_pricing import StepPricing, pricing_of
from meshwright.prediction.step_trait import BESIDE
from meshwright.simulator.pricing import Prices
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import OutOfMemoryError, PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan, Recompute
from meshwright.specs.plan.prediction import Prediction
from meshwright.specs.plan.workload import Workload
from meshwright.specs.units import format_bytes

# Candidates that are simulated: the closed form is within a few percent, so the best is among them.
NUM_SIMULATED = 32
LEAST_SIMULATED = 8  # before what the closed form says of the rest may end the search
# A candidate whose closed form is behind the best simulated step by more than this, and by three times as much as the form
# was too slow for any that was simulated, is not simulated, nor are those behind it.
BEHIND, TIMES_TOO_SLOW = 1.05, 3.0
NUM_LAYER_WISE = 3  # of the best plans, whose stages are varied
NUM_SHOWN = 10  # plans that a result prints
NUM_REASONS = 3  # parts that are named where two plans are compared,
LEAST_REASON = 1e-3  # if they differ by this share of the step
Progress = Callable[[str, float], None]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """A plan that fits, with what its step is predicted to do.

    Attributes:
        plan: the decision.
        step: seconds of one step.
        parts: seconds of the busiest device by kind of work, as of `StepEstimate`.
        memory: the estimate of every device of the pipeline.
        bubble: share of the step in which compute streams idle, over all devices of the pipeline.
        mfu: model FLOPs a second over the devices' peak in the format of the plan; 0 where that is not known.
        closed_form_s: what the closed form said of the step.
        assumptions: what the prediction rests on.
    """

    plan: Plan
    step: Prediction
    parts: Mapping[str, float]
    memory: MemoryEstimate
    bubble: float
    mfu: float
    closed_form_s: float
    assumptions: tuple[str, ...]

    @property
    def tokens_per_s(self) -> float:
        """Of the whole cluster."""
        return self.plan.workload.tokens_per_step / self.step.value

    @property
    def peak_bytes(self) -> float:
        """What tensors take on the fullest device."""
        return self.memory.allocated_bytes

    @property
    def bound_bytes(self) -> float:
        """The worst case of the fullest device, with what lies outside the allocator."""
        return self.memory.upper_bytes + self.memory.context_bytes

    @property
    def description(self) -> str:
        """The plan in a few words."""
        return describe(self.plan)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as TOML. Raises PlanError where the file cannot be written."""
        self.plan.save(path)

    def export(self, target: str, path: str | os.PathLike[str] | None = None, **given: Any) -> str:
        """The plan in another framework's words, as `Plan.export`."""
        return self.plan.export(target, path, **given)

    def __str__(self) -> str:
        return sentence(self)

    def __repr__(self) -> str:
        return f"<PlannedStep {self}>"


@dataclass(frozen=True, eq=False)
class SearchResult(Ranked[PlannedStep]):
    """Simulated plans, the fastest first (equally fast ones: the smaller peak first), and how they were found.

    Attributes:
        num_evaluated: candidates that may be the best, ranked by the closed form.
        num_excluded_by_bound: candidates that are proven not to be: their memory estimate exceeds the devices', or what
            their busiest device computes alone takes longer than the best plan's step; `num_too_large` for memory.
        optimality_gap: how much shorter than the best plan's step any candidate's may be, as a share of it: none of the
            computes' sums of the candidates that were not simulated leaves more. None where steps are not what is ranked.
        search_s: wall seconds of the closed form, its tables and the space; `simulation_s` of what came behind.
        is_complete: False where a time limit or Ctrl-C ended the simulations early.
    """

    plans: tuple[PlannedStep, ...]
    assumptions: tuple[str, ...]
    num_evaluated: int
    num_excluded_by_bound: int
    search_s: float
    simulation_s: float
    is_complete: bool = True
    optimality_gap: float | None = None
    num_too_large: int = 0

    @property
    def num_candidates(self) -> int:
        """Of the whole space."""
        return self.num_evaluated + self.num_excluded_by_bound

    def __repr__(self) -> str:
        lines = [f"{place:>3}  {found}" for place, found in enumerate(self.plans[:NUM_SHOWN], 1)]
        lines += [f"     and {len(self) - NUM_SHOWN} more"] if len(self) > NUM_SHOWN else []
        lines.append(
            f"     {self.num_candidates} candidates, {self.num_excluded_by_bound} excluded by a bound"
        )
        lines += [f"     assumed: {line}" for line in self.assumptions]
        return "\n".join(lines)


def search(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    microbatch_sizes: Sequence[int] | None = None,
    max_memory_bytes: int | None = None,
    num_simulated: int = NUM_SIMULATED,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    extrapolate: bool = False,
    assumptions: Sequence[str] = (),
    objective: Objective = Objective.TIME,
    layer_wise: bool | None = None,
) -> SearchResult:
    """The fastest plans that fit on GPUs. Deterministic, unless a time limit ends it.

    Args:
        fix, forbid, microbatch_sizes: as of `space.space_of`.
        max_memory_bytes: of a device, where less is to be used than it has.
        num_simulated: how many of the closed form's best are simulated, at most.
        time_limit_s: no further simulation begins after so many seconds; one plan is always simulated.
        progress: called with a plan in words and the share that is done, 0 to 1.
        extrapolate: accept devices on whose relatives no step was measured.
        assumptions: what was chosen for the user; the result hands it on.
        objective: what is to be least.
        layer_wise: also try, for the best few, stages whose blocks and recompute differ (`layer_plan`); None: where the
            model's blocks differ, or the best plan runs some again.

    Raises:
        PlanError: as `space_of` and `pricing_of`; a limit that is none.
        OutOfMemoryError: nothing fits; names the nearest misses and what holds the most.
    """
    begun = time.perf_counter()
    _check(cluster, max_memory_bytes, num_simulated, time_limit_s)
    capacity = min(cluster.memory_bytes, max_memory_bytes or cluster.memory_bytes)
    whole = space_of(model, cluster, workload, fix=fix, forbid=forbid, microbatch_sizes=microbatch_sizes)
    fitting = Fitting.of(whole, capacity)
    needed, fits = fitting.memory.needed_bytes, fitting.numbers
    if not len(fits):
        raise _nothing_fits(whole, np.argsort(needed, kind="stable")[: 2 * NUM_NEAREST], capacity)
    space, form = fitting.priced(extrapolate=extrapolate)
    trials = _Trials(space, form, needed[fits], capacity, objective, extrapolate)
    searched = time.perf_counter()
    ends_s = float("inf") if time_limit_s is None else begun + time_limit_s
    is_complete = trials.run(num_simulated, ends_s, progress)
    if not trials.plans:
        raise _nothing_fits(space, np.argsort(needed[fits], kind="stable")[: 2 * NUM_NEAREST], capacity)
    if is_complete:
        trials.improve(
            _kinds(fix or {}, forbid), layer_wise, _values((fix or {}).get("recompute", RECOMPUTES))
        )
    num_slow, gap = trials.bounds()
    num_too_large = whole.num_candidates - len(fits)
    ranked = sorted(trials.plans, key=lambda each: sort_key(objective, each))
    told = (*assumptions, *_left_out(whole, {*(fix or {}), *forbid}))
    return SearchResult(
        tuple(ranked), told, len(fits) - num_slow, num_too_large + num_slow,
        searched - begun, time.perf_counter() - searched, is_complete, gap, num_too_large,
    )  # fmt: skip


def _check(cluster: ClusterSpec, limit: int | None, num_simulated: int, time_limit_s: float | None) -> None:
    if limit is not None and not isinstance(limit, int | float):
        raise PlanError(f"max_memory_bytes is {limit!r}", allowed="a number of bytes, such as 70e9")
    if limit is not None and not 0 < limit <= cluster.memory_bytes:
        raise PlanError(
            f"a limit of {format_bytes(limit)} for devices that have {format_bytes(cluster.memory_bytes)}",
            allowed=f"up to {format_bytes(cluster.memory_bytes)}",
        )
    if num_simulated < 1 or (time_limit_s is not None and not time_limit_s > 0):
        raise PlanError(
            f"{num_simulated} plans to simulate in {time_limit_s} s", allowed="1 or more, in a time above 0"
        )


def _left_out(space: Space, decided: Set[str]) -> tuple[str, ...]:
    """What the space lacks, for people, of what nobody decided."""
    found, size = [], space.model.vocabulary_size
    if space.cluster.num_devices > 1 and space.tp.max() == 1 and size % 2 and "tp" not in decided:
        found.append(f"no tensor parallelism: a vocabulary of {size} does not divide; give the padded one")
    if space.left_out:
        found.append(f"not tried, as there are too many candidates: {space.left_out}; --fix makes room")
    return tuple(found)


class _Trials:
    """The candidates that fit, in the closed form's order, and those of them that were simulated."""

    def __init__(
        self, space: Space, form: ClosedForm, needed_bytes: Floats, capacity: int, objective: Objective, extrapolate: bool
    ) -> None:  # fmt: skip
        self.plans: list[PlannedStep] = []
        self._tried: list[int] = []
        self._space, self._form, self._capacity = space, form, capacity
        self._objective, self._extrapolate = objective, extrapolate
        self._order = rank(objective, form.step_s, needed_bytes)
        # what differs in neither is alike: its devices stand elsewhere, which nobody can tell
        self._keys = np.stack([np.round(form.step_s / form.step_s.min(), DIGITS), np.round(needed_bytes)])

    def run(self, wanted: int, ends_s: float, progress: Progress | None) -> bool:
        """Simulate up to `wanted` that fit, of those that are alike the first; was it not ended early?"""
        seen: set[tuple[float, float]] = set()
        try:
            for number in self._order.tolist():
                key = (float(self._keys[0, number]), float(self._keys[1, number]))
                if key in seen:
                    continue
                seen.add(key)
                if len(self.plans) >= wanted or self._is_behind(number):
                    return True
                if self.plans and time.perf_counter() >= ends_s:
                    return False
                self._try(number, len(self.plans) / min(wanted, len(self._order)), progress)
        except KeyboardInterrupt:
            if not self.plans:
                raise
            return False
        return True

    def _is_behind(self, number: int) -> bool:
        """Is this candidate, and all behind it, so slow that none is likely to be the best?"""
        if self._objective is Objective.MEMORY or len(self.plans) < LEAST_SIMULATED:
            return False
        too_slow = max(each.closed_form_s / each.step.value - 1.0 for each in self.plans)
        margin = max(BEHIND, 1.0 + TIMES_TOO_SLOW * too_slow)
        return bool(self._form.step_s[number] > margin * min(each.step.value for each in self.plans))

    def _try(self, number: int, share: float, progress: Progress | None) -> None:
        plan, cluster = self._space.plan(number), self._space.cluster
        if progress is not None:
            progress(describe(plan), share)
        memory, missed = checked_memory(plan, cluster, self._capacity)
        self._tried.append(number)
        if missed is None:
            seconds = float(self._form.step_s[number])
            self.plans.append(simulated(plan, cluster, memory, seconds, self._extrapolate))

    def improve(self, kinds: Sequence[Recompute], is_wanted: bool | None, allowed: Sequence[str]) -> None:
        """Add plans whose stages differ to the best few, where that is wanted and they are faster; `allowed`: what the
        user lets a plan recompute, as one that is asked to recompute may find that nothing needs it."""
        best = sorted(self.plans, key=lambda each: sort_key(self._objective, each))
        if is_wanted is None:
            is_wanted = is_uneven(self._space.model) or best[0].plan.recompute != "none"
        if not is_wanted or not kinds or self._objective is Objective.MEMORY:
            return
        cluster, known = self._space.cluster, {each.plan for each in self.plans}
        for each in best[:NUM_LAYER_WISE]:
            plan = layer_wise_plan(each, cluster, self._capacity, kinds=kinds, extrapolate=self._extrapolate)
            if plan is not None and plan not in known and plan.recompute in allowed:
                known.add(plan)
                memory, _ = checked_memory(plan, cluster, self._capacity)
                self.plans.append(simulated(plan, cluster, memory, each.closed_form_s, self._extrapolate))

    def bounds(self) -> tuple[int, float | None]:
        """Candidates that are proven slower than the best plan; and how much faster the others may be than it."""
        if self._objective is Objective.MEMORY:
            return 0, None
        best, least = min(each.step.value for each in self.plans), self._form.least_s
        others = np.delete(least, self._tried)
        gap = max(0.0, 1.0 - float(others.min(initial=best)) / best)
        return int((others > best).sum()), gap


def _kinds(fix: Mapping[str, Any], forbid: Sequence[str]) -> tuple[Recompute, ...]:
    """Kinds of recompute that plans whose stages differ may use; nothing where the stages are decided."""
    if {"layers", "recompute_blocks"} & set(fix) or "recompute_blocks" in forbid:
        return ()
    wanted = _values(fix.get("recompute", ("full", "selective")))
    kinds: tuple[Recompute, ...] = tuple(
        kind for kind in ("full", "selective") if kind in wanted and kind not in forbid
    )
    return kinds or ("none",)


def _values(fixed: Any) -> tuple[Any, ...]:
    """Of a choice that is fixed: to one value, or to several."""
    return tuple(fixed) if isinstance(fixed, tuple | list) else (fixed,)


def simulated(
    plan: Plan, cluster: ClusterSpec, memory: MemoryEstimate, closed_form_s: float, extrapolate: bool = False
) -> PlannedStep:
    """The plan's step on virtual time, the very one of `predict_step`."""
    pricing: StepPricing = pricing_of(plan, cluster, extrapolate=extrapolate)
    made = step_program(plan, cluster)
    prices = made.priced(pricing.costs)
    estimate = estimate_of(made, prices, pricing, period_s(made.wiring, prices))
    seconds, flops = estimate.step.value, plan.model.train_flops_per_token(plan.workload.sequence_length)
    peak = cluster.devices[0].flops_per_s.get(plan.dtype, 0.0) * plan.num_devices
    mfu = flops * plan.workload.tokens_per_step / (seconds * peak) if peak else 0.0
    bubble = max(0.0, 1.0 - _busy_s(made, prices) / seconds)
    return PlannedStep(
        plan, estimate.step, estimate.parts, memory, bubble, mfu, closed_form_s, pricing.assumptions
    )


def _busy_s(made: StepProgram, prices: Prices) -> float:
    """Seconds that a device computes in a step, in the mean over the devices of the pipeline."""
    program = made.wiring.program
    seconds = prices.seconds[prices.cost_of_row]
    return float(seconds[program.kinds == Kind.COMPUTE].sum()) / program.num_lists


def _nothing_fits(space: Space, nearest: Any, capacity: int) -> OutOfMemoryError:
    """The error with the nearest misses, what overflows and by how much."""
    misses: list[Rejection] = []
    for number in nearest.tolist():
        plan = space.plan(number)
        _, missed = checked_memory(plan, space.cluster, capacity)
        misses += [missed] if missed is not None else []
    return out_of_memory(misses, space.num_candidates, "; fix and forbid less")


def reasons(better: PlannedStep, worse: PlannedStep) -> list[tuple[str, float]]:
    """(kind, seconds) that the better plan saves where positive, the largest differences of the busiest devices first.

    Only what adds up to the step: communication beside computes counts as the waiting that it causes.
    """
    kinds = [kind for kind in dict.fromkeys((*better.parts, *worse.parts)) if kind not in BESIDE]
    saved = [(kind, worse.parts.get(kind, 0.0) - better.parts.get(kind, 0.0)) for kind in kinds]
    least = LEAST_REASON * better.step.value
    return sorted((pair for pair in saved if abs(pair[1]) > least), key=lambda pair: -abs(pair[1]))[
        :NUM_REASONS
    ]
