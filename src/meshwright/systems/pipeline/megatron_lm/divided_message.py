"""Messages between stages under tensor parallelism: what a device sends, and what dividing a message over them gains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.ir.timing.matching import moved_codes
from meshwright.ir.timing.replay import wire
from meshwright.ir.value_space import value_space
from meshwright.prediction.step_prediction import period_s, step_program
from meshwright.prediction.step_pricing import pricing_of
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan

MESSAGES = ("activation", "gradient")  # what crosses a boundary between stages


def message_bytes(plan: Plan, cluster: ClusterSpec) -> float:
    """Bytes of one message that a device sends to the next stage, in the program of the plan.

    Raises PlanError where there is one stage only.
    """
    program = step_program(plan, cluster).wiring.program
    names = [effect.name for effect in program.tables.effects]
    if "SEND_F" not in names:
        raise PlanError(f"a plan of {plan.pp} stage sends nothing", allowed="pp of 2 or more")
    forward = np.flatnonzero(program.columns.effect == names.index("SEND_F"))
    return float(value_space(program).bytes[moved_codes(program)[forward]].max())


def divided_message_speed_up(plan: Plan, cluster: ClusterSpec, left_out: str = "") -> float:
    """Predicted step where every tensor-parallel rank sends all of a message, over that where it sends 1 / tp of it.

    In both the receivers gather what they got within the node. `left_out`: as of `predict_step`.
    """
    pricing = pricing_of(plan, cluster, left_out=left_out)
    divided = step_program(plan, cluster)
    program = divided.wiring.program
    sizes = tuple(
        each._replace(by_index=tuple(plan.tp * size for size in each.by_index))
        if each.kind in MESSAGES
        else each
        for each in program.tables.value_bytes
    )
    whole = replace(divided, wiring=wire(program.with_tables(value_bytes=sizes)))
    slow_s, fast_s = (
        period_s(made.wiring, made.priced(pricing.costs)) + pricing.step_s for made in (whole, divided)
    )
    return slow_s / fast_s
