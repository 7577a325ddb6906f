"""SwiGLU's product: silu(gate) * up, with a backward that evaluates the exponential only once more.

Shapes: input [..., 2I], gate in the first half of the last dimension, up in the second; output [..., I].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def gated_silu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up: [..., 2I] -> [..., I]."""
    return _GatedSilu.apply(gate_up)  # type: ignore[no-untyped-call, no-any-return]


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        activated = F.silu(gate)
        ctx.save_for_backward(gate_up, activated)
        return activated * up

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        gate_up, activated = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        # Both halves are written where they belong: no concatenation, and nothing beside.
        gradient = torch.empty_like(gate_up)
        dgate, dup = gradient.chunk(2, -1)
        torch.mul(dy, activated, out=dup)
        torch.mul(dy, up, out=dgate)
        torch.ops.aten.silu_backward.grad_input(dgate, gate, grad_input=dgate)
        return gradient
