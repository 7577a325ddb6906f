"""A predicted plan as texts for people: a row of a table, headline figures, words; and how it compares with today's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshwright.interop.exported import Refusal
from meshwright.planner.advice.running_cost import price_per_hour_usd, running_cost
from meshwright.planner.search.plans import Plans
from meshwright.prediction.description import (
    beside_words,
    context_words,
    expert_words,
    gathered_words,
    layers_words,
    parts_words,
    recompute_words,
    vocabulary_words,
)
from meshwright.prediction.predicted import Predicted
from meshwright.reports.page.report import Figure
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.layers import split_layers
from meshwright.specs.plan.plan import AXES as MESH
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import (
    format_bytes,
    format_chance,
    format_flops_per_s,
    format_seconds,
    interval_text,
)

if TYPE_CHECKING:
    from meshwright.api.plans.like import PlansLike

SCHEDULES = {"1f1b": "1F1B", "interleaved_1f1b": "interleaved 1F1B", "gpipe": "GPipe"}
SHARDED = {"zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}

EVEN_CHANCE = 0.5  # below it a plan is likelier to be out of memory than not


def plan_row(number: int | str, each: Predicted, limit_bytes: int | None = None) -> dict[str, Any]:
    """Its number, the decision, what its step and memory are predicted to be. `limit_bytes`: of a device, if less."""
    return {
        "": number,
        "plan": _told(each.plan),
        "step": format_seconds(each.step.value),
        "interval": interval_text(format_seconds(each.step.low), format_seconds(each.step.high)),
        f"tokens/s/{each.cluster.machine.unit}": f"{each.tokens_per_s / each.plan.num_devices:,.0f}",
        "MFU": f"{100 * each.mfu:.1f} %" if each.mfu else "-",
        "bubble": f"{100 * each.bubble:.1f} %",
        "memory": format_bytes(each.peak_bytes),
        **_chance(each, limit_bytes),
    }


def _chance(each: Predicted, limit_bytes: int | None) -> dict[str, str]:
    """A column for plans that may not fit."""
    chance = each.fit_probability(limit_bytes)
    return {} if chance >= 1 else {"fits": format_chance(chance)}


def uneven_layers(plan: Plan) -> str:
    """Layers of the stages where they are not as even as can be."""
    is_even = plan.layers_per_stage == split_layers(plan.model.num_layers, plan.num_stages)
    return "" if is_even else f"layers {layers_words(plan.layers_per_stage)}"


def _sharded(plan: Plan) -> str:
    """What is sharded, and over how many devices where not over all."""
    if plan.sharding == "none":
        return ""
    return plan.sharding + (f" over {plan.sharding_degree}" if plan.sharding_degree else "")


def _told(plan: Plan) -> str:
    """Degrees, schedule, microbatch, recompute, sharding: what differs between the rows."""
    degrees = [(name, getattr(plan, name)) for name in ("tp", "cp", "ep", "pp", "dp")]
    folded = expert_words(plan).replace("=", "")
    chunks = f" x{plan.num_chunks}" if plan.num_chunks > 1 else ""
    words = [
        " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "1 device",
        folded,
        context_words(plan),
        plan.schedule.removesuffix("_1f1b") + chunks if plan.pp > 1 else "",
        f"micro {plan.microbatch_size}",
        parts_words(plan),
        uneven_layers(plan),
        recompute_words(plan),
        _sharded(plan),
        "sp" if plan.sequence_parallel else "",
        gathered_words(plan),
        beside_words(plan),
        vocabulary_words(plan),
        f"mesh {'-'.join(plan.mesh_order)}" if plan.mesh_order != MESH else "",
    ]
    return ", ".join(word for word in words if word)


def plan_words(plan: Plan) -> str:
    """A plan in words for people who do not know its names."""
    devices = "1 device" if plan.num_devices == 1 else f"{plan.num_devices:,} devices"
    ways = {
        "tensor parallel": plan.tp,
        "context parallel": plan.cp,
        "expert parallel": plan.ep,
        "data parallel": plan.dp,
    }
    pipeline = f"a pipeline of {plan.pp} ({SCHEDULES.get(plan.schedule, plan.schedule)}"
    pipeline += f", {plan.num_chunks} stages on each device)" if plan.num_chunks > 1 else ")"
    words = [
        f"{devices}: {', '.join(f'{degree}-way {name}' for name, degree in ways.items() if degree > 1)}",
        context_words(plan),
        pipeline if plan.pp > 1 else "",
        uneven_layers(plan),
        _sharding_words(plan),
        f"microbatches of {plan.microbatch_size} sequence{'s' if plan.microbatch_size > 1 else ''}",
        parts_words(plan),
        recompute_words(plan) or "nothing recomputed",
        gathered_words(plan),
        plan.dtype + (f" with {plan.float8} float8" if plan.float8 else ""),
    ]
    return ", ".join(word.removesuffix(": ") for word in words if word)


def _sharding_words(plan: Plan) -> str:
    name = SHARDED.get(plan.sharding, "")
    return f"{name} over {plan.sharding_degree} devices" if name and plan.sharding_degree else name


def plan_figures(best: Predicted, cluster: ClusterSpec, usable_bytes: int) -> list[Figure]:
    """Step, rate, MFU, memory, money and energy; what nobody knows is left out."""
    step, plan = best.step, best.plan
    unit = cluster.machine.unit
    ends = interval_text(format_seconds(step.low), format_seconds(step.high))
    figures = [
        Figure("time of a step", format_seconds(step.value), f"80 % interval {ends}; {step.basis}"),
        Figure(
            f"tokens/s/{unit}",
            f"{best.tokens_per_s / plan.num_devices:,.0f}",
            f"{best.tokens_per_s:,.0f} tokens/s on all {plan.num_devices:,}",
        ),
    ]
    used, peak = best.used, best.flops.peak_flops_per_s
    if used.mfu and peak:
        of = f"{format_flops_per_s(used.flops_per_s)} of the model, of {format_flops_per_s(peak)} in {plan.dtype}"
        figures.append(Figure("MFU", f"{100 * used.mfu:.1f} %", of))
    chance = best.fit_probability(usable_bytes)
    fits = (
        ""
        if chance == 1
        else f": fits with a chance of {format_chance(chance)}"
        if chance
        else ": does not fit"
    )
    where = f"of {format_bytes(usable_bytes)}, on the fullest device{fits}"
    figures.append(
        Figure("peak memory", format_bytes(best.peak_bytes), where, is_warning=chance < EVEN_CHANCE)
    )
    cost = running_cost(cluster, step.value, plan.workload.tokens_per_step)
    if cost.usd_per_billion_tokens is not None:
        rate = (price_per_hour_usd(cluster) or 0.0) / cluster.num_devices
        note = f"at {rate:g} USD for a device and hour"
        figures.append(Figure("USD per billion tokens", f"{cost.usd_per_billion_tokens:,.0f}", note))
    if cost.kwh_per_billion_tokens is not None:
        figures.append(
            Figure(
                "kWh per billion tokens", f"{cost.kwh_per_billion_tokens:,.0f}", "devices only, at full power"
            )
        )
    return figures


def passed_over_lines(found: Plans) -> list[str]:
    """Faster plans than the first, and why they are not it."""
    gains = [100 * (found[0].step.value / over.plan.step.value - 1) for over in found.passed_over]
    return [
        f"{gain:.1f} % faster is {over.plan.description}: {over.why}"
        for gain, over in zip(gains, found.passed_over, strict=True)
    ]


def compared_lines(found: PlansLike) -> list[str]:
    """Today's plan beside the best one."""
    if found.best is found.today:
        return ["today's plan is the fastest: no plan of the search is predicted to be faster"]
    if found.misfit:
        return [f"today's plan does not fit: {found.misfit}", "the best plan fits"]
    today, best = found.today.step, found.best.step
    gain = f"{format_seconds(today.value)} today, {format_seconds(best.value)} with the best plan"
    return [
        f"{gain}: {_faster(today.value, best.value)}"
        + ("; the intervals overlap" if best.high > today.low else "")
    ]


def _faster(slow_s: float, fast_s: float) -> str:
    if slow_s < fast_s:
        return f"{100 * (fast_s / slow_s - 1):.1f} % slower, as it was fixed and forbidden"
    return f"{100 * (slow_s / fast_s - 1):.1f} % faster"


def unsaid_lines(found: PlansLike) -> list[str]:
    """What the program has no words for."""
    lines = []
    if found.refusals:
        lines.append("the best plan has no words in that program: " + _reasons(found.refusals))
    if found.faster is not None:
        lines.append(
            f"a faster plan exists that cannot be said there ({found.faster.description}, "
            f"{format_seconds(found.faster.step.value)}, {_faster(found.best.step.value, found.faster.step.value)}): "
            + _reasons(found.faster_refusals)
        )
    return lines


def _reasons(refusals: Sequence[Refusal]) -> str:
    return "; ".join(f"{each.choice}: {each.reason}" for each in refusals)
