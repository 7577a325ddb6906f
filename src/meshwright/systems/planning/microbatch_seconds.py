"""Predicted seconds of one microbatch on the stages of a plan: what two planners of this family rank by."""

from __future__ import annotations

import numpy as np

from meshwright.costs.pricing import pricing_of
from meshwright.ir.table import Kind
from meshwright.prediction.step_program import step_program
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan

PASSES = ("F", "R", "B")  # of a microbatch on a stage: f and w together


def stage_seconds(plan: Plan, cluster: ClusterSpec) -> tuple[float, ...]:
    """f + w of every stage: predicted seconds of its passes of one microbatch, exchanges inside included."""
    costs, made = pricing_of(plan, cluster).costs, step_program(plan, cluster)
    prices, program = made.priced(costs), made.wiring.program
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    chosen = (program.kinds == Kind.COMPUTE) & np.isin(names, PASSES)
    seconds = prices.seconds[prices.cost_of_row][chosen]
    # each replica has lists of its own where none stands for the others
    ranks = np.array([program.coordinates(each).get("pp", 0) for each in range(program.num_lists)])
    busy = np.bincount(ranks[program.list_of_row[chosen]], weights=seconds, minlength=plan.pp)
    return tuple((busy / np.bincount(ranks) / plan.num_microbatches).tolist())


def microbatch_s(plan: Plan, cluster: ClusterSpec) -> float:
    """f + w of the slowest stage."""
    return max(stage_seconds(plan, cluster))
