"""One rank's handlers by hand: a step of Adam, who gets which rows, and a loss whose gradient is that of autograd."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from meshwright.systems.moe.hecate.ops import ExpertStepPlace, LayerShape, adam, batch_of

SHAPE = LayerShape(experts=4, tokens=6)


def place(rank: int, moves: list[list[int]]) -> ExpertStepPlace:
    options = {"shape": SHAPE.__dict__, "ranks": 2, "owners": [0, 0, 1, 1], "steps": [moves]}
    return ExpertStepPlace(SimpleNamespace(options=options, rank=rank), None, 0)


def test_adam_is_torchs() -> None:
    value = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    theirs = torch.optim.Adam([value], lr=1e-2)
    state = torch.stack([value.detach().clone(), torch.zeros(2).double(), torch.zeros(2).double()])
    for step in range(1, 4):
        gradient = torch.tensor([0.3 * step, -0.1], dtype=torch.float64)
        value.grad = gradient.clone()
        theirs.step()
        state = adam(state, gradient, step)
        torch.testing.assert_close(state[0], value.detach(), rtol=1e-12, atol=1e-12)


def test_rows_go_to_copies_here_first_and_every_row_goes_once() -> None:
    """Expert 2 is copied to rank 0: its rows stay there. Without the copy they go to its owner."""
    batch = batch_of(SHAPE, 0, 0)
    for moves in ([], [[2, 1, 0]], [[2, 1, 0], [0, 0, 1]]):
        here, own = {}, place(0, moves)
        for target in range(2):
            for expert, rows in own.places(batch, 0, target):
                assert (batch.experts_TK.reshape(-1)[rows] == expert).all()
                here.setdefault(expert, []).append((target, len(rows)))
        assert sum(count for each in here.values() for _, count in each) == 2 * SHAPE.tokens
        holder = 0 if [2, 1, 0] in moves else 1
        assert {target for target, _ in here.get(2, [(holder, 0)])} == {holder}
