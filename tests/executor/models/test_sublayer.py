"""Sublayers cut over devices sum to the whole one; a stack with a delay is the recurrence written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from meshwright.executor.models.sublayer import (
    KINDS,
    SublayerSize,
    first_weight,
    part_of_weight,
    run_stack,
    sublayer,
)

SIZE = SublayerSize(16, 4, 4, 24)
X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_parts_sum_to_the_whole(kind: str, num_parts: int) -> None:
    weight = first_weight(SIZE, kind, 1, dtype=torch.float64)
    whole = sublayer(SIZE, kind)(X, weight)
    size = SIZE.part(num_parts)
    parts = [part_of_weight(SIZE, kind, weight, place, num_parts) for place in range(num_parts)]
    assert all(len(part) == size.num_numbers(kind) for part in parts)
    total = torch.stack([sublayer(size, kind)(X, part) for part in parts]).sum(0)
    assert torch.allclose(total, whole, atol=1e-12) and float(whole.abs().max()) > 1e-3


def test_attention_does_not_look_ahead() -> None:
    weight = first_weight(SIZE, "attention", 1, dtype=torch.float64)
    changed = X.clone()
    changed[:, 3:] += 1.0
    before, after = (sublayer(SIZE, "attention")(x, weight) for x in (X, changed))
    assert torch.equal(before[:, :3], after[:, :3]) and not torch.allclose(before[:, 3:], after[:, 3:])


def test_a_delayed_stack_is_the_recurrence() -> None:
    maps: list[Callable[[torch.Tensor], torch.Tensor]] = [torch.sin, torch.cos, torch.tanh]
    standard = X
    for one in maps:
        standard = standard + one(standard)
    assert torch.allclose(run_stack(X, maps), standard)
    first, second = maps[0](X), maps[1](X)
    third = maps[2](X + first)
    assert torch.allclose(run_stack(X, maps, 2), X + first + second + third)
