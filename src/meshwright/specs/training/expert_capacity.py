"""ExpertCapacity: how many tokens of a sequence an expert takes at most, and which of more are dropped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.training.router_losses import WHOLE_SEQUENCES, sees_whole_sequences

POSITION, PROBABILITY = "position", "probability"
DROPS = (POSITION, PROBABILITY)


@dataclass(frozen=True)
class ExpertCapacity:
    """Of each sequence of S tokens, which go to K of X experts each, an expert takes ceil(``factor`` K S / X); 0: all
    (GShard, Lepikhin et al. 2020, arXiv 2006.16668; Switch, Fedus et al. 2021, arXiv 2101.03961).

    ``drop``: of more than that those that come last ("position"), or with the least gates ("probability", of equal ones the
    last), are not sent, and add nothing; gates of other experts stay as they are. Sequences, not microbatches or devices,
    have a capacity: so every layout drops the same.
    """

    factor: float = 0.0
    drop: str = POSITION

    def __post_init__(self) -> None:
        if not 0 <= self.factor < math.inf:
            raise SpecError(
                f"a capacity factor of {self.factor}", allowed="a number from 0; 0: none is dropped"
            )
        if self.drop not in DROPS:
            raise SpecError(f"tokens dropped by {self.drop!r}", allowed=" or ".join(DROPS))

    def __bool__(self) -> bool:
        return self.factor > 0

    def of_sequence(self, sequence_length: int, num_experts: int, num_per_token: int) -> int:
        """Tokens of a sequence that an expert takes at most."""
        factor = Fraction(str(self.factor))  # as it is written: 1.1 x 10 is 11
        return math.ceil(factor * num_per_token * sequence_length / num_experts)

    def check(self, plan: Plan) -> None:
        """Raise SpecError where the model has no experts, PlanError where a device has a part of a sequence only and cannot
        count where the sequence's tokens go."""
        if not self:
            return
        self.check_model(plan.model)
        if not sees_whole_sequences(plan):
            raise PlanError(
                "a capacity of experts, which counts where the tokens of a sequence go, and routers that see a part of one: "
                "no row of a program tells them what the others chose",
                allowed=WHOLE_SEQUENCES,
                next="plan so, or train dropless, with a balance by --router-bias-update-rate or --z-loss",
            )

    def check_model(self, model: ModelSpec) -> None:
        """Raise SpecError where it has no router, or its blocks are those of an encoder-decoder."""
        if not any(block.experts for block in model.kinds) or model.num_encoder_layers:
            raise SpecError(
                f"a capacity of experts, and {model.name} has none, or an encoder",
                allowed="decoders with experts",
            )
