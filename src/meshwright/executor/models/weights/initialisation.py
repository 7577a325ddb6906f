"""First values of parameters: drawn by (seed, name), so that every partition of layers starts alike, or from a folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.specs.model.adaptation import LORA_A, LORA_B
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.source import PathLike

# Standard deviation of matrices in GPT-2 (Radford et al., 2019) and most decoders since.
MATRIX_STD = 0.02
# What adds to the residual stream is divided by sqrt(additions) as in GPT-2: two additions a block.
RESIDUAL_ADDITIONS_PER_BLOCK = 2
COSINE_TEMPERATURE = 0.07  # at which X-MoE begins (Chi et al. 2022, arXiv 2204.09179)
RESIDUAL_OUTPUTS = ("attention_output.weight", "down.weight")


class ParameterSource(Protocol):
    """Where parameters come from before the first step."""

    def value(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The first value, on CPU, of the whole parameter with this name in the whole model."""


@dataclass(frozen=True)
class RandomValues:
    """Drawn by `seed` and name for a model of `num_layers` layers."""

    num_layers: int
    seed: int = 0

    def value(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `initial_value`."""
        return initial_value(name, shape, self.num_layers, self.seed, dtype)


@dataclass(frozen=True)
class WithAdditions:
    """Low-rank additions are drawn, everything else is `given`."""

    given: ParameterSource
    drawn: RandomValues

    def value(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `ParameterSource`."""
        is_addition = f".{LORA_A}." in name or f".{LORA_B}." in name
        source = self.drawn if is_addition else self.given
        return source.value(name, shape, dtype)


def parameter_source(model: ModelSpec, seed: int, folder: PathLike | None = None) -> ParameterSource:
    """Values from a Hugging Face folder, or drawn where none is named.

    Raises:
        ExecutionError: the folder does not hold this model.
    """
    if folder is None:
        return RandomValues(model.num_layers, seed)
    from meshwright.executor.models.weights.hugging_face import (
        HuggingFaceSource,
    )  # safetensors is asked for only here

    return WithAdditions(HuggingFaceSource(folder, model), RandomValues(model.num_layers, seed))


def initial_value(
    name: str, shape: tuple[int, ...], num_layers: int, seed: int, dtype: torch.dtype
) -> Tensor:
    """The first value of the parameter with the model-wide name `name`, drawn on CPU in float32.

    Vectors that scale (norms) are one, matrices normal; biases, corrections and the second factors of low-rank additions
    zero, temperatures of routers `COSINE_TEMPERATURE`. All dtypes start from one draw.
    """
    if name.endswith((".bias", ".correction", f"{LORA_B}.weight")):
        return torch.zeros(shape, dtype=dtype)
    if name.endswith(".router.temperature"):
        return torch.full(shape, COSINE_TEMPERATURE, dtype=dtype)
    if "norm" in name:
        return torch.ones(shape, dtype=dtype)
    std = MATRIX_STD
    if name.endswith(RESIDUAL_OUTPUTS):
        std /= (RESIDUAL_ADDITIONS_PER_BLOCK * num_layers) ** 0.5
    generator = keyed_generator(random_key(seed, name))
    drawn = torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
    return drawn.to(dtype)
