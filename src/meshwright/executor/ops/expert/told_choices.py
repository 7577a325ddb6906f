"""Choices of experts that devices along cp tell each other: numbers of every token, and of them those of whole sequences.

Shapes: T tokens here, of B sequences, each of S tokens, s of them here; P devices, M = P T; K experts a token, F numbers a
token (K, or 2 K with gates), X experts.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from meshwright.specs.sequence.sequence_part import SequencePart

MOST_PLACES = 64  # of sequences that are divided in so many ways places are kept


def told(experts_TK: Tensor, gates_TK: Tensor | None = None) -> Tensor:
    """Numbers of experts, and behind them the bits of their gates: whole numbers [T, F], which change nothing."""
    if gates_TK is None:
        return experts_TK
    return torch.cat((experts_TK, gates_TK.detach().double().view(torch.int64)), 1)


def of_sequences(all_MF: Tensor, part: SequencePart) -> Tensor:
    """What all devices told of their tokens, in the order of the tokens in each sequence: [B S, F]."""
    by_rank_PBsF = all_MF.view(part.degree, -1, part.num_tokens, all_MF.shape[1])
    by_rank_BSF = by_rank_PBsF.transpose(0, 1).flatten(1, 2)
    whole_BSF = torch.empty_like(by_rank_BSF)
    whole_BSF[:, _places_of_all(part.of_rank(0), all_MF.device)] = by_rank_BSF
    return whole_BSF.flatten(0, 1)


def experts_and_gates(told_TF: Tensor, num_per_token: int) -> tuple[Tensor, Tensor | None]:
    """What `told` put together; gates in float64, None where they were not told."""
    experts_TK, bits_TK = told_TF[:, :num_per_token], told_TF[:, num_per_token:]
    return experts_TK, bits_TK.contiguous().view(torch.float64) if bits_TK.shape[1] else None


def own_tokens(whole_TF: Tensor, part: SequencePart) -> Tensor:
    """Of all tokens of sequences, [B S, F], those of this device in its order: [T, F]."""
    places_s = _places_of_all(part.of_rank(0), whole_TF.device).view(part.degree, -1)[part.rank]
    return whole_TF.view(-1, part.sequence_length, whole_TF.shape[1])[:, places_s].flatten(0, 1)


@lru_cache(maxsize=MOST_PLACES)
def _places_of_all(first: SequencePart, device: torch.device) -> Tensor:
    """Places in the sequence of the tokens of all ranks, one rank's behind the other's: [S]."""
    runs = (run for rank in range(first.degree) for run in first.of_rank(rank).runs)
    return torch.tensor([place for run in runs for place in run], device=device)
