"""What devices along cp tell each other is whole sequences again, in the order of their tokens."""

from __future__ import annotations

import pytest
import torch

from meshwright.executor.ops.expert.told_choices import experts_and_gates, of_sequences, own_tokens, told
from meshwright.specs.sequence.sequence_part import SequencePart


@pytest.mark.parametrize(
    "first",
    [
        SequencePart(16, 4),
        SequencePart(16, 4, arrangement="zigzag"),
        SequencePart(16, 4, arrangement="stripe"),
        SequencePart(16, 4, arrangement="zigzag", ulysses=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("has_gates", [True, False])
def test_sequences_are_whole_again(first: SequencePart, has_gates: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    experts_BSK = torch.randint(8, (3, 16, 2), generator=draw)
    gates_BSK = torch.rand(3, 16, 2, generator=draw)
    parts = [first.of_rank(rank) for rank in range(first.degree)]
    places = [[place for run in part.runs for place in run] for part in parts]
    by_rank = [
        told(experts_BSK[:, own].flatten(0, 1), gates_BSK[:, own].flatten(0, 1) if has_gates else None)
        for own in places
    ]
    for part, own in zip(parts, places, strict=True):
        whole_TF = of_sequences(torch.cat(by_rank), part)
        experts_TK, gates_TK = experts_and_gates(whole_TF, 2)
        assert torch.equal(experts_TK, experts_BSK.flatten(0, 1))
        assert torch.equal(own_tokens(experts_TK, part), experts_BSK[:, own].flatten(0, 1))
        if gates_TK is None:
            assert not has_gates
        else:
            assert torch.equal(gates_TK, gates_BSK.flatten(0, 1).double())
