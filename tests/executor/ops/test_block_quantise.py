"""Quantised blocks come back within half a step, packed as small as said, and wrong sizes are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from meshwright.executor.ops.block_quantise import LARGEST, dequantise, packed_bytes, quantise
from meshwright.specs.error import ExecutionError


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("num_numbers", "block"), [(64, 64), (960, 32), (6, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_come_back_within_half_a_step(
    bits: int, num_numbers: int, block: int, dtype: torch.dtype
) -> None:
    x = torch.randn(num_numbers, generator=torch.Generator().manual_seed(bits), dtype=dtype)
    packed = quantise(x, bits, block)
    assert packed.dtype == torch.uint8 and packed.numel() == packed_bytes(num_numbers, bits, block)
    back = dequantise(packed, num_numbers, bits, block, dtype)
    step = x.view(-1, block).abs().amax(1) / LARGEST[bits]
    error = (back - x).view(-1, block).abs().amax(1)
    assert bool((error <= step / 2 + 1e-6).all()) and back.dtype == dtype


@pytest.mark.parametrize("bits", [8, 4])
def test_multiples_of_a_scale_are_exact(bits: int) -> None:
    codes = torch.arange(-LARGEST[bits], LARGEST[bits] + 1)
    x = torch.cat([codes, codes.flip(0)]) * 0.5
    packed = quantise(x, bits, len(x))
    assert torch.equal(dequantise(packed, len(x), bits, len(x), torch.float32), x)


def test_zeros_stay_zeros() -> None:
    x = torch.zeros(8)
    assert torch.equal(dequantise(quantise(x, 4, 4), 8, 4, 4, torch.float32), x)


def test_sizes_are_those_of_the_formula() -> None:
    assert packed_bytes(4096, 8, 256) == 4096 + 64
    assert packed_bytes(4096, 4, 256) == 2048 + 64


@pytest.mark.parametrize(("num_numbers", "bits", "block"), [(10, 8, 4), (8, 3, 4), (9, 4, 3)])
def test_wrong_sizes_are_refused(num_numbers: int, bits: int, block: int) -> None:
    with pytest.raises(ExecutionError):
        quantise(torch.zeros(num_numbers), bits, block)


def test_lost_bytes_are_noticed() -> None:
    with pytest.raises(ExecutionError, match="15 bytes for 8 numbers"):
        dequantise(quantise(torch.ones(8), 8, 4)[:-1], 8, 8, 4, torch.float32)
