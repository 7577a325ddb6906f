"""Rotary positions as a table of complex numbers: one multiplication turns all pairs of a head.

Shapes: B samples, S positions, K heads, D numbers of a head, so D/2 pairs. Neighbouring numbers (2i, 2i + 1) are a pair, as
in "RoFormer" (Su et al., 2021, arXiv 2104.09864). Checkpoints that pair (i, i + D/2), the convention of
Hugging Face's Llama, have the rows of their query and key matrices permuted within each head on import.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.specs.error import ExecutionError
from meshwright.specs.model.rotary_scaling import RotaryScaling, rotary_frequencies


class Rotation(NamedTuple):
    """exp(i angle) for queries (times the attention scale), for keys, and their conjugates: [S, D/2], or of
    positions that differ between samples [B, 1, S, D/2].
    """

    query: Tensor
    key: Tensor
    query_back: Tensor
    key_back: Tensor


def frequencies(head_dim: int, theta: float, scaling: RotaryScaling | None = None) -> Tensor:
    """Angle of every pair at position 1, [D/2] in float64. Raises SpecError for a scaling not known here."""
    return torch.tensor(rotary_frequencies(head_dim, theta, scaling), dtype=torch.float64)


def rotation(
    num_positions: int,
    head_dim: int,
    theta: float,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    scaling: RotaryScaling | None = None,
) -> Rotation:
    """The table for positions 0 .. num_positions - 1; the scale 1 / sqrt(head_dim) is in the query's part, and in both
    what a scaling multiplies by.

    Angles are computed in float64; the table is complex128 for float64 and complex64 otherwise.
    Raises ExecutionError for an odd `head_dim`.
    """
    if head_dim % 2:
        raise ExecutionError(
            f"rotary positions turn pairs, head_dim is {head_dim}", allowed="an even head_dim"
        )
    positions_S = torch.arange(num_positions, dtype=torch.float64)
    angles = torch.outer(positions_S, frequencies(head_dim, theta, scaling))
    turn = torch.polar(torch.full_like(angles, scaling.turned_factor if scaling else 1.0), angles)
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64
    tables = (turn * head_dim**-0.5, turn, turn.conj() * head_dim**-0.5, turn.conj())
    return Rotation(*(table.to(wide).resolve_conj().to(device) for table in tables))


def turned_at(turn: Rotation, positions_BS: Tensor) -> Rotation:
    """The table's rows at these positions, for the heads [B, K, S, D] of a batch: [B, 1, S, D/2]."""
    return Rotation(*(table[positions_BS][:, None] for table in turn))


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """x [..., D] times turn (broadcast over [..., D/2]), differentiable; 16-bit inputs turn in float32."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    if pairs.dtype in (torch.bfloat16, torch.float16):
        pairs = pairs.float()
    turned = torch.view_as_real(torch.view_as_complex(pairs) * turn).flatten(-2)
    return turned.to(x.dtype)


def as_pairs(x: Tensor) -> Tensor:
    """A complex view of x [..., D] whose last dimension is contiguous: [..., D/2]."""
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
