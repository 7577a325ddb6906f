"""Plans of models of which only a part trains, or that have low-rank additions: what lowering does of them."""

from __future__ import annotations

from meshwright.lowering.refine import is_vocabulary_split
from meshwright.specs.error import PlanError
from meshwright.specs.plan import Plan


def check_adapted(plan: Plan) -> None:
    """Frozen parameters are whole on every device that has them.

    Raises PlanError for state that is sharded, for a split vocabulary, and for additions with tensor parallelism.
    """
    if not plan.model.is_adapted:
        return
    asked = {
        f"sharding = {plan.sharding}": plan.sharding != "none",
        "a split vocabulary": is_vocabulary_split(plan),
        f"low-rank additions with tp = {plan.tp}": plan.model.lora_rank > 0 and plan.tp > 1,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise PlanError(
                f"{plan.model.name} has frozen parameters, and the plan {name}",
                allowed="sharding none, every table on one stage, additions with tp 1",
                next="what is frozen has no gradient and no optimizer state that could be sharded",
            )
