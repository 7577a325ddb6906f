"""The tokens of one rank of a context-parallel group, or of a chunk, as tensors: their places, and what is theirs of a whole
sequence.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from meshwright.specs.sequence.sequence_part import OwnTokens


@lru_cache(maxsize=64)
def token_places(part: OwnTokens, device: torch.device | None = None) -> Tensor:
    """Places in the sequence of these tokens, int64 [s], rising; not to be written to."""
    return torch.cat([torch.arange(run.start, run.stop, run.step, device=device) for run in part.runs])


def own_tokens(x: Tensor, part: OwnTokens | None, dim: int = 1) -> Tensor:
    """What is of these tokens of x, whose dimension `dim` is the whole sequence; x itself without a part."""
    if part is None or part.num_tokens == part.sequence_length:
        return x
    return x.index_select(dim, token_places(part, x.device))
