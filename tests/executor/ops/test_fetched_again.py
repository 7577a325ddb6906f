"""Operands that are fetched again: a product keeps the place of one, whose value is there while the backward runs."""

from __future__ import annotations

import gc

import torch

from meshwright.executor.meter.live_storage import LiveStorage
from meshwright.executor.ops.fetched_again import again_of, fetching_again
from meshwright.executor.ops.linear import SplitLinear


def layer(width: int = 256) -> SplitLinear:
    torch.manual_seed(0)
    made = SplitLinear(width, 8, bias=False)
    torch.nn.init.normal_(made.weight)
    return made


def gradients(is_again: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Of input and weight."""
    linear = layer()
    x = torch.linspace(-1.0, 1.0, 4 * 256).view(1, 4, 256).requires_grad_()
    begun = x * 1.0
    if is_again:
        with fetching_again(begun) as again:
            y = linear(begun)
        again.value = begun.detach().clone()
    else:
        y = linear(begun)
    y.backward(torch.ones_like(y))
    assert x.grad is not None and linear.weight.grad is not None
    return x.grad, linear.weight.grad


def test_gradients_are_those_of_what_is_kept() -> None:
    for ours, expected in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(ours, expected)


def test_an_operand_is_found_by_itself_and_within_the_block_only() -> None:
    x, other = torch.ones(3), torch.ones(3)
    with fetching_again(x) as again:
        assert again_of(x) is again and again_of(other) is None
    assert again_of(x) is None and again.tensor is None


def test_the_operand_is_not_kept() -> None:
    linear = layer(1 << 12)
    with LiveStorage() as live:
        x = torch.empty(1, 64, 1 << 12).requires_grad_()
        begun = x * 1.0
        with fetching_again(begun) as again:
            y = linear(begun)
        held = live.current_bytes
        size = begun.nbytes
        del begun
        gc.collect()
        assert live.current_bytes <= held - size
    assert y.requires_grad and again.value is None
