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
# What the executor's router does of each; X-MoE's logits are cosines, which it does not make.
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
    """The model with another routing function in all its layers of experts: gshard (the two best, gates over their sum) or
    sigmoid (of the best logits each); the same parameters, to be trained so."""

    gate: str = option(
        "gshard", f"One of {', '.join(FUNCTIONS)}; the last two say why they do not train here."
    )

    def __call__(self, model: ModelSpec) -> ModelSpec:
        """Raises SpecError where no layer has experts, and for functions that `train` has not, with the reason."""
        if self.gate not in FUNCTIONS:
            raise SpecError(f"gate={self.gate!r}", allowed=", ".join(FUNCTIONS))
        if self.gate == "expert_choice":
            raise SpecError(
                f"gate=expert_choice for {model.name}, a decoder", allowed=f"gshard, sigmoid: {NOT_CAUSAL}",
                next=f"an encoder of your own takes {HERE}.expert_choice",
            )  # fmt: skip
        if self.gate == "x_moe":
            raise SpecError(
                f"gate=x_moe for {model.name}, whose routers are matrices",
                allowed="gshard, sigmoid: cosines need a projection and embeddings of experts, which no model here has",
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
        wanted = ROUTINGS[self.gate]
        is_usual = usual.routing_in(family) == wanted
        return replace(block, feed_forward=usual if is_usual else replace(usual, routing=wanted))
