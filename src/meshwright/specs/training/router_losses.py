"""RouterLosses: what is added to the loss so that routers spread tokens over experts and keep their logits small."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan

WHOLE_SEQUENCES = (
    "sequences that are not cut into parts, and the pass share_choices where cp or tp divides them among routers; `train` "
    "names it"
)


@dataclass(frozen=True)
class RouterLosses:
    """Coefficients of two losses of every block with X experts, of which a token goes to K; 0: there is none.

    ``balance``: the mean over sequences of X / (K S^2) sum_x n_x p_x, where n_x of the K S choices of the sequence's S tokens
    are expert x, and p_x is the sum of its probabilities over these tokens (scores over their sum). It is 1 where all experts
    are alike, and a loss of Shazeer et al. 2017 in the form of Fedus et al. 2021 (Switch, arXiv 2101.03961), by sequences as
    DeepSeek-V2 and Megatron-LM's ``seq_aux_loss`` have it. Counts have no gradient.
    ``z``: the mean over tokens of log(sum exp(logits))^2 (Zoph et al. 2022, ST-MoE, arXiv 2202.08906).
    """

    balance: float = 0.0
    z: float = 0.0

    def __post_init__(self) -> None:
        for name in ("balance", "z"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise SpecError(f"a router's {name} loss times {value}", allowed="a number from 0")

    def __bool__(self) -> bool:
        return self.balance > 0 or self.z > 0

    def check(self, plan: Plan) -> None:
        """Raise SpecError where the model has no router, PlanError where a device has a part of a sequence only and cannot
        count where the sequence's tokens go."""
        if not self:
            return
        self.check_model(plan.model)
        if self.balance and not sees_whole_sequences(plan):
            raise PlanError(
                "a balance loss, which counts where the tokens of a sequence go, and routers that see a part of one",
                allowed=WHOLE_SEQUENCES,
                next="plan without them, or train with a z-loss alone",
            )

    def check_model(self, model: ModelSpec) -> None:
        """Raise SpecError where it has no router, or its blocks are those of an encoder-decoder."""
        if not any(block.experts for block in model.kinds) or model.num_encoder_layers:
            raise SpecError(
                f"losses of routers, and {model.name} has none, or an encoder",
                allowed="decoders with experts",
            )


def sees_whole_sequences(plan: Plan) -> bool:
    """Does every router know where all tokens go of each sequence that it sees any of?

    Those that share sequences tell each other, where the plan says so (`Plan.shared_choices`; `train` does). Of a microbatch
    that all ranks of tp have, those that do not share every expert look after equal runs of its samples; a stream that is
    divided has a part of each sequence on every rank, where experts fold apart from attention.
    """
    if plan.cp > 1 or plan.has_chunks:
        return plan.shared_choices != "none" and not plan.has_chunks
    if plan.shared_choices != "none":
        return True
    folds = plan.ep > 1 or plan.expert_tp != plan.tp
    if plan.tp == 1 or not folds:
        return True
    num_apart = plan.tp // min(plan.tp, plan.expert_tp)
    return not plan.sequence_parallel and all(part.num_samples % num_apart == 0 for part in plan.parts)
