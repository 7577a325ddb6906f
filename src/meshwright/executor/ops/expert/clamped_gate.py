"""GPT-OSS's product of gate and up, both clamped: (up + 1) * gate * sigmoid(alpha * gate).

Shapes: input [..., 2I], gate in the first half of the last dimension, up in the second; output [..., I].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.specs.model.shape import GATE_ALPHA, GATE_LIMIT


def clamped_gate(gate_up: Tensor) -> Tensor:
    """[..., 2I] -> [..., I]; the gate is at most `GATE_LIMIT`, up within it on both sides."""
    return _ClampedGate.apply(gate_up)  # type: ignore[no-untyped-call, no-any-return]


class _ClampedGate(torch.autograd.Function):
    """Keeps its input alone: everything else is computed once more in the backward."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up, sigmoid = _clamped(gate_up)
        return (up + 1) * gate * sigmoid

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up, sigmoid = _clamped(gate_up)
        given_gate, given_up = gate_up.chunk(2, -1)
        dgate = dy * (up + 1) * sigmoid * (1 + GATE_ALPHA * gate * (1 - sigmoid))
        dgate = dgate.masked_fill(given_gate > GATE_LIMIT, 0.0)
        dup = (dy * gate * sigmoid).masked_fill(given_up.abs() > GATE_LIMIT, 0.0)
        return torch.cat((dgate, dup), -1)


def _clamped(gate_up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gate, up, and the sigmoid of the gate."""
    gate, up = gate_up.chunk(2, -1)
    gate = gate.clamp(max=GATE_LIMIT)
    return gate, up.clamp(-GATE_LIMIT, GATE_LIMIT), torch.sigmoid(GATE_ALPHA * gate)
