"""Search: all candidates by the closed form, then the best few dozen as programs on virtual time, ranked by their steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.search.contender import Contenders
from meshwright.planner.search.every_plan import every_plan
from meshwright.planner.search.expectation import Expectation
from meshwright.planner.search.objective import DIGITS, Objective, rank, sort_key
from meshwright.planner.search.plans import Plans, in_full, keep_best, passed_over, safe_first
from meshwright.planner.search.variation.beside_experts import paired
from meshwright.planner.search.variation.layer_plan import KINDS, is_uneven
from meshwright.planner.search.variation.layer_plan import layer_wise as layer_wise_plan
from meshwright.planner.search.variation.parted_plan import halved, recut
from meshwright.planner.search.variation.safe_plan import safe_numbers
from meshwright.planner.search.variation.split_plan import other_splits, split
from meshwright.planner.space.axis import AXES
from meshwright.planner.space.space import Space, space_of
from meshwright.prediction.description import describe
from meshwright.prediction.memory_limit import checked_memory, out_of_memory
from meshwright.prediction.predicted import Predicted, predict
from meshwright.prediction.step_part import is_beside
from meshwright.prediction.step_program import ITERATIONS
from meshwright.schedules.order import Schedule
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.error import OutOfMemoryError, PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import RECOMPUTES, Plan, Recompute
from meshwright.specs.plan.token_part import shares_of
from meshwright.specs.plan.workload import Workload
from meshwright.specs.units import counted, format_bytes

# Candidates that are simulated: the closed form is within a few percent, so the best is among them.
NUM_SIMULATED = 32
RANKING_SHARE = (
    0.5  # of a time limit: when the closed form has ranked so long, what it has found by then is simulated
)
LEAST_SIMULATED = 8  # before what the closed form says of the rest may end the search
# Nothing more is simulated where what is expected of it is behind the best step by more than this: the form's errors
# differ by so much among pipelines that are alike.
BEHIND = 1.02
MOST_COMPUTES = (
    300_000  # of a step on all devices of a pipeline: such a program is made and run in about ten seconds
)
NUM_SAFE = 6  # plans that are simulated beside, where those that are expected to be the fastest may not fit
NUM_LAYER_WISE = 3  # of the best plans, whose stages are varied
# What is varied behind the ranking.
STAGES_THAT_DIFFER, TOKEN_PARTS, VOCABULARY = "stages that differ", "token parts", "split vocabulary"
BESIDE_EXPERTS = "tokens beside experts"
NUM_REASONS = 3  # parts that are named where two plans are compared,
LEAST_REASON = 1e-3  # if they differ by this share of the step
Progress = Callable[[str, float], None]
Floats = NDArray[np.float64]


def search(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    microbatch_sizes: Sequence[int] | None = None,
    max_memory_bytes: int | None = None,
    num_simulated: int | None = None,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    extrapolate: bool = False,
    assumptions: Sequence[str] = (),
    objective: Objective = Objective.TIME,
    layer_wise: bool | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    profile: Profile | None = None,
    iterations: int = ITERATIONS,
    risk: float | None = None,
) -> Plans:
    """The best plans that fit. Deterministic, unless a time limit ends it.

    Where the closed form knows the machine it ranks all candidates, and the best are simulated; elsewhere all are.

    Args:
        fix, forbid, microbatch_sizes: as of `space.space_of`.
        max_memory_bytes: of a device, where less is to be used than it has.
        num_simulated: how many are simulated, at most; None: of those that the closed form ranks its best 32, else all.
        time_limit_s: of the whole search. Half of it is for the ranking by the closed form, after which no further candidates
            are looked at as soon as one fits; no simulation begins after all of it. One plan is always simulated.
        progress: called with a plan in words and the share that is done, 0 to 1.
        extrapolate: accept devices on whose relatives no step was measured.
        assumptions: what was chosen for the user; the result hands it on.
        objective: what is to be least.
        layer_wise: also try, for the best few, stages whose blocks and recompute differ (`layer_plan`); None: where the
            model's blocks differ, or the best plan runs some again.
        schedules: the orders that are tried where all plans are simulated, by name; None: all that are registered.
        profile: of processes of this machine, as of `predict`; `iterations` likewise.
        risk: plans that do not fit with a chance above it stand behind all others (`Predicted.fit_probability`); None: what
            is expected of their memory counts.

    Raises:
        PlanError: as `space_of` and `pricing_of`; a limit that is none.
        OutOfMemoryError: nothing fits; names the nearest misses and what holds the most.
    """
    begun, most = time.perf_counter(), NUM_SIMULATED if num_simulated is None else num_simulated
    _check(cluster, max_memory_bytes, most, time_limit_s)
    if not is_ranked_by_form(cluster):
        if layer_wise:
            raise PlanError(
                f"--layer-wise on {cluster.name}, whose steps have no closed form",
                allowed="GPUs; stages of devices that differ are varied with every plan",
                next="leave it out, or fix layers_per_stage",
            )
        return every_plan(
            model, cluster, workload, fix=fix, forbid=forbid, microbatch_sizes=microbatch_sizes,
            max_memory_bytes=max_memory_bytes, num_simulated=num_simulated, time_limit_s=time_limit_s, progress=progress,
            assumptions=assumptions, objective=objective, schedules=schedules, profile=profile, iterations=iterations,
        )  # fmt: skip
    capacity = min(cluster.memory_bytes, max_memory_bytes or cluster.memory_bytes)
    job: dict[str, Any] = {"fix": fix, "forbid": forbid, "microbatch_sizes": microbatch_sizes}
    decided = {*(fix or {}), *forbid}
    whole, num_long = simulable(
        space_of(model, cluster, workload, **job, capacity_bytes=capacity, is_open=True)
    )
    limit_s = float("inf") if time_limit_s is None else time_limit_s
    ends_s, ranked_s = begun + limit_s, begun + RANKING_SHARE * limit_s
    if progress is not None:
        progress(f"ranking {counted(whole.num_candidates, 'candidate')}", 0.0)
    contenders = Contenders.of(
        whole, capacity, extrapolate=extrapolate, is_all=objective is Objective.MEMORY, ends_s=ranked_s
    )
    trials = _Trials(contenders, capacity, objective, extrapolate, iterations)
    searched = time.perf_counter()
    is_complete = trials.run(most, ends_s, progress) and contenders.is_complete
    if not trials.plans:  # none of the fast ones fits after all
        whole, num_long = simulable(space_of(model, cluster, workload, **job, is_open=True))
        contenders = Contenders.of(whole, capacity, extrapolate=extrapolate, is_all=True, ends_s=ranked_s)
        trials = _Trials(contenders, capacity, objective, extrapolate, iterations)
        is_complete = trials.run(most, ends_s, progress) and contenders.is_complete
    if not trials.plans and "vocabulary" not in decided:  # the ends of a pipeline may be what is too large
        trials.split_vocabulary(ends_s)
    if not trials.plans:
        raise _nothing_fits(contenders.nearest, whole.num_candidates, capacity)
    is_safe = risk is None or objective is Objective.MEMORY or trials.make_safe(risk, ends_s)
    if risk is not None and not is_safe and time.perf_counter() < ends_s:
        # nothing of what is nearly as fast: what needs as much less is looked for as the best may need more
        smaller = int(capacity * trials.least_share())
        asked = Contenders.of(
            whole, smaller, extrapolate=extrapolate, sources=contenders.sources, ends_s=ends_s
        )
        others = _Trials(asked, capacity, objective, extrapolate, iterations)
        others.make_safe(risk, ends_s)
        trials.plans += others.plans
    if risk is not None and objective is not Objective.MEMORY:
        trials.widen(risk, ends_s)
    if is_complete:
        trials.improve(
            _kinds(fix or {}, forbid), layer_wise, _values((fix or {}).get("recompute", RECOMPUTES))
        )
        if "token_parts" not in decided:
            trials.cut(ends_s)
        if "vocabulary" not in decided:
            trials.split_vocabulary(ends_s)
        if "overlap" not in decided:
            trials.pair(risk, ends_s)
    num_slow, gap = trials.bounds()
    num_too_large = whole.num_beyond_memory + contenders.num_too_large
    keep_best(best := sorted(trials.plans, key=lambda each: sort_key(objective, each)))
    if risk is not None:
        best = safe_first(best, capacity, risk)
    ranked = in_full(best, objective, ends_s)
    if risk is not None:
        ranked = safe_first(ranked, capacity, risk)
    told = (*assumptions, *_left_out(whole, decided, num_long))
    return Plans(
        tuple(ranked), told, whole.num_candidates, num_too_large, num_slow, len(ranked), search_s=searched - begun,
        simulation_s=time.perf_counter() - searched, is_complete=is_complete, optimality_gap=gap, varied=trials.varied,
        passed_over=passed_over(ranked, capacity, risk),
    )  # fmt: skip


def simulable(space: Space) -> tuple[Space, int]:
    """The candidates whose steps are short enough to be simulated in seconds, and how many others there are.

    Raises PlanError where there is none.
    """
    passes = 2 + (space.recompute == RECOMPUTES.index("full"))
    num_computes = passes * space.num_microbatches * space.pp * space.num_chunks
    keep = num_computes <= MOST_COMPUTES
    if keep.all():
        return space, 0
    if not keep.any():
        batch = space.workload.global_batch
        most = batch * MOST_COMPUTES // int(num_computes.min())
        raise PlanError(
            f"a batch of {batch:,} sequences has {int(space.num_microbatches.min()):,} microbatches or more in every plan: "
            "such a step is too long to simulate",
            allowed=f"up to about {most:,} sequences on these devices",
            next="plan for fewer: behind the fill of a pipeline every further microbatch takes as long",
        )
    return space.taken(keep), int(space.num_kinds[~keep].sum())


def is_ranked_by_form(cluster: ClusterSpec) -> bool:
    """Does the closed form know its machine: messages beside computes on streams of their own, memory by the estimate?"""
    return cluster.machine.has_streams and cluster.machine.memory_rule == "estimate"


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


def _left_out(space: Space, decided: Set[str], num_long: int) -> tuple[str, ...]:
    """What the space lacks, for people, of what nobody decided."""
    found, size = [], space.model.vocabulary_size
    if space.cluster.num_devices > 1 and space.tp.max() == 1 and size % 2 and "tp" not in decided:
        found.append(f"no tensor parallelism: a vocabulary of {size} does not divide; give the padded one")
    if num_long:
        found.append(
            f"not tried: {counted(num_long, 'candidate')} whose step has more than {MOST_COMPUTES:,} computes"
        )
    if space.left_out:
        found.append(f"not tried, as there are too many candidates: {space.left_out}; --fix makes room")
    return tuple(found)


class _Trials:
    """The candidates that fit, in the closed form's order, and those of them that were simulated."""

    def __init__(
        self, contenders: Contenders, capacity: int, objective: Objective, extrapolate: bool, iterations: int
    ) -> None:
        self.plans: list[Predicted] = []
        self.varied: dict[str, int] = {}
        self._tried: dict[int, float] = {}  # seconds of a step by number; infinite where it does not fit
        self._contenders, self._capacity = contenders, capacity
        self._space, self._form = contenders.space, contenders.form
        self._objective, self._extrapolate, self._iterations = objective, extrapolate, iterations
        step_s, needed_bytes = self._form.step_s, self._form.needed_bytes
        self._order = rank(objective, step_s, needed_bytes)
        # what differs in neither is alike: its devices stand elsewhere, which nobody can tell
        self._keys = np.stack([np.round(step_s / step_s.min(initial=np.inf), DIGITS), np.round(needed_bytes)])

    def run(self, wanted: int, ends_s: float, progress: Progress | None) -> bool:
        """Simulate up to `wanted` that fit, as `_ranked` and then `_near` the fastest; was it not ended early?"""
        is_by_step = self._objective is not Objective.MEMORY
        try:
            for number in itertools.chain(self._ranked(), self._near() if is_by_step else ()):
                if len(self.plans) >= wanted:
                    return True
                if self.plans and time.perf_counter() >= ends_s:
                    return False
                self._try(number, min(1.0, len(self.plans) / min(wanted, len(self._order))), progress)
        except KeyboardInterrupt:
            if not self.plans:
                raise
            return False
        return True

    def _ranked(self) -> Iterator[int]:
        """Numbers in the order of what is expected of them, of those that are alike the first, until the rest is behind."""
        seen: set[tuple[float, float]] = set()
        is_by_step = self._objective is not Objective.MEMORY
        expectation = Expectation(self._space, self._form.step_s, self._order)
        for number in expectation if is_by_step else self._order.tolist():
            key = (float(self._keys[0, number]), float(self._keys[1, number]))
            if key in seen:
                continue
            seen.add(key)
            if is_by_step and self._is_behind(expectation.next_s):
                return
            yield number
            if is_by_step and np.isfinite(self._tried[number]):
                expectation.tell(self._tried[number])

    def _near(self) -> Iterator[int]:
        """What differs from the fastest plan in the size of its microbatch alone, the next smaller and larger, for as long as
        that is faster: the fewer microbatches there are, the more the form is off."""
        size, is_better = self._space.microbatch_size, bool(self.plans)
        while is_better:
            best, best_s = min(self._tried.items(), key=itemgetter(1))
            alike = np.flatnonzero(self._is_alike(best) & (self._form.least_s < best_s))
            alike = alike[np.argsort(size[alike], kind="stable")]
            ends = (alike[size[alike] < size[best]][-1:], alike[size[alike] > size[best]][:1])
            yield from (number for number in np.concatenate(ends).tolist() if number not in self._tried)
            is_better = min(self._tried.values()) < best_s

    def _is_alike(self, number: int) -> NDArray[np.bool_]:
        """Which candidates have what this one has, the size of the microbatch aside?"""
        columns = (getattr(self._space, axis) for axis in AXES if axis != "microbatch_size")
        return np.asarray(np.logical_and.reduce([column == column[number] for column in columns]))

    def _is_behind(self, expected_s: float) -> bool:
        """Is what is expected of the next candidate, and of all behind it, so slow that none is likely to be the best?"""
        if len(self.plans) < LEAST_SIMULATED:
            return False
        return expected_s > BEHIND * min(each.step.value for each in self.plans)

    def _try(self, number: int, share: float, progress: Progress | None) -> Predicted | None:
        plan = self._space.plan(number)
        if progress is not None:
            progress(describe(plan), share)
        found = self._add(plan, float(self._form.step_s[number]))
        self._tried[number] = np.inf if found is None else found.step.value
        return found

    def _add(self, plan: Plan, closed_form_s: float) -> Predicted | None:
        """Simulate a plan that fits."""
        found = predict(
            plan, self._space.cluster, extrapolate=self._extrapolate, closed_form_s=closed_form_s,
            iterations=self._iterations,
        )  # fmt: skip
        if found.rejected(self._capacity) is not None:
            return None
        _ = found.step
        self.plans.append(found)
        keep_best(sorted(self.plans, key=lambda each: each.step.value))
        return found

    def make_safe(self, risk: float, ends_s: float, safe_s: float = np.inf) -> bool:
        """Does a plan fit with this risk? Where the fastest does not, further ones that do are simulated; `safe_s`: seconds
        of the fastest that is known from elsewhere."""
        if self.plans and self._safe_s(risk) <= min(each.step.value for each in self.plans):
            return True
        left, begun = NUM_SAFE, time.perf_counter()
        for number in safe_numbers(self._contenders, self._capacity, risk):
            best_s = min(safe_s, self._safe_s(risk))
            is_over = time.perf_counter() >= max(ends_s, begun)
            if not left or is_over or self._form.step_s[number] > BEHIND * best_s:
                break
            if number not in self._tried:
                self._try(number, 1.0, None)
                left -= 1
        return bool(np.isfinite(self._safe_s(risk)))

    def _safe_s(self, risk: float) -> float:
        """Seconds of the fastest plan that fits with this risk; infinite without one."""
        safe = (each for each in self.plans if each.fit_probability(self._capacity) >= 1.0 - risk)
        return min((each.step.value for each in safe), default=float("inf"))

    def widen(self, risk: float, ends_s: float) -> None:
        """Where the fastest plan that fits with this risk is slower than what the contenders left out may be, as they end
        close behind the fastest of all: look on as far as that plan, and add what fits and is faster."""
        safe_s = self._safe_s(risk)
        if not float(self._contenders.skipped_s.min(initial=np.inf)) < safe_s < np.inf:
            return
        wider = self._contenders.wider(safe_s, ends_s)
        others = _Trials(wider, self._capacity, self._objective, self._extrapolate, self._iterations)
        others.make_safe(risk, ends_s, safe_s)
        known = {each.plan for each in self.plans}
        self.plans += [each for each in others.plans if each.plan not in known]

    def least_share(self) -> float:
        """Of what the plan that needs most so may need at worst, what it is expected to need."""
        return min(
            (each.peak_bytes + each.memory.context_bytes) / each.bound_bytes
            for each in self.plans
            if each.memory is not None
        )

    def improve(self, kinds: Sequence[Recompute], is_wanted: bool | None, allowed: Sequence[str]) -> None:
        """Add plans whose stages differ to the best few, where that is wanted and they are faster; `allowed`: what the
        user lets a plan recompute, as one that is asked to recompute may find that nothing needs it."""
        best = sorted(self.plans, key=lambda each: sort_key(self._objective, each))
        if is_wanted is None:
            is_wanted = is_uneven(self._space.model) or best[0].plan.recompute != "none"
        if not is_wanted or not kinds or self._objective is Objective.MEMORY:
            return
        cluster, known, number = self._space.cluster, {each.plan for each in self.plans}, len(self.plans)
        for each in best[:NUM_LAYER_WISE]:
            plan = layer_wise_plan(each, cluster, self._capacity, kinds=kinds, extrapolate=self._extrapolate)
            if plan is not None and plan not in known and plan.recompute in allowed:
                known.add(plan)
                self._add(plan, each.closed_form_s)
        self.varied[STAGES_THAT_DIFFER] = len(self.plans) - number

    def cut(self, ends_s: float) -> None:
        """Add plans with microbatches in parts, of the candidates that may be the fastest so; of the best other parts too."""
        if self._objective is Objective.MEMORY:
            return
        best_s, number = min(each.step.value for each in self.plans), len(self.plans)
        self._add_until(ends_s, halved(self._contenders, best_s))
        best = min(self.plans[number:], key=lambda each: each.step.value, default=None)
        if best is not None and best.step.value < best_s:
            self._add_until(ends_s, recut(best.plan))
        self.varied[TOKEN_PARTS] = len(self.plans) - number

    def split_vocabulary(self, ends_s: float) -> None:
        """Add plans with a split vocabulary, of the candidates that may be the fastest so; of the best other ways, too."""
        if self._objective is Objective.MEMORY:
            return
        number, best_s = len(self.plans), min((each.step.value for each in self.plans), default=np.inf)
        for plan, closed_form_s in split(self._contenders, best_s, self._capacity):
            self._add_until(ends_s, (plan,), closed_form_s)
        best = min(self.plans[number:], key=lambda each: each.step.value, default=None)
        if best is not None and best.step.value < best_s:
            self._add_until(ends_s, other_splits(best.plan))
        self.varied[VOCABULARY] = len(self.plans) - number

    def pair(self, risk: float | None, ends_s: float) -> None:
        """Add plans whose tokens travel beside another microbatch's computes, of candidates that may be the fastest so."""
        if self._objective is Objective.MEMORY or self._space.ep.max(initial=1) == 1:
            return
        number, best_s = len(self.plans), min(each.step.value for each in self.plans)
        safe_s = best_s if risk is None else self._safe_s(risk)
        slowest_s = safe_s if np.isfinite(safe_s) else best_s
        for plan, closed_form_s in paired(self._contenders, slowest_s, self._capacity, risk):
            self._add_until(ends_s, (plan,), closed_form_s)
        self.varied[BESIDE_EXPERTS] = len(self.plans) - number

    def _add_until(
        self, ends_s: float, plans: Iterable[Plan], closed_form_s: float = float("nan")
    ) -> None:  # of what the form does not know it says nothing
        for plan in plans:
            if time.perf_counter() < ends_s:
                self._add(plan, closed_form_s)

    def bounds(self) -> tuple[int, float | None]:
        """Candidates that are proven slower than the best plan; and how much faster the others may be than it."""
        if self._objective is Objective.MEMORY:
            return 0, None
        best, least = min(each.step.value for each in self.plans), self._form.least_s
        others = np.concatenate([np.delete(least, list(self._tried)), self._contenders.skipped_s])
        gap = max(0.0, 1.0 - float(others.min(initial=best)) / best)
        return int((others > best).sum()), gap


