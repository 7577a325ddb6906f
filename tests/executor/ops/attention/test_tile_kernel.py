"""The kernel of a rectangle: torch's own against plain products, and these against autograd's softmax."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from meshwright.executor.ops.attention import tile_kernel
from meshwright.executor.ops.attention.tile_kernel import (
    EMPTY_SUM,
    backward_by_products,
    forward_by_products,
    tile_backward,
    tile_forward,
)
from meshwright.executor.ops.attention.visible_tile import Tile

SCALE = 0.3


def tile_of(kind: str, num_rows: int, num_keys: int) -> Tile:
    slices = slice(0, num_rows), slice(0, num_keys)
    if kind != "masked":
        return Tile(*slices, is_causal=kind == "causal")
    visible = torch.rand(2, num_rows, num_keys) < 0.4
    visible[:, 2] = False  # a row that sees nothing
    return Tile(*slices, visible=visible)


def plain(query: Tensor, key: Tensor, value: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    group_size = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group_size, 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * SCALE
    if tile.is_causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -math.inf)
    if tile.visible is not None:
        scores = scores.masked_fill(~tile.visible[:, None], -math.inf)
    sums = torch.logsumexp(scores, -1).clamp(min=EMPTY_SUM)
    return torch.exp(scores - sums[..., None]) @ value, sums


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["all", "causal", "masked"])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
@pytest.mark.parametrize("is_by_products", [False, True])
def test_a_tile_is_softmax_of_its_scores(
    dtype: torch.dtype, kind: str, num_kv_heads: int, is_by_products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_kernel, "BLOCK_ROWS", 16)
    torch.manual_seed(0)
    num_rows, num_keys = 50, 50 if kind == "causal" else 37
    shapes = [(2, 6, num_rows, 8), *[(2, num_kv_heads, num_keys, 8)] * 2]
    operands = [
        torch.randn(shape, dtype=torch.float64).to(dtype).double().requires_grad_() for shape in shapes
    ]
    tile = tile_of(kind, num_rows, num_keys)
    expected, expected_sums = plain(operands[0], operands[1], operands[2], tile)
    gradient = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad(expected, operands, gradient)
    narrow = [x.detach().to(dtype) for x in operands]
    forward = forward_by_products if is_by_products else tile_forward
    backward = backward_by_products if is_by_products else tile_backward
    output, sums = forward(*narrow, tile, SCALE)
    found = backward(*narrow, output, sums, gradient.to(dtype), tile, SCALE)
    tolerance = 1e-13 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(output.double(), expected.detach(), rtol=0, atol=tolerance)
    torch.testing.assert_close(sums.double(), expected_sums.detach(), rtol=1e-6, atol=tolerance)
    for one, other in zip(found, expected_gradients):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance)


def test_gradients_of_repeated_keys_in_16_bits_are_summed_in_32() -> None:
    query, key, value = (torch.randn(1, heads, 8, 8).bfloat16() for heads in (4, 1, 1))
    tile = Tile(slice(0, 8), slice(0, 8))
    output, sums = tile_forward(query, key, value, tile, SCALE)
    _, dkey, dvalue = tile_backward(query, key, value, output, sums, query, tile, SCALE)
    assert sums.dtype == dkey.dtype == dvalue.dtype == torch.float32 and dkey.shape == key.shape
