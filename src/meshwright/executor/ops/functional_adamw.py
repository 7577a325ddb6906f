"""AdamW as a function of tensors: for programs whose weights and moments are values of the program.

Shapes: N numbers, flat.
"""

from __future__ import annotations

import torch
from torch import Tensor


def adamw(
    weight_N: Tensor,
    gradient_N: Tensor,
    moments_2N: Tensor,
    step: int,
    rate: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    decay: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Weights and moments behind step `step`, counted from 1 (Loshchilov and Hutter, arXiv 1711.05101); none is changed."""
    first, second = moments_2N
    first = first.lerp(gradient_N, 1 - betas[0])
    second = second.lerp(gradient_N**2, 1 - betas[1])
    scale = (second / (1 - betas[1] ** step)).sqrt() + epsilon
    changed = weight_N * (1 - rate * decay) - rate / (1 - betas[0] ** step) * first / scale
    return changed, torch.stack([first, second])
