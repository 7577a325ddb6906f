"""Plans of models of which only a part trains, or that have low-rank additions: what lowering does not do of them."""

from __future__ import annotations

from meshwright.specs.error import PlanError
from meshwright.specs.model.adaptation import first_trained_block
from meshwright.specs.plan.plan import Plan
from meshwright.stage.piece import is_vocabulary_split


def check_adapted(plan: Plan, num_copies: int) -> None:
    """`num_copies`: devices of a pipeline that have a stage.

    Raises PlanError for schedules with copies of a stage (of one that is frozen nothing would be added up), and for a split
    vocabulary where the first blocks are frozen: its passes want the gradient of the first stage's input, which nothing
    else would need.
    """
    if num_copies > 1:
        raise PlanError(
            f"{plan.model.name} has frozen parameters, and schedule = {plan.schedule} has {num_copies} copies of a stage",
            allowed="schedules with every stage on one device of a pipeline",
        )
    if is_vocabulary_split(plan) and first_trained_block(plan.model) > 0:
        raise PlanError(
            f"nothing trains in the first {first_trained_block(plan.model)} blocks of {plan.model.name}, and the plan has "
            f"vocabulary = {plan.vocabulary}",
            allowed='vocabulary "ends" for it, or low-rank additions to all blocks',
        )
