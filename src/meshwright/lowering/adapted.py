"""Plans of models of which only a part trains, or that have low-rank additions: what lowering does of them."""

from __future__ import annotations

from meshwright.lowering.refine import is_vocabulary_split
from meshwright.specs.error import PlanError
from meshwright.specs.plan import Plan


def check_adapted(plan: Plan, num_copies: int) -> None:
    """Frozen parameters are whole on every device that has them. `num_copies`: devices of a pipeline that have a stage.

    Raises PlanError for state that is sharded, for a split vocabulary, for schedules with copies of a stage (of one that is
    frozen nothing would be added up), and for additions with tensor parallelism.
    """
    if not plan.model.is_adapted:
        return
    asked = {
        f"sharding = {plan.sharding}": plan.sharding != "none",
        "a split vocabulary": is_vocabulary_split(plan),
        f"schedule = {plan.schedule}, with {num_copies} copies of a stage": num_copies > 1,
        f"low-rank additions with tp = {plan.tp}": plan.model.lora_rank > 0 and plan.tp > 1,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise PlanError(
                f"{plan.model.name} has frozen parameters, and the plan {name}",
                allowed="sharding none, every stage on one device and every table on one stage, additions with tp 1",
                next="what is frozen has no gradient and no optimizer state that could be sharded",
            )
