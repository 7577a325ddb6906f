"""FSMoE as a planner: a plan whose microbatches are cut into as many parts as hide most of what its own experts exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np

from meshwright.costs.pricing import pricing_of
from meshwright.ir.trace import Trace
from meshwright.lowering.lower import lower
from meshwright.lowering.place import place
from meshwright.planner.search.proposal import Proposal
from meshwright.planner.space.check import check_open
from meshwright.schedules import registered
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.systems.moe.fs_moe.mechanism import MOST_CHUNKS, ExpertLayer, LinearCost, layer_seconds

ROUTE, EXPERTS = "ROUTE", "grouped_matmul"  # the row that sends tokens, and what experts compute
NOTHING = LinearCost(0.0, 0.0, 0.0)


def planned(model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any]) -> Proposal:
    """Plans of the degrees that are fixed, experts over as many devices as they divide, with microbatches in 1, 2, 4 ...
    parts: first the number that the closed form of this model's layer on this cluster finds.

    Raises PlanError where the parts are fixed, which are decided here, or nothing divides.
    """
    check_open(fix, ("token_parts",))
    plan = _usual(model, cluster, workload, fix)
    if model.num_experts == 0 or plan.ep == 1:
        return Proposal((plan,), ("no device sends tokens to experts of others: one part",))
    layer = priced_layer(plan, cluster)
    parts = [each for each in range(1, MOST_CHUNKS + 1) if plan.microbatch_size % each == 0]
    seconds = {each: step_seconds(layer, each) for each in parts}
    ordered = sorted(parts, key=lambda each: (seconds[each], each))
    plans = tuple(plan.changed(token_parts=each) for each in ordered)
    return Proposal(plans, (_said(seconds, ordered[0]),))


def _usual(model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any]) -> Plan:
    """What is fixed, with experts over devices that attend apart, and the largest microbatch of at most 16 sequences."""
    made = Plan.of(model, cluster, workload, **{"microbatch_size": 1, **fix})
    chosen: dict[str, Any] = {}
    if "ep" not in fix and model.num_experts:
        chosen["ep"] = gcd(model.num_experts, made.dp * made.cp)
    if "microbatch_size" not in fix:
        chosen["microbatch_size"] = gcd(workload.global_batch // made.dp, MOST_CHUNKS)
    return made.changed(**chosen)


def step_seconds(layer: ExpertLayer, chunks: int) -> float:
    """Forward and backward: a plan cuts both in as many parts."""
    return layer_seconds(layer, chunks) + layer_seconds(layer.backward(), chunks)


def priced_layer(plan: Plan, cluster: ClusterSpec) -> ExpertLayer:
    """One expert layer of the plan's model by the cluster's prices, the user's own profile where there is one: rows of a
    microbatch and of one sample say startup and rate."""
    samples = plan.microbatch_size
    (sent, computed), (sent_one, computed_one) = (_row_seconds(plan, cluster, each) for each in (samples, 1))
    return ExpertLayer(
        _line(sent, sent_one, samples), NOTHING, _line(computed, computed_one, samples), NOTHING
    )


def _line(whole_s: float, one_s: float, samples: int) -> LinearCost:
    """Through the seconds of a microbatch and of one sample; nothing starts up where a microbatch is one."""
    if samples == 1:
        return LinearCost(0.0, whole_s, 1.0)
    rate = max(0.0, (whole_s - one_s) / (samples - 1))
    return LinearCost(max(0.0, one_s - rate), rate, float(samples))


def _row_seconds(plan: Plan, cluster: ClusterSpec, samples: int) -> tuple[float, float]:
    """Of a microbatch of so many samples in one stage that holds all blocks: an all-to-all's, and the experts of a layer."""
    devices = plan.dp * plan.cp * plan.tp
    workload = replace(plan.workload, global_batch=plan.dp * samples)
    one = plan.changed(
        pp=1, num_chunks=1, schedule=Plan.schedule, num_devices=devices, layers_per_stage=(plan.model.num_layers,),
        microbatch_size=samples, workload=workload, recompute="none", recompute_blocks=(), vocabulary=Plan.vocabulary,
        device_order=(), sharding="none", sharding_degree=0, token_parts=1,
    )  # fmt: skip
    program = lower(one, registered()[one.schedule], in_segments=True)
    costs = pricing_of(one, cluster).costs
    trace = simulate_program(program, costs, costs, placement=place(program, cluster))
    return _median_s(trace, "sent"), _median_s(trace, "computed")


def _median_s(trace: Trace, what: str) -> float:
    """Of the rows of a forward that send tokens, or compute experts."""
    program, tables = trace.program, trace.program.tables
    names = np.array([effect.name for effect in tables.effects])[program.columns.effect]
    if what == "sent":
        chosen = names == ROUTE
    else:
        has = np.array(
            [any(each.kind == EXPERTS for each in work.operators) for work in tables.works] + [False]
        )
        chosen = (names == "F") & has[program.columns.work]
    return float(np.median((trace.end_s - trace.start_s)[0, chosen]))


def _said(seconds: Mapping[int, float], best: int) -> str:
    """What the closed form says of the parts."""
    rows = ", ".join(f"{parts}: {value * 1e3:.3g} ms" for parts, value in seconds.items())
    return f"experts of a layer, forward and backward, by the closed form in so many parts: {rows}; {best} is taken"