def _kinds(fix: Mapping[str, Any], forbid: Sequence[str]) -> tuple[Recompute, ...]:
    """Kinds of recompute that plans whose stages differ may use; nothing where the stages are decided."""
    is_cut = len(shares_of(fix.get("token_parts", 1))) > 1  # whose blocks are all recomputed, or none
    if is_cut or {"layers", "recompute_blocks"} & set(fix) or "recompute_blocks" in forbid:
        return ()
    wanted = _values(fix.get("recompute", KINDS))
    kinds: tuple[Recompute, ...] = tuple(kind for kind in KINDS if kind in wanted and kind not in forbid)
    return kinds or ("none",)


def _values(fixed: Any) -> tuple[Any, ...]:
    """Of a choice that is fixed: to one value, or to several."""
    return tuple(fixed) if isinstance(fixed, tuple | list) else (fixed,)


def _nothing_fits(nearest: Space, num_candidates: int, capacity: int) -> OutOfMemoryError:
    """The error with the nearest misses, what overflows and by how much."""
    checked = [
        checked_memory(plan, nearest.cluster, capacity)[1] for plan in map(nearest.plan, range(len(nearest)))
    ]
    misses = [missed for missed in checked if missed is not None]
    return out_of_memory(misses, num_candidates, "; fix and forbid less")


def reasons(better: Predicted, worse: Predicted) -> list[tuple[str, float]]:
    """(kind, seconds) that the better plan saves where positive, the largest differences of the busiest devices first.

    Only what adds up to the step: communication beside computes counts as the waiting that it causes.
    """
    kinds = [kind for kind in dict.fromkeys((*better.parts, *worse.parts)) if not is_beside(kind)]
    saved = [(kind, worse.parts.get(kind, 0.0) - better.parts.get(kind, 0.0)) for kind in kinds]
    least = LEAST_REASON * better.step.value
    return sorted((pair for pair in saved if abs(pair[1]) > least), key=lambda pair: -abs(pair[1]))[
        :NUM_REASONS
    ]
