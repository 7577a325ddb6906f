"""First values of parameters, keyed by (seed, name), so that every partition of layers starts alike."""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.executor.randomness import keyed_generator, random_key

# Standard deviation of matrices in GPT-2 (Radford et al., 2019) and most decoders since.
MATRIX_STD = 0.02
# What adds to the residual stream is divided by sqrt(additions) as in GPT-2: two additions a block.
RESIDUAL_ADDITIONS_PER_BLOCK = 2
RESIDUAL_OUTPUTS = ("attention_output.weight", "down.weight")


def initial_value(
    name: str, shape: tuple[int, ...], num_layers: int, seed: int, dtype: torch.dtype
) -> Tensor:
    """The first value of the parameter with the model-wide name `name`, drawn on CPU in float32.

    Vectors that scale (norms) are one, biases zero, matrices normal. All dtypes start from one draw.
    """
    if name.endswith(".bias"):
        return torch.zeros(shape, dtype=dtype)
    if "norm" in name:
        return torch.ones(shape, dtype=dtype)
    std = MATRIX_STD
    if name.endswith(RESIDUAL_OUTPUTS):
        std /= (RESIDUAL_ADDITIONS_PER_BLOCK * num_layers) ** 0.5
    generator = keyed_generator(random_key(seed, name))
    drawn = torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
    return drawn.to(dtype)
