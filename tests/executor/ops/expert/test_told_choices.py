"""What devices that share sequences tell each other is whole sequences again, in the order of their tokens."""

from __future__ import annotations

import itertools

import pytest
import torch

from meshwright.executor.ops.expert.told_choices import ToldTokens, experts_and_gates, told
from meshwright.specs.sequence.sequence_part import SequencePart

LENGTH, CHOSEN, EXPERTS = 16, 2, 8


@pytest.mark.parametrize("has_gates", [True, False])
@pytest.mark.parametrize(
    ("num_samples", "num_pieces", "is_within"),
    [(3, 1, False), (3, 2, True), (4, 2, False), (1, 2, False), (3, 4, False)],
)
@pytest.mark.parametrize(
    "first",
    [
        SequencePart(LENGTH),
        SequencePart(LENGTH, 4),
        SequencePart(LENGTH, 2, arrangement="zigzag"),
        SequencePart(LENGTH, 4, arrangement="stripe"),
        SequencePart(LENGTH, 4, arrangement="zigzag", ulysses=2),
    ],
    ids=str,
)
def test_sequences_are_whole_again(
    first: SequencePart, num_samples: int, num_pieces: int, is_within: bool, has_gates: bool
) -> None:
    """However ranks of cp, and pieces of their tokens along tp, have them; a device finds its own ones among all."""
    draw = torch.Generator().manual_seed(0)
    experts_BSK = torch.randint(EXPERTS, (num_samples, LENGTH, CHOSEN), generator=draw)
    gates_BSK = torch.rand(num_samples, LENGTH, CHOSEN, generator=draw)
    devices = [
        ToldTokens(first.of_rank(rank), num_samples, num_pieces, piece, is_within)
        for rank, piece in itertools.product(range(first.degree), range(num_pieces))
    ]

    def here(value_BSK: torch.Tensor, tokens: ToldTokens) -> torch.Tensor:
        """By hand: places of the rank, and of these the piece."""
        places = [place for run in tokens.part.runs for place in run]
        own_BsK = value_BSK[:, places]
        size = own_BsK.shape[1] // num_pieces
        if is_within:
            return own_BsK[:, tokens.piece * size : (tokens.piece + 1) * size].flatten(0, 1)
        flat_TK = own_BsK.flatten(0, 1)
        size = len(flat_TK) // num_pieces
        return flat_TK[tokens.piece * size : (tokens.piece + 1) * size]

    all_MF = torch.cat(
        [told(here(experts_BSK, each), here(gates_BSK, each) if has_gates else None) for each in devices]
    )
    scores_BSX = torch.rand(num_samples, LENGTH, EXPERTS, generator=draw, dtype=torch.float64)
    for tokens in devices:
        experts_TK, gates_TK = experts_and_gates(tokens.sequences(all_MF), CHOSEN)
        assert torch.equal(experts_TK, experts_BSK.flatten(0, 1))
        assert torch.equal(tokens.own(experts_TK), here(experts_BSK, tokens))
        if gates_TK is None:
            assert not has_gates
        else:
            assert torch.equal(gates_TK, gates_BSK.flatten(0, 1).double())
    sums = sum(tokens.sums(here(scores_BSX, tokens)) for tokens in devices)
    torch.testing.assert_close(sums, scores_BSX.sum(1))
