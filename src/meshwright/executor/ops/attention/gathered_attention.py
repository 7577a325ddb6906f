"""Keys and values gathered from all ranks of a context-parallel group, in the order of the sequence; their gradients, back in
that of the ranks.

Shapes: P ranks, B samples, S tokens of a sequence, s = S / P of a rank, K key-value heads, D numbers of a head.

Every rank attends with its own queries to all keys (Llama 3, arXiv 2407.21783, section 3.3.2): one call of `PartAttention`
with ``part.whole``. The gradient of the gathered block is whole, a term of the sum over ranks: a reduce-scatter follows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.executor.ops.token_places import token_places
from meshwright.specs.plan.sequence_part import SequencePart


def in_sequence_order(gathered: Tensor, part: SequencePart) -> Tensor:
    """[P, 2, B, s, K, D], the ranks' blocks as a gather leaves them -> one block of the whole sequence [2, B, S, K, D]."""
    _, two, batch, _, *head = gathered.shape
    block = gathered.new_empty((two, batch, part.sequence_length, *head))
    for rank, own in enumerate(gathered):
        block[:, :, token_places(part.of_rank(rank), gathered.device)] = own
    return block


def in_rank_order(block: Tensor, part: SequencePart) -> Tensor:
    """[2, B, S, K, D] -> [P, 2, B, s, K, D], equal parts along the first dimension, as a reduce-scatter takes them."""
    places = [token_places(part.of_rank(rank), block.device) for rank in range(part.degree)]
    return torch.stack([block[:, :, own] for own in places])
