"""Number formats: how many bytes each one takes."""

from __future__ import annotations

from meshwright.specs.error import UnknownNameError

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
    "int64": 8,
    "int32": 4,
    "int8": 1,
}


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number of format `dtype`. Raises UnknownNameError."""
    if dtype not in DTYPE_BYTES:
        raise UnknownNameError("number format", dtype, DTYPE_BYTES)
    return DTYPE_BYTES[dtype]
