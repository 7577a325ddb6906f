"""A rank's tokens of a sequence, as tensors."""

from __future__ import annotations

import torch

from meshwright.executor.ops.token_places import own_tokens, token_places
from meshwright.specs.sequence.sequence_part import SequencePart


def test_places_are_the_runs_of_a_rank() -> None:
    assert token_places(SequencePart(12, 3, 1, "zigzag")).tolist() == [2, 3, 8, 9]


def test_own_tokens_are_cut_along_any_dimension() -> None:
    x = torch.arange(24).view(2, 12)
    part = SequencePart(12, 3, 2, "contiguous")
    assert own_tokens(x, part).tolist() == [[8, 9, 10, 11], [20, 21, 22, 23]]
    assert torch.equal(own_tokens(x.T, part, 0), own_tokens(x, part).T)
    assert own_tokens(x, None) is x and own_tokens(x, part.whole) is x
