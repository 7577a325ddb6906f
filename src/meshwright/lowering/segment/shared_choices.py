"""The pass by which devices that share sequences tell each other which experts every token goes to."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.specs.error import PlanError
from meshwright.specs.option import option
from meshwright.specs.plan.plan import SHARE_CHOICES, Plan


@dataclass(frozen=True)
class SharedChoices:
    """Behind every router the devices along cp gather what their tokens have chosen (GATHER_CHOSEN), so that each knows where
    those of whole sequences go: what a capacity keeps, and what a balance counts. `train` names it where a recipe asks.

    Its rows are in the chains of stages (`stage/chain/part`), which are made before any pass runs: it only says so.
    """

    gates: bool = option(False, help="gates are told, too: by them a capacity keeps the largest")
    name = SHARE_CHOICES
    after = ("refine",)
    before = ()

    def check(self, plan: Plan) -> None:
        """Raise PlanError where no sequence is shared, nobody chooses, or routers see a part of what is told."""
        if plan.cp == 1 or not plan.model.num_experts or plan.model.hands_on_results:
            raise PlanError(
                f"choices of experts are told along cp({plan.cp}), of {plan.model.name}",
                allowed="cp above 1, and a mixture of experts without a ladder residual or parallel branches",
                next="leave the pass out: `train` names it where a capacity or a balance asks for it",
            )
        if plan.tp > 1 and plan.sequence_parallel:
            raise PlanError(
                "choices of experts are told along cp, and sequence parallelism divides tokens along tp, too",
                allowed="cp with tp = 1, or without sequence parallelism",
                next="leave one of the two out",
            )

    def made(self, lowering: Lowering) -> Pass | None:
        """Nothing more than what the chains have."""
        return None
