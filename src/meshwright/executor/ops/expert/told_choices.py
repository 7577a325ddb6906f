"""Choices of experts that devices which share sequences tell each other: numbers of every token, and those of sequences.

Shapes: T tokens here, of B sequences, each of S tokens, s of them on this rank along cp; M tokens of all devices; K experts a
token, F numbers a token (K, or 2 K with gates), X experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.specs.sequence.sequence_part import SequencePart

MOST_PLACES = 64  # of sequences that are divided in so many ways places are kept


def told(experts_TK: Tensor, gates_TK: Tensor | None = None) -> Tensor:
    """Numbers of experts, and behind them the bits of their gates: whole numbers [T, F], which change nothing."""
    if gates_TK is None:
        return experts_TK
    return torch.cat((experts_TK, gates_TK.detach().double().view(torch.int64)), 1)


def experts_and_gates(told_TF: Tensor, num_per_token: int) -> tuple[Tensor, Tensor | None]:
    """What `told` put together; gates in float64, None where they were not told."""
    experts_TK, bits_TK = told_TF[:, :num_per_token], told_TF[:, num_per_token:]
    return experts_TK, bits_TK.contiguous().view(torch.float64) if bits_TK.shape[1] else None


@dataclass(frozen=True)
class ToldTokens:
    """Which tokens of B = ``num_samples`` sequences a device tells of.

    ``part``: of each sequence those of its rank along cp. Of these ranks along tp may have ``num_pieces`` equal pieces, of
    which this is number ``piece``: of each sequence (``is_within``, sequence parallelism), or of all, one behind the other.
    """

    part: SequencePart
    num_samples: int
    num_pieces: int = 1
    piece: int = 0
    is_within: bool = False

    def sequences(self, all_MF: Tensor) -> Tensor:
        """What all devices told of their tokens, tp inside cp, in the order of the tokens in each sequence: [B S, F]."""
        # of every device its samples, one behind the other; or of those along tp together
        num_apart = self.part.degree * (self.num_pieces if self.is_within else 1)
        apart_PBsF = all_MF.view(num_apart, self.num_samples, -1, all_MF.shape[1])
        by_rank_BSF = apart_PBsF.transpose(0, 1).flatten(1, 2)
        whole_BSF = torch.empty_like(by_rank_BSF)
        whole_BSF[:, _places_of_all(self.part.of_rank(0), all_MF.device)] = by_rank_BSF
        return whole_BSF.flatten(0, 1)

    def own(self, whole_TF: Tensor) -> Tensor:
        """Of all tokens of the sequences, [B S, F], those of this device in its order: [T, F]."""
        places = _places_of_all(self.part.of_rank(0), whole_TF.device).view(self.part.degree, -1)
        of_rank_BsF = whole_TF.view(self.num_samples, -1, whole_TF.shape[1])[:, places[self.part.rank]]
        if self.is_within:
            return of_rank_BsF.chunk(self.num_pieces, 1)[self.piece].flatten(0, 1)
        return of_rank_BsF.flatten(0, 1).chunk(self.num_pieces)[self.piece]

    def sums(self, rows_TX: Tensor) -> Tensor:
        """Of every sequence the sum over its tokens here: [B, X]."""
        num_here = len(rows_TX)
        if not self.is_within:  # zeros where the others' tokens are
            before = self.piece * num_here
            rows_TX = F.pad(rows_TX, (0, 0, before, (self.num_pieces - 1) * num_here - before))
        return rows_TX.view(self.num_samples, -1, rows_TX.shape[1]).sum(1)


@lru_cache(maxsize=MOST_PLACES)
def _places_of_all(first: SequencePart, device: torch.device) -> Tensor:
    """Places in the sequence of the tokens of all ranks along cp, one rank's behind the other's: [S]."""
    runs = (run for rank in range(first.degree) for run in first.of_rank(rank).runs)
    return torch.tensor([place for run in runs for place in run], device=device)
