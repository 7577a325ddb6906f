"""Tensors of GPT-OSS's experts as its files have them: matrices (inputs, outputs), gate and up one row after the other.

Shapes: X experts, O outputs, I inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.specs.model.model import ModelSpec

GATE_UP = "expert_gate_up"
OF_EXPERTS = (GATE_UP, "expert_down")


def is_published_apart(model: ModelSpec, leaf: str) -> bool:
    """Has a module of this name another layout in the files of the model's family?"""
    return model.has_expert_bias and leaf in OF_EXPERTS


def to_ours(leaf: str, theirs: Tensor) -> Tensor:
    """[X, I, O], or of a bias [X, O]: ours is [X, O, I], gates before all of up."""
    ours = theirs.transpose(1, 2) if theirs.dim() == 3 else theirs
    if leaf == GATE_UP:
        ours = torch.cat((ours[:, 0::2], ours[:, 1::2]), 1)
    return ours.contiguous()


def to_theirs(leaf: str, ours: Tensor) -> Tensor:
    """The other way round."""
    if leaf == GATE_UP:
        ours = torch.stack(ours.chunk(2, 1), 2).flatten(1, 2)
    return (ours.transpose(1, 2) if ours.dim() == 3 else ours).contiguous()
