"""A model of which a part trains, in one process of plain torch: additions made whole matrices for every forward.

Shapes: B samples, S tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder
from torch import Tensor

from meshwright.executor.models.decoder import build_model
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.training_job import RandomTokens
from meshwright.specs.model.adaptation import lora_scale, trains
from meshwright.specs.model.model import ModelSpec
from tests.training_case import SEQUENCE, torch_optimizer


class AdaptedPlain(torch.nn.Module):
    """The whole model in plain torch; the additions are made whole matrices for every forward."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        first = build_model(model, torch.float64)
        values = {name: p.detach().clone() for name, p in first.global_parameters().items()}
        self.model, self.given = model, {name: x for name, x in values.items() if not trains(model, name)}
        chosen = {n.replace(".", "/"): torch.nn.Parameter(x) for n, x in values.items() if trains(model, n)}
        self.chosen = torch.nn.ParameterDict(chosen)
        torch.set_default_dtype(torch.float64)
        try:
            self.plain = [PlainDecoder(model.base)]  # in a list: its own parameters are not this module's
        finally:
            torch.set_default_dtype(torch.float32)

    def named(self) -> dict[str, torch.nn.Parameter]:
        """What trains, by the executor's names."""
        return {name.replace("/", "."): p for name, p in self.chosen.items()}

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Logits."""
        trained = self.named()
        values = {**self.given, **trained}
        for name in [n for n in trained if ".lora_a." in n]:
            a, b = trained[name], trained[name.replace("lora_a", "lora_b")]
            whole = name.replace(".lora_a", "")
            values[whole] = values[whole] + lora_scale(self.model) * b @ a
        used = {n: x for n, x in values.items() if ".lora_" not in n}
        found: Tensor = torch.func.functional_call(self.plain[0], used, (tokens_BS,), tie_weights=True)
        return found


def adapted_reference(
    model: ModelSpec, config: OptimizerConfig, batch: int, iterations: int
) -> tuple[list[float], list[dict[str, Tensor]], AdaptedPlain]:
    """Losses and gradients of every step, and what is there behind the last."""
    module = AdaptedPlain(model)
    optimizer = torch_optimizer(module, config)
    losses, gradients = [], []
    for step in range(iterations):
        tokens_BS, targets_BS = RandomTokens(32).batch(0, step, range(batch), SEQUENCE)
        optimizer.zero_grad()
        loss = F.cross_entropy(module(tokens_BS).flatten(0, 1), targets_BS.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        gradients.append({n: p.grad.clone() for n, p in module.named().items() if p.grad is not None})
        optimizer.step()
    return losses, gradients, module


def gradient_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Gradients that are zero (of A, before B has moved) are compared as they are."""
    assert set(ours) == set(theirs)
    return max(
        float((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max().clamp(min=1e-3)) for n in theirs
    )
