"""The page of `meshwright plan --report`: what a search found, as the plain data of `reports.plan_page`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright import __version__
from meshwright.api.plans.plan_text import plan_figures, plan_row, plan_words
from meshwright.cli.plan.asked import Asked
from meshwright.cli.plan.assumed import assumed
from meshwright.cli.plan.cost import rhythm
from meshwright.cli.plan.remark import part_words
from meshwright.interop.plan_difference import OptionChange
from meshwright.planner.advice.running_cost import SECONDS_PER_HOUR, price_per_hour_usd
from meshwright.planner.search.plans import Plans
from meshwright.planner.search.search import reasons
from meshwright.prediction.predicted import Predicted
from meshwright.prediction.step_part import WAITING, is_beside
from meshwright.prediction.step_waiting import StepWaiting, step_waiting
from meshwright.reports.page.plan_page import DeviceHolders, PlanFigures, PlanPage, plan_report
from meshwright.reports.page.report import Figure, Report
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import format_count, format_seconds

BUBBLE, EXPOSED = "bubble: waiting for other stages", "waiting for messages and reductions"


@dataclass(frozen=True)
class Shown:
    """What the command says of a search.

    Attributes:
        found: the plans, the best first.
        cluster: what they run on, with its price and power.
        shown: those in the table, by their place.
        remarks: sentences behind why the first is the first.
        assumptions: sentences.
        today: the plan that runs today, where one was given.
        changes: from its file to the best plan, option by option.
        max_memory_bytes: of a device, where the user said it.
        asked: tokens to train on and failures, where the user said them.
    """

    found: Plans
    cluster: ClusterSpec
    shown: Mapping[int, Predicted]
    remarks: Sequence[str] = ()
    assumptions: Sequence[str] = ()
    today: Predicted | None = None
    max_memory_bytes: int | None = None
    asked: Asked | None = None
    changes: Sequence[OptionChange] = ()


def plans_report(shown: Shown) -> Report:
    """The page. Runs the shown plans once more, for their timelines and for what they wait for."""
    best, cluster = shown.found[0], shown.cluster
    everything = [(str(place), each) for place, each in enumerate(shown.found, 1)]
    listed = [(str(place), each) for place, each in shown.shown.items()]
    if shown.today is not None:
        listed = [("today", shown.today), *listed]
    ran = {label: step_waiting(each) for label, each in listed if each.parts}
    memory = best.memory.devices if best.memory is not None else ()
    usable = min(cluster.memory_bytes, shown.max_memory_bytes or cluster.memory_bytes)
    page = PlanPage(
        title=f"{best.plan.model.name} on {best.plan.cluster}",
        subtitle=_subtitle(best.plan, cluster),
        figures=[*plan_figures(best, cluster, usable), *_whole(best, cluster, shown.asked)],
        shown=[_figures(label, each, ran.get(label)) for label, each in listed],
        simulated=[_figures(label, each) for label, each in everything],
        devices=[
            DeviceHolders(f"pp{each.device}" if len(memory) > 1 else "device", dict(each.holders))
            for each in memory
        ],
        capacity_bytes=usable,
        trace=ran["1"].trace if "1" in ran else best.trace(),
        reasons=[*_beside_today(best, shown.today), *_reasons(shown.found), *shown.remarks],
        search=_search(shown.found),
        changes=[
            {"option": each.name, "today": _said(each.before), "best plan": _said(each.after)}
            for each in shown.changes
        ],
        assumed=assumed(shown.assumptions, cluster, shown.max_memory_bytes),
        provenance={"meshwright": __version__, "model": best.plan.model.name, "cluster": best.plan.cluster},
    )
    return plan_report(page)


def _said(value: str | None) -> str:
    """Of an option that may not be there, or stand alone."""
    return "-" if value is None else value or "set"


def _subtitle(plan: Plan, cluster: ClusterSpec) -> str:
    nodes = f", nodes of {cluster.levels[0].num_devices}" if len(cluster.levels) > 1 else ""
    return (
        f"{cluster.num_devices:,} x {cluster.devices[0].name}{nodes}; {plan.workload.global_batch:,} sequences of "
        f"{plan.workload.sequence_length:,} tokens a step. The best plan on {plan_words(plan)}."
    )


def _whole(best: Predicted, cluster: ClusterSpec, asked: Asked | None) -> list[Figure]:
    """Time and money of the whole training, where its tokens were said."""
    if asked is None or asked.num_tokens is None:
        return []
    takes = rhythm(best, asked)[1]
    if takes is None:
        return []
    tokens = f"{format_count(asked.num_tokens)} tokens"
    how = "with failures and checkpoints" if asked.failures else "without failures or checkpoints"
    figures = [Figure(f"time of {tokens}", format_seconds(takes.expected_s), how)]
    rate = price_per_hour_usd(cluster)
    if rate is not None:
        figures.append(Figure(f"USD of {tokens}", f"{rate * takes.expected_s / SECONDS_PER_HOUR:,.0f}", how))
    return figures


def _figures(label: str, each: Predicted, ran: StepWaiting | None = None) -> PlanFigures:
    cells = plan_row(label, each)
    parts = _parts(each.parts, ran) if ran is not None else {}
    return PlanFigures(label, str(cells["plan"]), each.step.value, each.peak_bytes, cells, parts)


def _parts(parts: Mapping[str, float], ran: StepWaiting) -> dict[str, float]:
    """In words; what is waited is told apart; what runs beside computes is left out."""
    found: dict[str, float] = {}
    for kind, seconds in parts.items():
        if not is_beside(kind) and kind != WAITING:
            found[part_words(kind)] = found.get(part_words(kind), 0.0) + seconds
    waits = {BUBBLE: ran.bubble_s, EXPOSED: ran.exposed_s}
    return {**found, **{name: seconds for name, seconds in waits.items() if seconds > 0}}


def _beside_today(best: Predicted, today: Predicted | None) -> list[str]:
    """How much the best plan of the search gains over today's."""
    if today is None:
        return []
    gain = today.step.value / best.step.value - 1
    if gain <= 0:
        return ["today's plan is as fast as any that was found"]
    took = format_seconds(today.step.value)
    return [f"a step of today's plan takes {took}; plan 1 is {100 * gain:.1f} % faster"]


