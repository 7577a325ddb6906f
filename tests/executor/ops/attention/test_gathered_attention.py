"""Gathered blocks in the order of the sequence, and gradients back in that of the ranks."""

from __future__ import annotations

import pytest
import torch
from tests.executor.context_parallel import parts_of

from meshwright.executor.ops.attention.gathered_attention import in_rank_order, in_sequence_order
from meshwright.executor.ops.token_places import own_tokens
from meshwright.specs.sequence.sequence_part import ARRANGEMENTS


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_blocks_of_ranks_are_those_of_a_sequence(degree: int, arrangement: str) -> None:
    parts = parts_of(12, degree, arrangement)
    block = torch.randn(2, 3, 12, 1, 4)
    gathered = torch.stack([own_tokens(block, part, 2) for part in parts])
    assert torch.equal(in_sequence_order(gathered, parts[0]), block)
    assert torch.equal(in_rank_order(block, parts[-1]), gathered)
