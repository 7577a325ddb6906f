"""RoutingFunction: the slot `variant`, by which a model of one's own trains with another of the paper's routing functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.specs.error import SpecError
from meshwright.specs.model.block import BlockSpec, Experts, Routing
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.shape import Architecture
from meshwright.specs.option import option

TOP_TWO = 2  # GShard's experts of a token
LEAST_RANK = 2  # dimensions in which X-MoE's tokens and experts are compared; else half as many as experts, as published
# What a router does of its logits; X-MoE's are cosines, of a rank that depends on the experts.
ROUTINGS: Mapping[str, Routing] = {
    "gshard": Routing("softmax", has_unit_sum=True),
    "sigmoid": Routing("sigmoid", has_unit_sum=False),
    "x_moe": Routing("softmax", has_unit_sum=False),
}
FUNCTIONS = (*ROUTINGS, "expert_choice")
NOT_CAUSAL = "whether an expert takes a token depends on tokens behind it, which a decoder has not seen"
HERE = "meshwright.systems.moe.fs_moe.gates"


@dataclass(frozen=True)
class RoutingFunction:
    """The model with another routing function in all its layers of experts, to be trained so: gshard (the two best, gates
    over their sum), sigmoid (of the best logits each), or x_moe (cosines over a learned temperature, by other routers)."""

    gate: str = option("gshard", f"One of {', '.join(FUNCTIONS)}; the last says why it does not train here.")

    def __call__(self, model: ModelSpec) -> ModelSpec:
        """Raises SpecError where no layer has experts, and for functions that `train` has not, with the reason."""
        if self.gate not in FUNCTIONS:
            raise SpecError(f"gate={self.gate!r}", allowed=", ".join(FUNCTIONS))
        if self.gate == "expert_choice":
            raise SpecError(
                f"gate=expert_choice for {model.name}, a decoder", allowed=f"{', '.join(ROUTINGS)}: {NOT_CAUSAL}",
                next=f"an encoder of your own takes {HERE}.expert_choice",
            )  # fmt: skip
        if self.gate == "x_moe" and (model.has_expert_bias or model.is_adapted):
            why = "whose routers have biases" if model.has_expert_bias else "a part of which is frozen"
            raise SpecError(
                f"gate=x_moe for {model.name}, {why}",
                allowed="gshard, sigmoid; or a family without biases of experts, all of which trains",
                next=f"modules of your own take {HERE}.x_moe",
            )
        if not model.num_experts:
            raise SpecError(f"{model.name} has no experts", allowed="a mixture of experts")
        blocks = tuple((self._routed(block, model.architecture), count) for block, count in model.blocks)
        return replace(model, blocks=blocks)

    def _routed(self, block: BlockSpec, family: Architecture) -> BlockSpec:
        """A routing that is the family's own is not said, so that the model's configuration still can be written."""
        experts = block.feed_forward
        if not isinstance(experts, Experts):
            return block
        num = min(TOP_TWO, experts.num_experts) if self.gate == "gshard" else experts.num_experts_per_token
        usual = replace(experts, routing=None, num_experts_per_token=num)
        rank = max(LEAST_RANK, experts.num_experts // 2) if self.gate == "x_moe" else 0
        wanted = replace(ROUTINGS[self.gate], cosine_rank=rank)
        is_usual = usual.routing_in(family) == wanted
        return replace(block, feed_forward=usual if is_usual else replace(usual, routing=wanted))
