"""A plan's choice to split its vocabulary: what it can stand beside, its passes, and their part of the program."""

from __future__ import annotations

from typing import cast

from meshwright.ir.program import Program
from meshwright.lowering.pipeline import Lowering, Works
from meshwright.lowering.transfer.stage_edge import ConnectStages
from meshwright.lowering.vocabulary.split import (
    INTERLACED,
    Algorithm,
    SplitVocabulary,
    delayed_orders,
)
from meshwright.lowering.vocabulary.work import vocabulary_works
from meshwright.schedules.order import Orders, devices_of_stages
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.stage.exchange.inner import LOSS_ELEMENT_BYTES


def vocabulary_orders(plan: Plan, orders: Orders) -> Orders:
    """The schedule's orders, whose backwards wait for the barriers of the vocabulary's passes."""
    _check_paths(plan, orders)
    algorithm = _algorithm_of(plan)
    return orders if algorithm == INTERLACED else delayed_orders(orders, algorithm)


def _algorithm_of(plan: Plan) -> Algorithm:
    return cast(Algorithm, plan.vocabulary)


def _check_paths(plan: Plan, orders: Orders) -> None:
    """Raise PlanError where a stage stands on several devices: then it is not one of them that has the output."""
    for stage, devices in devices_of_stages(orders).items():
        if len(devices) > 1:
            raise PlanError(
                f"schedule {plan.schedule} has stage {stage} on devices {' and '.join(map(str, devices))}, and the "
                f"vocabulary is split ({plan.vocabulary})",
                allowed="schedules in which every stage is on one device, or vocabulary ends",
            )


def split_vocabulary(lowering: Lowering) -> SplitVocabulary:
    """The passes of the vocabulary on a program of computes.

    What a compute takes, to find which one runs when an output is ready, goes by its blocks.
    """
    plan, algorithm = lowering.plan, _algorithm_of(lowering.plan)
    if plan.options_of(ConnectStages.name) is not None:
        raise PlanError(
            f"the plan has vocabulary={plan.vocabulary} and connects its stages beside the path",
            allowed=f'vocabulary "ends" with the pass {ConnectStages.name}',
        )
    shares = tuple(float(max(1, layers.num_blocks)) for layers in lowering.stages)
    return SplitVocabulary(
        algorithm, vocabulary_size=plan.model.vocabulary_size, shares=shares, is_delayed=True,
        logit_bytes=float(max(LOSS_ELEMENT_BYTES, dtype_bytes(plan.dtype))), tp=plan.tp, cp=plan.cp,
    )  # fmt: skip


def works_of_vocabulary(lowering: Lowering, program: Program) -> Works:
    """Of LOOKUP, S, T and SCATTER on every stage of the program."""
    return vocabulary_works(lowering.plan, _algorithm_of(lowering.plan), len(lowering.stages))
