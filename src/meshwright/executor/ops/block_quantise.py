"""Quantisation in blocks: numbers as 8 or 4 bits and one scale a block, packed into bytes that can be sent as they are.

Shapes: N numbers (of a flat tensor), K blocks, P bytes of a packed tensor.

A block's scale is its largest magnitude over 127 or 7, in float32; a number is the nearest multiple of it. Two numbers of 4
bits share a byte, the first in its low half. Packed: all numbers, then all scales.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meshwright.specs.error import ExecutionError

LARGEST = {8: 127, 4: 7}  # symmetric: the most negative code is not used
SCALE_BYTES = 4
BITS_PER_BYTE = 8


def packed_bytes(num_numbers: int, bits: int, block: int) -> int:
    """Bytes of that many numbers, packed.

    Raises:
        ExecutionError: bits that there are not, or numbers that do not fill blocks of an even size.
    """
    if bits not in LARGEST or block < 2 or block % 2 or num_numbers % block:
        raise ExecutionError(
            f"{num_numbers} numbers of {bits} bits in blocks of {block}",
            allowed=f"{' or '.join(str(b) for b in sorted(LARGEST))} bits, and whole blocks of an even size",
        )
    return num_numbers * bits // BITS_PER_BYTE + num_numbers // block * SCALE_BYTES


def quantise(x_N: Tensor, bits: int, block: int) -> Tensor:
    """x_N packed into uint8 [P]. Raises ExecutionError as `packed_bytes`."""
    packed_bytes(x_N.numel(), bits, block)
    x_KB = x_N.detach().reshape(-1, block).float()
    scale_K1 = x_KB.abs().amax(1, keepdim=True) / LARGEST[bits]
    # a block of zeros, or so small that its scale is none, becomes zeros
    codes_N = torch.where(scale_K1 > 0, x_KB / scale_K1, 0.0).round().to(torch.int8).flatten()
    if bits == 4:
        low, high = codes_N[0::2] & 0x0F, codes_N[1::2] << 4
        codes_N = low | high
    return torch.cat([codes_N.view(torch.uint8), scale_K1.flatten().view(torch.uint8)])


def dequantise(packed_P: Tensor, num_numbers: int, bits: int, block: int, dtype: torch.dtype) -> Tensor:
    """The numbers [N] of what `quantise` packed. Raises ExecutionError where the bytes are not as many as they were."""
    wanted = packed_bytes(num_numbers, bits, block)
    if packed_P.numel() != wanted:
        raise ExecutionError(
            f"{packed_P.numel()} bytes for {num_numbers} numbers of {bits} bits", allowed=f"{wanted} bytes"
        )
    num_codes = num_numbers * bits // BITS_PER_BYTE
    codes = packed_P[:num_codes].view(torch.int8)
    scale_K1 = packed_P[num_codes:].clone().view(torch.float32)[:, None]  # a copy starts at a whole float
    if bits == 4:
        # shifts of int8 keep the sign: the low half goes up and comes down again
        codes = torch.stack([(codes << 4) >> 4, codes >> 4], dim=1).flatten()
    return (codes.reshape(-1, block).float() * scale_K1).flatten().to(dtype)
