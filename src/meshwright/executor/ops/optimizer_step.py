"""The optimizer's step on a list of parameters, with the gradient norm: AdamW or SGD of torch, fused, or another rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from meshwright.specs.error import ExecutionError
from meshwright.specs.plan.optimizer import SGD, AdamW, UpdateRule, update_rule
from meshwright.specs.slot import Reference
from meshwright.specs.training.recipe import Recipe

# torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6; the same here, so both clip to the same number.
CLIP_EPSILON = 1e-6


@dataclass(frozen=True)
class OptimizerConfig:
    """What a step does: the optimizer as its slot names it, with its options (`specs.plan.optimizer`), and its numbers.

    `weight_decay` acts on matrices only (parameters of two dimensions and more). `clip_norm` None: no clipping.
    """

    name: str = "adamw"
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    clip_norm: float | None = 1.0

    @staticmethod
    def of(recipe: Recipe, optimizer: str, clip_norm: float | None) -> OptimizerConfig:
        """An optimizer with the numbers of a recipe, by a name that workers in any folder find. Raises SpecError."""
        name = str(Reference.of(recipe.rule(optimizer)).absolute())
        return OptimizerConfig(name, recipe.learning_rate, recipe.weight_decay, clip_norm)

    @property
    def rule(self) -> UpdateRule:
        """What stands behind the name. Raises PlanError."""
        return update_rule(self.name)


@dataclass(frozen=True, eq=False)
class StepCopy:
    """Parameters and the optimizer's state of each, as they were when it was made."""

    parameters: tuple[Tensor, ...]
    states: tuple[dict[str, Tensor], ...]


class Optimizer:
    """One step after another on the same parameters.

    The norm is asked for apart from the step, because with several stages it is a sum over ranks:

        norm = global_norm(all_reduce(step.squared_norm()))
        step.run(norm)
    """

    def __init__(
        self, parameters: Iterable[Tensor], config: OptimizerConfig, decayed: Sequence[bool] | None = None
    ) -> None:
        """`decayed`: which of them decay, where their shapes do not say it (parts of a flat buffer)."""
        self.parameters: Sequence[Tensor] = list(parameters)
        self.config = config
        chosen = [p.dim() >= 2 for p in self.parameters] if decayed is None else decayed
        decays = [config.weight_decay * is_decayed for is_decayed in chosen]
        self.optimizer = (
            TensorStep(self.parameters, decays, config.rule, config.learning_rate)
            if self.parameters
            else None
        )

    def squared_norm(self, counted: Sequence[bool] | None = None) -> Tensor:
        """Sum of squares of all gradients here, or of those `counted`, a float64 scalar on the parameters' device.

        Raises ExecutionError naming how many parameters have no gradient: a step would skip them silently.
        """
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if len(gradients) != len(self.parameters):
            raise ExecutionError(
                f"{len(self.parameters) - len(gradients)} of {len(self.parameters)} parameters have no gradient",
                next="run every backward (B, or I and W) of the step before it",
            )
        if counted is not None:
            gradients = [
                gradient for gradient, is_counted in zip(gradients, counted, strict=True) if is_counted
            ]
        if not gradients:
            return torch.zeros((), dtype=torch.float64)
        norms = torch._foreach_norm(gradients)
        return torch.stack([norm.to(torch.float64) for norm in norms]).square().sum()

    def run(
        self, norm: float | None = None, learning_rate: float | None = None, *, clips: bool = True
    ) -> None:
        """Clip by `norm` (of all ranks; None: of the parameters here), unless not `clips`, and update the parameters."""
        if self.optimizer is None:
            return
        if clips:
            self._clip(norm)
        if learning_rate is not None:
            self.optimizer.rate = learning_rate
        self.optimizer.run()

    def _clip(self, norm: float | None) -> None:
        if self.config.clip_norm is None:
            return
        if norm is None:
            norm = float(self.squared_norm().sqrt())
        factor = self.config.clip_norm / (norm + CLIP_EPSILON)
        if factor < 1.0:
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], factor)

    def exceeds(self, norm: float) -> bool:
        """Are gradients of this norm clipped?"""
        return self.config.clip_norm is not None and self.config.clip_norm / (norm + CLIP_EPSILON) < 1.0

    def copy(self) -> StepCopy:
        """What `run` changes, once more: parameters and the optimizer's state."""
        state = {} if self.optimizer is None else self.optimizer.state
        return StepCopy(
            tuple(p.detach().clone() for p in self.parameters),
            tuple({name: value.clone() for name, value in state.get(p, {}).items()} for p in self.parameters),
        )

    def put_back(self, kept: StepCopy) -> None:
        """Undo what has been run since the copy was made."""
        if self.optimizer is None:
            return
        with torch.no_grad():
            for parameter, before, state in zip(self.parameters, kept.parameters, kept.states, strict=True):
                parameter.copy_(before)
                for name, value in state.items():
                    self.optimizer.state[parameter][name].copy_(value)

    def zero(self) -> None:
        """Forget all gradients; the next backward writes them without adding."""
        for parameter in self.parameters:
            parameter.grad = None


