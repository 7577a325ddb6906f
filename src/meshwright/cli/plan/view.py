"""How plans are shown: the table, why the first is the first, how it was found; and the same for --json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from rich.text import Text

from meshwright.api.plans.sayable import frameworks
from meshwright.cli.frame.output import interval_text, table_of
from meshwright.cli.plan.asked import Asked
from meshwright.cli.plan.assumed import assumed, told
from meshwright.cli.plan.cost import costs_data, costs_lines
from meshwright.evidence.log_comparison import KINDS
from meshwright.planner.search.plans import Plans
from meshwright.planner.search.search import reasons
from meshwright.prediction.description import (
    context_words,
    gathered_words,
    layers_words,
    parts_words,
    recompute_words,
    vocabulary_words,
)
from meshwright.prediction.predicted import Predicted
from meshwright.prediction.step_trait import BESIDE
from meshwright.reports.page.plan_page import Assumed
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.layers import split_layers
from meshwright.specs.plan.file import plan_text
from meshwright.specs.plan.plan import AXES as MESH
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import counted, format_bytes, format_chance, format_seconds


class Beside(Protocol):
    """A plan that is shown beside those that were asked for."""

    @property
    def best(self) -> Predicted | None:
        """The plan; None where there is none."""

    def line(self, found: Plans) -> str:
        """One sentence that compares it with the first, or says why there is none."""


LEAST_TOLD = 0.001  # of a step, of an exchange that is told by name
LEAST_GAIN = 0.0005  # of a step; what is told with one digit of a per cent


def assumed_lines(found: Plans) -> tuple[str, ...]:
    """What the best plan's prediction rests on."""
    return tuple(line for line in found[0].assumptions if line not in found.assumptions)


def plans_data(
    found: Plans,
    top: int,
    asked: Asked | None = None,
    cluster: ClusterSpec | None = None,
    limit_bytes: int | None = None,
) -> dict[str, Any]:
    data: dict[str, Any] = {"plans": [plan_data(each, limit_bytes) for each in found[:top]]}
    rests_on: list[str] = []
    if asked is not None and cluster is not None:
        rests_on = costs_lines(cluster, asked)
        data["plans"] = [
            {**plan_data(each, limit_bytes), **costs_data(each, asked, cluster)} for each in found[:top]
        ]
    data |= {
        "num_candidates": found.num_candidates,
        "num_evaluated": found.num_evaluated,
        "num_excluded_by_bound": found.num_excluded_by_bound,
        "num_simulated": len(found),
        "search_s": found.search_s,
        "simulation_s": found.simulation_s,
        "is_complete": found.is_complete,
        "wall_s": found.wall_s,
        "optimality_gap": found.optimality_gap,
        "varied": dict(found.varied),
        "why": dict(_why(found)),
        "passed_over": [{**plan_data(each.plan, limit_bytes), "why": each.why} for each in found.passed_over],
    }
    sentences = (*found.assumptions, *assumed_lines(found), *rests_on)
    if cluster is None:
        return {**data, "assumptions": list(dict.fromkeys(sentences))}

    every = assumed(sentences, cluster, limit_bytes)
    return {**data, **assumed_data(every)}


def assumed_data(lines: Sequence[Assumed]) -> dict[str, Any]:
    """What was assumed and what to type for another, for --json."""
    flags = {each.sentence: each.flag for each in lines}
    return {"assumptions": list(flags), "overridden_by": flags}


def plan_data(each: Predicted, limit_bytes: int | None = None) -> dict[str, Any]:
    return {
        "step_time_s": each.step.value,
        "step_time_interval_s": [each.step.low, each.step.high],
        "basis": each.step.basis,
        "level": each.level,
        "composed_step_time_s": composed_s(each),
        "not_composable": list(each.not_composable),
        "exchanges": {name: one._asdict() for name, one in each.exchanges.items()},
        "tokens_per_s_per_device": each.tokens_per_s / each.plan.num_devices,
        "peak_memory_bytes": each.peak_bytes,
        "worst_memory_bytes": each.bound_bytes,
        "fit_probability": each.fit_probability(limit_bytes),
        "exports": list(frameworks(each.plan, each.cluster)),
        **each.used.to_dict(),
        "bubble": each.bubble,
        "parts": dict(each.parts),
        "description": each.description,
        "plan": plan_text(each.plan),
    }


