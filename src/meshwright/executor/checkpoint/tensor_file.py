"""Safetensors files by their format: the header that stands before the numbers, and the numbers of a tensor as bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
HEADER_ALIGNMENT = 8  # the header is padded with blanks to a multiple of this, so that numbers are aligned


def header_of(entries: Sequence[tuple[str, torch.dtype, Sequence[int]]]) -> bytes:
    """Length and JSON that stand before the numbers of a safetensors file, which follow in the order of the entries."""
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, dtype, shape in entries:
        begin_byte, end = end, end + prod(shape) * dtype.itemsize
        fields[key] = {
            "dtype": DTYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [begin_byte, end],
        }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def bytes_of(tensor: Any) -> memoryview:
    """The numbers of a tensor, row-major, without a copy where it is contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())
