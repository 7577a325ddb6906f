"""AdamW as a function takes the steps of torch's own optimizer, and changes nothing that it is given."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from meshwright.executor.ops.functional_adamw import adamw


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_torch(decay: float) -> None:
    torch.manual_seed(0)
    first = torch.randn(7, dtype=torch.float64)
    theirs = first.clone().requires_grad_()
    optimizer = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay)
    ours, moments = first, torch.zeros(2, 7, dtype=torch.float64)
    for step in range(1, 4):
        gradient = torch.randn(7, dtype=torch.float64)
        theirs.grad = gradient
        optimizer.step()
        kept = ours.clone()
        made, moments = adamw(ours, gradient, moments, step, 0.01, betas=(0.9, 0.95), decay=decay)
        assert torch.equal(ours, kept)
        ours = made
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-14)
