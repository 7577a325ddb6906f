"""Optimizers: what a rule of update keeps for every parameter, what a step of it moves and computes.

A rule of one's own is a frozen dataclass derived from `UpdateRule`, whose fields are its options:

    @dataclass(frozen=True)
    class Lion(UpdateRule):
        betas: tuple[float, float] = (0.9, 0.99)
        state = {"exp_avg": ""}
        flops = 9

        def update(self, value, gradient, state, rate, decay): ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.option import option
from meshwright.specs.plan.option import with_options
from meshwright.specs.slot import Reference, resolve

TOUCHES, STATE_TOUCHES = 3, 2  # reads value and gradient, writes the value; reads and writes what it keeps


@dataclass(frozen=True)
class UpdateRule:
    """What a step does with a parameter.

    ``is_elementwise``: every number is stepped by its own gradient and state alone, so that a shard may be cut anywhere.
    ``flops``: of one number. ``counts_steps``: its state also holds "step", the steps taken with this one, a tensor.

    One that is not the core's has ``update(value, gradient, state, rate, decay)``: it changes `value` and the tensors of
    `state` in place, all of the parameter's shape; `decay` is 0 where the parameter does not decay.
    """

    is_elementwise: ClassVar[bool] = True
    counts_steps: ClassVar[bool] = False
    flops: ClassVar[int] = 0

    @property
    def state(self) -> Mapping[str, str]:
        """Tensors that it keeps for every parameter, of its shape: name -> format; "": that of what is stepped."""
        return {}

    def kept_bytes(self, dtype: str) -> int:
        """Of one number that is stepped in `dtype`. Raises UnknownNameError for an unknown format."""
        return sum(dtype_bytes(kind or dtype) for kind in self.state.values())

    def moved_bytes(self, dtype: str) -> int:
        """That a step reads and writes of one number, of its gradient and of what is kept for it."""
        return TOUCHES * dtype_bytes(dtype) + STATE_TOUCHES * self.kept_bytes(dtype)


@dataclass(frozen=True)
class AdamW(UpdateRule):
    """Adam with decay of the weights beside the gradient (Loshchilov and Hutter, arXiv 1711.05101).

    Defaults of Llama's training (Touvron et al. 2023, arXiv 2302.13971).
    """

    betas: tuple[float, float] = option((0.9, 0.95), "Shares of the moments that a step keeps.")
    epsilon: float = option(1e-8, "Added to the root of the second moment.")
    counts_steps = True
    flops = 14  # decay 1, moments 6, bias corrections 2, root, sum, quotient, product, sum
    state = {"exp_avg": "", "exp_avg_sq": ""}

    def __post_init__(self) -> None:
        if self.epsilon <= 0 or not all(0 <= beta < 1 for beta in self.betas):
            raise SpecError(
                f"AdamW with betas {self.betas}, epsilon {self.epsilon}",
                allowed="betas from 0 to below 1, an epsilon above 0",
            )


@dataclass(frozen=True)
class SGD(UpdateRule):
    """Against the gradient, with or without momentum (Polyak 1964)."""

    momentum: float = option(0.0, "Share of the last steps that is taken again.", least=0)
    flops = 6  # decay 2, momentum 2, product and sum

    @property
    def state(self) -> Mapping[str, str]:
        """The momentum, where there is one."""
        return {"momentum_buffer": ""} if self.momentum else {}


OPTIMIZERS: Mapping[str, type[UpdateRule]] = {"adamw": AdamW, "sgd": SGD}


def update_rule(reference: str) -> UpdateRule:
    """What a name in the slot says. Raises PlanError."""
    made = _own(reference) or resolve("optimizer", reference)
    if not isinstance(made, UpdateRule):
        raise PlanError(f"optimizer {reference} is {made!r}", allowed="a dataclass derived from UpdateRule")
    return made


@cache
def _own(text: str) -> Any:
    reference = Reference.of(text)
    if reference.name not in OPTIMIZERS:
        return None
    return with_options(OPTIMIZERS[reference.name], dict(reference.options), f"optimizer {reference.name}")
