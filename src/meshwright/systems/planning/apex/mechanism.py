"""The search: replicas, stages, and replicas of attention inside them; what cannot be the fastest is not simulated.

Letters: N devices, r replicas, p stages of each, t = N / (r p) devices of a stage, d groups of them that attend apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from meshwright.planner.serving.served_plan import ServedPlan
from meshwright.planner.serving.serving_search import ServingSearch
from meshwright.serving.decoder.decoder import ONE_TOKEN
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ACTIVATIONS
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_model import StepModel
from meshwright.serving.simulated.step_table import StepTable
from meshwright.specs.error import MeshwrightError, OutOfMemoryError, PlanError, SpecError

NUM_SHOWN = 4  # of the plans, the fastest first
LOWERED_TOKENS = 16  # of the step by which a layout is tried
OF_LAYOUT = ("tp", "pp", "ep", "attention_dp", "replicas")


def planned(search: ServingSearch) -> list[ServingPlan]:
    """The plans that serve the load's busiest time soonest, of those that use all devices; what is fixed stays.

    Raises PlanError where no plan divides the model and the devices so, OutOfMemoryError where none fits.
    """
    return [each.plan for each in soonest(search)[:NUM_SHOWN]]


def soonest(search: ServingSearch, is_exhaustive: bool = False) -> list[ServedPlan]:
    """Every plan that was simulated, that of least total time first.

    In the order of their bounds, until the next bound is no less than the least time: no plan behind that can be sooner.
    """
    found: list[ServedPlan] = []
    misfit: MeshwrightError | None = None
    for least_s, plan in sorted(_bounded(search), key=lambda each: each[0]):
        if not is_exhaustive and found and least_s >= min(each.report.duration_s for each in found):
            break
        try:
            found += search.rank([plan])
        except (OutOfMemoryError, PlanError) as error:
            misfit = error
    if not found:
        raise misfit or PlanError(
            f"no replicas x pp x tp of {dict(search.fix)} share {search.model.name} among "
            f"{search.cluster.num_devices} devices",
            allowed="degrees that divide both",
        )
    return sorted(found, key=lambda each: each.report.duration_s)


def _bounded(search: ServingSearch) -> Iterator[tuple[float, ServingPlan]]:
    """Every plan with its bound; what cannot be lowered is told among what does not fit."""
    for plan in space(search):
        try:
            yield bound_s(search, plan), plan
        except PlanError as error:
            search.rejected[plan.layout.name] = error.given


def space(search: ServingSearch) -> Iterator[ServingPlan]:
    """Replicas, stages and devices that use all devices, or what is fixed of them; groups of all divisors; experts whole on
    devices, or cut as other matrices."""
    fix, has_experts = search.fix, any(kind.experts for kind in search.model.kinds)
    limits = {name: value for name, value in fix.items() if name not in OF_LAYOUT}
    for r, p, t in _degrees(fix, search.cluster.num_devices):
        groups = _of(fix, "attention_dp", divisors(t))
        for d, ep in product(groups, _of(fix, "ep", (1, t) if has_experts and t > 1 else (1,))):
            layout = ReplicaLayout(t, p, ep, d)
            if r > int(fix.get("num_prefill", 0)) and _divides(search, layout):
                yield ServingPlan(layout, r, **limits)


def _degrees(fix: Mapping[str, Any], number: int) -> Iterator[tuple[int, int, int]]:
    """r, p and t whose product is the number of devices, or where r is fixed no more."""
    for r in _of(fix, "replicas", divisors(number)):
        for p in _of(fix, "pp", divisors(max(1, number // r))):
            for t in _of(fix, "tp", (max(1, number // (r * p)),)):
                if r * p * t == number or ("replicas" in fix and r * p * t < number):
                    yield r, p, t


def bound_s(search: ServingSearch, plan: ServingPlan) -> float:
    """Seconds below which no schedule of this plan serves the load, from the first arrival to the last token; 0 where
    nothing is known of it: steps are not from a table, give several tokens, or clients wait.

    Of every step's time T(rows, decodes): the rows of all prompts and outputs take at least min T / rows each, so do decodes
    alone, and replicas share no better than evenly; and no request ends before it has had its own steps. Prompts that may be
    cached count as nothing.
    """
    requests = search.busiest_time
    steps = search.steps_of(plan)[1]
    if not isinstance(steps, StepTable) or plan.decoder != ONE_TOKEN or search.num_clients:
        return 0.0
    has_prefixes = any(each.block_keys for each in requests)
    least = min(each.num_prompt_tokens for each in requests)
    decode_s, decode_latency_s = _least_decode(steps, plan.max_sequences, least)
    row_s, step_s = _least_row(steps, plan.max_batch_tokens)
    prompts = 0 if has_prefixes else sum(each.num_prompt_tokens for each in requests)
    decodes = sum(_num_output(each) - 1 for each in requests)
    work_s = max(decode_s * decodes, row_s * (prompts + decodes)) / plan.replicas
    first_s = min(each.arrival_s for each in requests)
    own_s = max(
        each.arrival_s - first_s + step_s + (_num_output(each) - 1) * decode_latency_s for each in requests
    )
    return max(work_s, own_s)


def _least_decode(steps: StepModel, most: int, context: int) -> tuple[float, float]:
    """Of steps that decode: least seconds of the slowest stage for one token, least seconds through all stages."""
    found = [(n, steps.step(BatchShape.of((), n, n * context))) for n in range(1, most + 1)]
    return min(step.period_s / n for n, step in found), min(step.latency_s for _, step in found)


def _least_row(steps: StepModel, most: int) -> tuple[float, float]:
    """Of steps of so many rows that see nothing: least seconds of the slowest stage for one, least through all stages."""
    found = [(n, steps.step(BatchShape(n))) for n in range(1, most + 1)]
    return min(step.period_s / n for n, step in found), min(step.latency_s for _, step in found)


def divisors(number: int) -> tuple[int, ...]:
    """Of a number, rising."""
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def _of(fix: Mapping[str, Any], name: str, others: Sequence[int]) -> Sequence[int]:
    return (int(fix[name]),) if name in fix else others


def _divides(search: ServingSearch, layout: ReplicaLayout) -> bool:
    """Can the model be divided so? Else it is told among what does not fit."""
    try:
        layout.plan(search.model, search.cluster, LOWERED_TOKENS, ACTIVATIONS)
    except (PlanError, SpecError) as error:
        search.rejected[layout.name] = error.given
        return False
    return True


def _num_output(request: Request) -> int:
    return request.num_output_tokens or request.max_output_tokens