class TensorStep:
    """What a step does with tensors, and what is kept for each: AdamW and SGD by torch's functions, fused (on CPU and CUDA
    since torch 2.4): one kernel for all of them; another rule one tensor after the other.

    They are not torch's classes: the first of these that a process makes imports torch's compiler, which takes as much
    processor time as torch itself, and compiles nothing here.

    ``rate``: the learning rate of the next step. ``state``: by tensor and name; made here, so that its memory is there from
    the start and a checkpoint has somewhere to go.
    """

    def __init__(
        self, tensors: Sequence[Tensor], decays: Sequence[float], rule: UpdateRule, rate: float
    ) -> None:
        self.rate, self.state = rate, {tensor: _first_state(tensor, rule) for tensor in tensors}
        self._rule, self._update = rule, cast("Callable[..., None] | None", getattr(rule, "update", None))
        if self._update is None and not isinstance(rule, AdamW | SGD):
            raise ExecutionError(
                f"optimizer {rule} has no update(value, gradient, state, rate, decay)",
                allowed="a rule that says it",
            )
        self._is_fused = all(tensor.is_floating_point() for tensor in tensors)
        self._by_decay: dict[float, list[Tensor]] = {}
        for tensor, decay in zip(tensors, decays, strict=True):
            self._by_decay.setdefault(decay, []).append(tensor)

    @torch.no_grad()
    def run(self) -> None:
        """Every tensor by its gradient; one without stays what it is."""
        for decay, members in self._by_decay.items():
            tensors = [tensor for tensor in members if tensor.grad is not None]
            gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
            if not tensors:
                continue
            if isinstance(self._rule, AdamW):
                self._adamw(self._rule, tensors, gradients, decay)
            elif isinstance(self._rule, SGD):
                self._sgd(self._rule, tensors, gradients, decay)
            else:
                self._one_by_one(tensors, gradients, decay)

    def _adamw(self, rule: AdamW, tensors: list[Tensor], gradients: list[Tensor], decay: float) -> None:
        beta1, beta2 = rule.betas
        adamw(
            tensors, gradients, self._kept(tensors, "exp_avg"), self._kept(tensors, "exp_avg_sq"), [],
            self._kept(tensors, "step"), fused=self._is_fused, amsgrad=False, beta1=beta1, beta2=beta2, lr=self.rate,
            weight_decay=decay, eps=rule.epsilon, maximize=False,
        )  # fmt: skip

    def _sgd(self, rule: SGD, tensors: list[Tensor], gradients: list[Tensor], decay: float) -> None:
        momenta: list[Tensor | None] = [self.state[tensor].get("momentum_buffer") for tensor in tensors]
        sgd(
            tensors, gradients, momenta, fused=self._is_fused, weight_decay=decay, momentum=rule.momentum,
            lr=self.rate, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip

    def _one_by_one(self, tensors: list[Tensor], gradients: list[Tensor], decay: float) -> None:
        assert self._update is not None, "asked for when this was made"
        for tensor, gradient in zip(tensors, gradients, strict=True):
            if self._rule.counts_steps:
                self.state[tensor]["step"] += 1
            self._update(tensor, gradient, self.state[tensor], self.rate, decay)

    def _kept(self, tensors: list[Tensor], name: str) -> list[Tensor]:
        return [self.state[tensor][name] for tensor in tensors]


def _first_state(tensor: Tensor, rule: UpdateRule) -> dict[str, Tensor]:
    made = {
        name: torch.zeros_like(tensor, dtype=_format(kind) if kind else tensor.dtype)
        for name, kind in rule.state.items()
    }
    if rule.counts_steps:
        made["step"] = torch.zeros((), dtype=torch.float32, device=tensor.device)
    return made


def _format(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ExecutionError(
            f"an optimizer keeps {name}, in which torch has no tensors", allowed="float32, bfloat16, ..."
        )
    return found