def composed_s(each: Predicted) -> float | None:
    """Seconds of the step by its stages' composed prices; None where a layer sends nothing, or nobody asked for them."""
    seconds = each.step.value if each.level == "composed" else each.composed_s
    return None if each.level == "stages" or math.isnan(seconds) else seconds


def _why(found: Plans) -> list[tuple[str, float]]:
    return reasons(found[0], found[1]) if len(found) > 1 else []


def plans_view(
    found: Plans,
    top: int,
    cluster: ClusterSpec,
    helping: Sequence[Any] = (),
    limit_bytes: int | None = None,
    beside: Beside | None = None,
) -> list[Any]:
    """The table, why the first is the first, how it was found, what was assumed and what to type for another.

    `beside`: a plan that was not asked for, the table's last row, and the sentence that compares the first with it.
    """
    best = found[0]
    head = (
        f"{best.plan.model.name} on {best.plan.cluster}, {best.plan.workload.global_batch} sequences a step"
    )
    rows = [plan_row(number, each, limit_bytes) for number, each in enumerate(found[:top], 1)]
    view: list[Any] = [
        Text(head, style="bold"),
        table_of([*rows, *([plan_row("ours", beside.best, limit_bytes)] if beside and beside.best else [])]),
    ]
    said = (beside.line(found),) if beside else ()
    lines = (*said, *sentences(found), *level_lines(found[:top]), *tight_lines(found, cluster))
    view += [Text(line, overflow="fold") for line in lines]
    every = assumed((*found.assumptions, *assumed_lines(found)), cluster, limit_bytes)
    return [*view, *helping, *assumed_view(every)]


def assumed_view(lines: Sequence[Assumed]) -> list[Any]:
    """What was assumed, line by line, and what to type for another."""
    return [Text(f"- {told(each)}", style="dim", overflow="fold") for each in lines]


def plan_row(number: int | str, each: Predicted, limit_bytes: int | None = None) -> dict[str, Any]:
    return {
        "": number,
        "plan": _told(each.plan),
        "step": format_seconds(each.step.value),
        "interval": interval_text(format_seconds(each.step.low), format_seconds(each.step.high)),
        f"tokens/s/{each.cluster.machine.unit}": f"{each.tokens_per_s / each.plan.num_devices:,.0f}",
        "MFU": f"{100 * each.mfu:.1f} %" if each.mfu else "-",
        "bubble": f"{100 * each.bubble:.1f} %",
        "memory": format_bytes(each.peak_bytes) + _risk_words(each, limit_bytes),
        **_priced(each),
    }


def _risk_words(each: Predicted, limit_bytes: int | None) -> str:
    """The mark of a plan that may not fit."""
    chance = each.fit_probability(limit_bytes)
    words = f"fits {format_chance(chance)}".replace(" ", "\u00a0")  # stay on one line of the cell
    return "" if chance >= 1 else f", {words}"


def _priced(each: Predicted) -> dict[str, str]:
    """A column for the steps of plans that exchange inside layers: what each is simulated in, and its composed number."""
    if each.level == "stages":
        return {}
    if each.level == "composed":
        return {"priced": "composed, not composable" if each.not_composable else "composed"}
    seconds = composed_s(each)
    return {
        "priced": "in segments" + (f" (composed {format_seconds(seconds)})" if seconds is not None else "")
    }


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
    chunks = f" x{plan.num_chunks}" if plan.num_chunks > 1 else ""
    words = [
        " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "1 device",
        context_words(plan),
        plan.schedule.removesuffix("_1f1b") + chunks if plan.pp > 1 else "",
        f"micro {plan.microbatch_size}",
        parts_words(plan),
        uneven_layers(plan),
        recompute_words(plan),
        _sharded(plan),
        "sp" if plan.sequence_parallel else "",
        gathered_words(plan),
        vocabulary_words(plan),
        f"mesh {'-'.join(plan.mesh_order)}" if plan.mesh_order != MESH else "",
    ]
    return ", ".join(word for word in words if word)


