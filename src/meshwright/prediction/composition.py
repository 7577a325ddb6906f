"""Which steps are priced of composed stages, which in segments, and where a composed price leaves out what rows would say.

A stage's composed price is that of its computes and of the exchanges inside them, one behind the other but for what is said
to run beside (`Inner.beside`). It is what running the stage's segments once would give where (a) its rows are contiguous on
the compute stream, (b) nothing else uses its streams, links and shares of the device meanwhile, (c) all inputs are complete
when it starts and no output is read before it ends, (d) its devices enter together.
"""

from __future__ import annotations

from meshwright.lowering.segment.segmented import inner_degrees
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.parameter_name import MODULES
from meshwright.specs.plan.plan import CONNECT_STAGES, Plan
from meshwright.stage.piece import is_vocabulary_split


def sends_inside(plan: Plan) -> bool:
    """Is anything sent inside a layer?"""
    return inner_degrees(plan).has_exchanges


def not_in_rows(plan: Plan) -> tuple[str, ...]:
    """Of what a plan sends inside layers on GPUs, and does there, what rows do not say as measured steps took it."""
    found = [f"cp={plan.cp} ({plan.context})"] if plan.cp > 1 and plan.context != "ulysses" else []
    found += [f"ep={plan.ep}"] if plan.ep > 1 else []
    found += ['overlap "tp" (kernels that send in parts)'] if "tp" in plan.overlap else []
    found += [f"vocabulary={plan.vocabulary}"] if is_vocabulary_split(plan) else []
    found += [f"recompute={plan.recompute}"] if plan.recompute not in ("none", "full") else []
    found += [CONNECT_STAGES] if plan.connects_stages else []
    found += ["recompute_blocks"] if plan.recompute_blocks else []
    found += [f"{plan.model.architecture} blocks"] if plan.model.architecture not in MODULES else []
    return tuple(found)


def is_in_segments(plan: Plan) -> bool:
    """Is a step of the plan on GPUs simulated in segments: does it exchange inside a layer, and do rows say all of that?"""
    return sends_inside(plan) and not not_in_rows(plan)


def is_refused(plan: Plan) -> bool:
    """Is no composed price made of the plan? It would hide none of a ladder residual's sums, make one for every part of
    parallel branches, and parts of microbatches run beside each other as rows only."""
    return plan.has_parts or (plan.model.hands_on_results and is_in_segments(plan))


def not_composable(plan: Plan, cluster: ClusterSpec) -> tuple[str, ...]:
    """Why the plan's composed price is not what its segments would take: which of the conditions (a) to (d) fails, in words.
    Empty where all hold, or nothing is sent inside a layer."""
    if not sends_inside(plan):
        return ()
    found = (
        ["(a) rows of other parts stand between those of a part of a microbatch"] if plan.has_parts else []
    )
    if plan.model.has_ladder_residual:
        found.append("(a) with a ladder residual the rows of other parts stand between a sum and its reader")
    if plan.model.has_parallel_branches:
        found.append("(c) parallel branches are summed once a stage, not once a part")
    if "tp" in plan.overlap:
        found.append('(b) with overlap "tp" exchanges run beside products of the same stage')
    if "ep" in plan.overlap:
        found.append('(b) with overlap "ep" tokens travel beside computes of another microbatch')
    if plan.context_parallel.travels:
        found.append("(b) keys and values of a ring travel beside attention of the same stage")
    if cluster.is_routed:
        found.append("(b) flows are routed, and exchanges of stages would meet them on links")
    if plan.pp > 1 and plan.tp > 1 and not plan.sequence_parallel:
        found.append("(c) what another stage sends is gathered before its stage starts, beside computes")
    if plan.ep > 1:
        found.append("(d) devices enter together only where routing is balanced")
    if not cluster.is_homogeneous:
        found.append("(d) devices that differ do not enter together")
    return tuple(found)
