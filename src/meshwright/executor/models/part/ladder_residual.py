"""A ladder residual: every part of a block reads the residual stream without the result of the part right before it.

    x_j = x_{j-1} + y_{j-2},  y_j = F_j(x_j)    (Zhang et al. 2025, arXiv 2501.06589; F: attention and MLP in turn)

Between stages the stream goes as one tensor with the result that it lacks. Shapes: B samples, S tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def apart(x_BSF: Tensor) -> tuple[Tensor, Tensor]:
    """The stream [B, S, E], and the result that it lacks; F is 2 E."""
    stream_BSE, late_BSE = x_BSF.chunk(2, -1)
    return stream_BSE.contiguous(), late_BSE.contiguous()


def beside(stream_BSE: Tensor, late_BSE: Tensor | None) -> Tensor:
    """Both in one tensor [B, S, 2 E]; None: the stream lacks nothing."""
    return torch.cat([stream_BSE, torch.zeros_like(stream_BSE) if late_BSE is None else late_BSE], -1)


def run_ladder(
    x_BSE: Tensor, late_BSE: Tensor | None, parts: Iterable[Callable[[Tensor], Tensor]]
) -> tuple[Tensor, Tensor | None]:
    """The stream behind parts, each of which says what it adds to it; and what it lacks then."""
    for part in parts:
        result_BSE = part(x_BSE)
        x_BSE = x_BSE if late_BSE is None else x_BSE + late_BSE
        late_BSE = result_BSE
    return x_BSE, late_BSE


def run_branches(
    x_BSE: Tensor, late_BSE: Tensor | None, parts: Iterable[Callable[[Tensor], Tensor]]
) -> tuple[Tensor, Tensor | None]:
    """The stream, which all parts read, and the sum of what they add to it."""
    for part in parts:
        result_BSE = part(x_BSE)
        late_BSE = result_BSE if late_BSE is None else late_BSE + result_BSE
    return x_BSE, late_BSE