def sentences(found: Plans) -> list[str]:
    """Why, what binds, and how the search went."""
    best = found[0]
    lines = [f"basis: {', '.join(dict.fromkeys(each.step.basis for each in found))}"]
    for kind, seconds in [pair for pair in best.parts.items() if pair[0] not in BESIDE][:1]:
        lines.append(f"most of the step: {part_words(kind)}, {100 * seconds / best.step.value:.0f} % of it")
    if len(found) > 1:
        why = f"; on the busiest device {_differences(found)}" if best.parts else ""
        lines.insert(0, f"1 before 2: {_ahead(best, found[1])}{why}")
    for over in found.passed_over:
        gain = 100 * (best.step.value / over.plan.step.value - 1)
        lines.append(f"{gain:.1f} % faster is {over.plan.description}: {over.why}")
    lines.append(
        f"{counted(found.num_candidates, 'candidate')}: {found.num_too_large:,} do not fit, {found.num_slower:,} are proven "
        f"slower than the best, {found.num_evaluated:,} ranked; {len(found)} simulated; {format_seconds(found.search_s)} "
        f"search, {format_seconds(found.simulation_s)} simulation"
    )
    if found.varied:
        told = (f"{what} {number or 'none'}" for what, number in found.varied.items())
        lines.append(f"of the simulated plans, varied behind the ranking: {', '.join(told)}")
    if found.optimality_gap is not None:
        lines.append(
            f"by what they compute, no other is more than {100 * found.optimality_gap:.1f} % faster than the best"
        )
    return lines if found.is_complete else [*lines, "ended early: better plans may not have been simulated"]


def level_lines(shown: Sequence[Predicted]) -> list[str]:
    """Which of the shown plans have composed prices that leave something out, and what of the first one's exchanges passes
    beside its computes, by name."""
    reasons: dict[str, list[str]] = {}
    for number, each in enumerate(shown, 1):
        for reason in each.not_composable:
            reasons.setdefault(reason, []).append(str(number))
    lines = [f"not composable: {', '.join(numbers)}: {reason}" for reason, numbers in reasons.items()]
    told = [
        f"{words} {format_seconds(hidden_s)} of {format_seconds(seconds)}"
        for words, (hidden_s, seconds) in _exchanges(shown[0]).items()
        if seconds >= LEAST_TOLD * shown[0].step.value
    ]
    return [*lines, *([f"hidden beside computes of 1: {', '.join(told)}"] if told else [])]


def _exchanges(plan: Predicted) -> dict[str, tuple[float, float]]:
    """Seconds beside computes, and all, of what has the same words: sends and receives, forwards and backwards."""
    found: dict[str, tuple[float, float]] = {}
    for name, one in plan.exchanges.items():
        hidden_s, seconds = found.get(part_words(name), (0.0, 0.0))
        found[part_words(name)] = (hidden_s + one.hidden_s, seconds + one.seconds)
    return found


def _ahead(best: Predicted, second: Predicted) -> str:
    """By what the first is before the second: its step, else its memory, else nothing but the order of names."""
    gain, saved = second.step.value / best.step.value - 1, second.peak_bytes - best.peak_bytes
    if gain >= LEAST_GAIN:
        return f"{100 * gain:.1f} % faster"
    if saved > 0:
        slower = f", {-100 * gain:.1f} % slower" if gain <= -LEAST_GAIN else ""
        return f"{format_bytes(saved)} less memory{slower or ', as fast'}"
    return "as fast"


def _differences(found: Plans) -> str:
    said = [
        f"{format_seconds(abs(seconds))} {'less' if seconds > 0 else 'more'} {part_words(kind)}"
        for kind, seconds in _why(found)
    ]
    return ", ".join(said) or "nothing differs"


def tight_lines(found: Plans, cluster: ClusterSpec) -> list[str]:
    """That the best plan may not fit when its allocator does badly, with what leaves room for that."""
    most, has = found[0].bound_bytes, cluster.memory_bytes
    if most <= has:
        return []
    return [
        f"1 is expected to fit; at worst it takes {format_bytes(most)} of {format_bytes(has)} (fragmentation, nothing "
        "fused); a smaller --max-memory leaves room"
    ]


def part_words(kind: str) -> str:
    """A part of the step, for people."""
    return KINDS[kind].meaning if kind in KINDS else kind
