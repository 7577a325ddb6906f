"""Lion as an optimizer: the sign of an interpolation between the momentum and the gradient, and one tensor of state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.specs.option import option
from meshwright.specs.plan.optimizer import UpdateRule


@dataclass(frozen=True)
class Lion(UpdateRule):
    """Steps of one size in every direction, whose signs are those of a momentum (arXiv 2302.06675, algorithm 2)."""

    betas: tuple[float, float] = option(
        (0.9, 0.99), "Shares of the momentum in the step, and in the next momentum."
    )
    flops = 11  # two interpolations of 3, sign, decay 2, product and sum
    state = {"exp_avg": ""}

    def update(self, value: Any, gradient: Any, state: Mapping[str, Any], rate: float, decay: float) -> None:
        """Tensors of torch, in place."""
        momentum = state["exp_avg"]
        direction = momentum.lerp(gradient, 1 - self.betas[0]).sign()
        value.mul_(1 - rate * decay).sub_(direction, alpha=rate)
        momentum.lerp_(gradient, 1 - self.betas[1])
