"""`plan_like`: what is run today, what would be faster, and the change between them in the words of that program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from meshwright import catalog
from meshwright.api.exchange.exporting import export_plan
from meshwright.api.plans.measured_steps import MeasuredSteps
from meshwright.api.plans.patched_job import patched_job
from meshwright.api.plans.request import RISK, capacity_of
from meshwright.api.plans.todays_choices import decided, obeys, sayable_choices
from meshwright.api.plans.todays_plan import Todays, todays_plan
from meshwright.interop.exported import Exported, ExportError, Refusal, canonical, plan_digest
from meshwright.interop.plan_difference import OptionChange, difference, exported_options, plan_options
from meshwright.interop.torchtitan.option import RENAMED
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.error import MeshwrightError, OutOfMemoryError, PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan

if TYPE_CHECKING:
    from meshwright.planner.search.plans import Plans
    from meshwright.prediction.predicted import Predicted

PathLike = str | os.PathLike[str]
Progress = Callable[[str, float], None]
NUM_SIMULATED = 32  # plans of all regions together,
LEAST_SIMULATED = 4  # of one region at least,
BEYOND_SHARE = 0.25  # of them where there are no limits: is there a faster plan that cannot be said


@dataclass(frozen=True, eq=False)
class PlansLike(Sequence["Predicted"]):
    """Plans for the job that a configuration runs today, the best first; all of them in that program's words.

    Attributes:
        today: today's plan, with what its step is predicted to do.
        misfit: why today's plan does not fit in memory; empty where it does.
        found: the search, whose plans the target can say.
        best: the first of them, or today's where that is as fast and nothing that is fixed or forbidden speaks against it.
        changes: from today's file to the best plan, in the target's words.
        exported: the best plan in the target's words; None for a plan of our own, or where nothing can be said.
        patched: today's file with the changes in it and every other byte as it was; empty where it cannot be had, and
        unpatched: why.
        refusals: where nothing can be said: what the target has no words for in the best plan.
        faster: a plan that is faster than the best and that the target cannot say; None where there is none.
        faster_refusals: why it cannot.
        num_simulated: plans that were simulated, those included that the target cannot say.
        unknown: options of the file that were not understood; today's prediction is without them.
        assumptions: what the file left open, and what was decided from it.
    """

    today: Predicted
    misfit: str
    found: Plans
    best: Predicted
    changes: tuple[OptionChange, ...]
    exported: Exported | None
    patched: str
    unpatched: str
    refusals: tuple[Refusal, ...]
    faster: Predicted | None
    faster_refusals: tuple[Refusal, ...]
    num_simulated: int
    unknown: tuple[str, ...]
    assumptions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.found)

    @overload
    def __getitem__(self, index: int) -> Predicted: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Predicted, ...]: ...
    def __getitem__(self, index: int | slice) -> Predicted | tuple[Predicted, ...]:
        return self.found[index]

    def __repr__(self) -> str:
        lines = [
            f"  today  {self.today}",
            *([f"         {self.misfit}"] if self.misfit else []),
            repr(self.found),
        ]
        return "\n".join([*lines, *(f"     {change}" for change in self.changes)])


def plan_like(
    like: Plan | PathLike,
    format: str = "",
    *,
    model: str | ModelSpec | Mapping[str, Any] | PathLike | None = None,
    cluster: str | ClusterSpec | None = None,
    global_batch: int | None = None,
    seq: int | None = None,
    vocab: int | None = None,
    variables: Mapping[str, str] | None = None,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    num_simulated: int = NUM_SIMULATED,
    progress: Progress | None = None,
    extrapolate: bool = False,
    profile: Profile | Path | None = None,
    risk: float | None = None,
    **options: Any,
) -> PlansLike:
    """Today's plan beside the fastest that its program can say, and what changes.

    Args:
        like: a plan, or a file of `format`.
        format: "megatron", "torchtitan" or "deepspeed"; empty: a plan of our own (.toml).
        model, cluster, global_batch, seq: what the file does not say. No file says which devices there are.
        vocab: tokens of the tokenizer, where only its own files say it.
        variables: values of a script's own variables that are set outside it.
        fix, forbid: as of `plan`. Number formats, attention and software class are today's.
        num_simulated: how many plans are simulated, over all parts of the space that the target can say.
        progress: called with a plan in words and the share that is done, 0 to 1.
        extrapolate: accept devices that were never measured.
        profile: of `calibrate --from-log`: all times are corrected by what those runs took.
        risk: as of `plan`: plans that do not fit with a larger chance stand behind the others.
        options: of `planner.search.search`: microbatch_sizes, max_memory_bytes; time_limit_s is of all searches together.

    Raises PlanError where a fact is missing or contradicts the file, OutOfMemoryError where no plan fits.
    """
    now = todays_plan(like, format, model, cluster, global_batch, seq, variables, vocab)
    steps = MeasuredSteps(profile, now.cluster)
    today, misfit = _predicted(now.plan, now.cluster, extrapolate, options.get("max_memory_bytes"))
    today = steps.of_plan(today)
    wanted, assumed = decided(now, dict(fix or {}))
    risk, capacity = RISK if risk is None else risk, capacity_of(now.cluster, options.get("max_memory_bytes"))
    whole = {"forbid": tuple(forbid), "extrapolate": extrapolate, "risk": risk, **options}
    results = [steps.of_plans(each) for each in _searched(now, wanted, whole, num_simulated, progress)]
    sayable, others = _sorted_out(results, now, capacity, risk)
    found = _joined(results, sayable or [each for each, _ in others], capacity, risk)
    is_allowed = not misfit and obeys(now.plan, fix or {}, forbid)
    is_best = is_allowed and today.step.value <= found[0].step.value
    best = today if is_best else found[0]
    kept = best.plan.changed(passes=now.plan.passes)  # corrections of routers are the training's own
    exported, refusals = _export(kept, now)
    changes = _changes(now, kept, exported)
    patched, unpatched = patched_job(now, kept, changes, exported)
    beyond = [pair for pair in others if sayable and pair[0].step.value < best.step.value]
    faster, why = beyond[0] if beyond else (None, ())
    return PlansLike(
        today, misfit, found, best, changes, exported, patched, unpatched, refusals, faster, why,
        sum(map(len, results)), now.unknown, (*now.assumptions, *assumed),
    )  # fmt: skip


def _predicted(
    plan: Plan, cluster: ClusterSpec, extrapolate: bool, limit_bytes: int | None
) -> tuple[Predicted, str]:
    """A plan with its step, and why it does not fit the devices, or less memory of them; empty where it does."""
    from meshwright.prediction.predicted import predict

    if cluster.machine.is_here:
        raise PlanError(
            f"{cluster.name} has no GPUs",
            allowed="a cluster of GPUs: on processes every plan is simulated, today's among them",
            next="leave --like out",
        )
    found = predict(plan, cluster, schedule=catalog.find_schedule(plan.schedule), extrapolate=extrapolate)
    missed, found = found.rejected(limit_bytes), found.refined()
    return found, "" if missed is None else missed.reason


def _searched(
    now: Todays, wanted: Mapping[str, Any], whole: Mapping[str, Any], num: int, progress: Progress | None
) -> list[Plans]:
    """One search for each region that the target can say, then one without its limits if it has any."""
    parts = sayable_choices(now, wanted)
    tries = [*parts, *([] if parts == [wanted] else [wanted])]
    if whole.get("time_limit_s"):
        whole = {**whole, "time_limit_s": whole["time_limit_s"] / len(tries)}
    results: list[Plans] = []
    errors: list[MeshwrightError] = []
    for place, part in enumerate(tries):
        told = _share(progress, place, len(tries))
        try:
            share = BEYOND_SHARE if place >= len(parts) else (1 - BEYOND_SHARE) / len(parts)
            results.append(_search(now, part, whole, int(num * share), told))
        except (PlanError, OutOfMemoryError) as error:
            errors.append(error)
        if place + 1 == len(parts) and not results:
            raise next((each for each in errors if isinstance(each, OutOfMemoryError)), errors[0])
    return results


def _search(
    now: Todays, fix: Mapping[str, Any], whole: Mapping[str, Any], num: int, progress: Progress | None
) -> Plans:
    from meshwright.planner.search.search import search

    asked = whole.get("microbatch_sizes")  # the job's own among them
    options = {**whole, "microbatch_sizes": asked and sorted({*asked, now.plan.microbatch_size})}
    return search(
        now.plan.model, now.cluster, now.plan.workload, fix=fix, num_simulated=max(num, LEAST_SIMULATED),
        progress=progress, **options,
    )  # fmt: skip


def _share(progress: Progress | None, place: int, count: int) -> Progress | None:
    """The progress of one search among several."""
    return None if progress is None else lambda what, share: progress(what, (place + share) / count)


def _sorted_out(
    results: Sequence[Plans], now: Todays, capacity_bytes: int, risk: float
) -> tuple[list[Predicted], list[tuple[Predicted, tuple[Refusal, ...]]]]:
    """All plans, the fastest first of those that fit as surely: what the target can say, and the others with what it
    refuses."""
    from meshwright.planner.search.plans import safe_first

    distinct = {plan_digest(canonical(each.plan)): each for result in results for each in result}
    fastest = sorted(
        distinct.values(), key=lambda one: (float(f"{one.step.value:.9g}"), one.peak_bytes, one.description)
    )
    sayable, others = [], []
    for each in safe_first(fastest, capacity_bytes, risk):
        refusals = _export(each.plan, now)[1]
        if refusals:
            others.append((each, refusals))
        else:
            sayable.append(each)
    return sayable, others


def _joined(results: Sequence[Plans], plans: Sequence[Predicted], capacity_bytes: int, risk: float) -> Plans:
    """One result: the plans that can be said, with the counts of the largest search."""
    from meshwright.planner.search.plans import passed_over

    largest = max(results, key=lambda result: result.num_candidates)
    return replace(
        largest,
        plans=tuple(plans),
        num_simulated=len(plans),
        search_s=sum(result.search_s for result in results),
        simulation_s=sum(result.simulation_s for result in results),
        is_complete=all(result.is_complete for result in results),
        optimality_gap=None,  # a bound of one search says nothing of what the target can say
        passed_over=passed_over(plans, capacity_bytes, risk),
    )


def _export(plan: Plan, now: Todays) -> tuple[Exported | None, tuple[Refusal, ...]]:
    """The plan in the target's words, or what those lack; neither for a plan of our own."""
    if not now.target:
        return None, ()
    try:
        return export_plan(plan, now.target, cluster=now.cluster), ()
    except ExportError as error:
        return None, error.refusals


def _changes(now: Todays, best: Plan, exported: Exported | None) -> tuple[OptionChange, ...]:
    """From today's file to the best plan; nothing where it cannot be said or is today's."""
    if best is now.plan or (now.target and exported is None):
        return ()
    if exported is None:
        return difference(plan_options(now.plan), plan_options(best))
    after, before = exported_options(exported), _export(now.plan, now)[0]
    if before is not None:
        return difference(exported_options(before), after, now.written)
    # today's file says what our exports have no words for: it is compared as it is written, and nothing is taken out
    written = {RENAMED.get(option.name, option.name): option.value for option in now.written}
    return tuple(change for change in difference(written, after, now.written) if change.kind != "removed")