def _reasons(found: Plans) -> list[str]:
    """Why the first is before the second, and whether that is sure."""
    if len(found) < 2:
        return []
    first, second = found[0], found[1]
    gain = f"plan 1 is {100 * (second.step.value / first.step.value - 1):.1f} % faster than plan 2"
    lines = [gain]
    if first.parts:
        told = [
            f"{format_seconds(abs(s))} {'less' if s > 0 else 'more'} {part_words(k)}"
            for k, s in reasons(first, second)
        ]
        lines = [f"{gain}: on the busiest device {', '.join(told) or 'nothing differs much'}"]
    if second.step.low < first.step.high:
        lines.append("their intervals overlap: which of the two is faster is likely, not sure")
    return lines


def _search(found: Plans) -> list[tuple[str, str, str]]:
    """How the search went: what, how many, and what that means."""
    if found.num_on_frontier is None:
        rows = [
            ("candidates", f"{found.num_candidates:,}", "complete configurations that the cluster allows"),
            (
                "excluded by proof",
                f"{found.num_excluded_by_bound:,}",
                "too big for the devices, or slower than the best plan even if nothing waited",
            ),
            (
                "left open",
                f"{found.num_evaluated:,}",
                "neither proof excludes them, the best plan among them",
            ),
            (
                "simulated",
                f"{len(found):,}",
                "instruction by instruction: the first by a closed form that is a few percent off",
            ),
            ("optimality gap", *_gap(found.optimality_gap)),
        ]
        early = "a time limit or Ctrl-C: better plans may not have been simulated"
        return rows if found.is_complete else [*rows, ("ended early", "yes", early)]
    return [
        ("candidates", f"{found.num_candidates:,}", "complete configurations that the cluster allows"),
        ("fit", f"{found.num_evaluated:,}", "in the memory of the devices"),
        ("on the frontier", f"{found.num_on_frontier:,}", "of step and memory"),
        ("simulated", f"{found.num_simulated:,}", "of these, instruction by instruction"),
    ]


def _gap(gap: float | None) -> tuple[str, str]:
    if gap is None:
        return "-", "no bound is known"
    if gap == 0:
        return "0 %", "proven: no candidate is faster than the best plan, by the same prices"
    return (
        f"{100 * gap:.1f} %",
        "no candidate's step is shorter by more than this share: a proven limit, not a gain to expect",
    )
