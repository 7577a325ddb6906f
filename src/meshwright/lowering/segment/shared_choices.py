"""The pass by which devices that share sequences tell each other which experts every token goes to."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.specs.error import PlanError
from meshwright.specs.option import option
from meshwright.specs.plan.plan import SHARE_CHOICES, Plan


@dataclass(frozen=True)
class SharedChoices:
    """Behind every router the devices that share sequences, along cp and tp, gather what their tokens have chosen
    (GATHER_CHOSEN), so that each knows where those of whole sequences go: what a capacity keeps, and what a balance counts.
    `train` names it where a recipe asks.

    Its rows are in the chains of stages (`stage/chain/part`), which are made before any pass runs: it only says so.
    """

    gates: bool = option(False, help="gates are told, too: by them a capacity keeps the largest")
    name = SHARE_CHOICES
    after = ("refine",)
    before = ()

    def check(self, plan: Plan) -> None:
        """Raise PlanError where routers see whole sequences, or chunks of them, or nobody chooses."""
        if not plan.divides_routed_sequences or plan.model.hands_on_results or plan.has_chunks:
            raise PlanError(
                f"choices of experts are told by devices that share sequences: {plan.product_text()}, {plan.model.name}",
                allowed="cp above 1, or experts that fold apart from a tp that divides tokens; a mixture of experts without "
                "a ladder residual, whose sequences are not cut into chunks",
                next="leave the pass out: `train` names it where a capacity or a balance asks for it",
            )

    def made(self, lowering: Lowering) -> Pass | None:
        """Nothing more than what the chains have."""
        return None
