"""The safetensors files of a folder as memory-mapped arrays: nothing is read before it is used, and no torch is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.data_text import json_of
from meshwright.specs.error import ExecutionError

INDEX_FILE = "model.safetensors.index.json"
# Formats of weights that are read here, by safetensors' names, and bytes of one number.
FORMAT_BYTES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
# What quantised weights are made of beside them.
INTEGERS: Mapping[str, type[Any]] = {
    "I8": np.int8,
    "U8": np.uint8,
    "I32": np.int32,
    "I64": np.int64,
}
_KINDS: Mapping[str, type[Any]] = {**INTEGERS, "F32": np.float32, "F16": np.float16}
FLOAT8, EXPONENTS = "F8_E4M3", "F8_E8M0"
LENGTH_BYTES = 8  # a file begins with the length of its header
MOST_HEADER_BYTES = 100_000_000  # as the safetensors library allows


class MappedTensor(NamedTuple):
    """A tensor as it lies in its file.

    Args:
        data: uint8, memory-mapped.
        format: as safetensors names it; a graph takes those of FORMAT_BYTES.
        shape: of the tensor.
    """

    data: NDArray[np.uint8]
    format: str
    shape: tuple[int, ...]

    def numbers(self) -> NDArray[np.float32]:
        """The values, copied into float32. Raises ExecutionError for a format that is not read here."""
        if self.format in (FLOAT8, EXPONENTS):
            return float8_values(self.format)[self.data].reshape(self.shape)
        if self.format == "BF16":
            upper_half = self.data.view(np.uint16).astype(np.uint32) << np.uint32(16)
            return upper_half.view(np.float32).reshape(self.shape)
        if self.format not in _KINDS:
            raise ExecutionError(
                f"numbers stored as {self.format}", allowed=", ".join((*_KINDS, "BF16", FLOAT8))
            )
        found: NDArray[np.float32] = (
            self.data.view(_KINDS[self.format]).reshape(self.shape).astype(np.float32)
        )
        return found

    def integers(self) -> NDArray[Any]:
        """The values of a tensor of integers, not copied. Raises ExecutionError."""
        if self.format not in INTEGERS:
            raise ExecutionError(f"integers stored as {self.format}", allowed=", ".join(INTEGERS))
        found: NDArray[Any] = self.data.view(INTEGERS[self.format]).reshape(self.shape)
        return found


@cache
def float8_values(kind: str) -> NDArray[np.float32]:
    """What each byte means ``[256]``: sign, 4 bits of exponent (bias 7), 3 of fraction, no infinities; or an exponent alone
    (bias 127) (Open Compute Project, 8-bit floating point, 2023, and microscaling formats, 2023).
    """
    codes = np.arange(256)
    if kind == EXPONENTS:
        return np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127)).astype(np.float32)
    exponents, fractions = (codes >> 3) & 15, codes & 7
    sizes = np.where(
        exponents > 0, np.ldexp(8.0 + fractions, exponents - 10), np.ldexp(fractions.astype(float), -9)
    )
    sizes = np.where(codes & 127 == 127, np.nan, sizes)
    return np.where(codes < 128, sizes, -sizes).astype(np.float32)


class SafetensorsFolder:
    """The tensors of a folder by name. Opening reads headers only.

    Raises ExecutionError for a folder without safetensors, a missing file, or one that is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tensors: dict[str, MappedTensor] = {}
        for path in self._files():
            self._tensors |= _read_file(path)

    @property
    def names(self) -> frozenset[str]:
        """All tensors."""
        return frozenset(self._tensors)

    def stored(self, name: str) -> MappedTensor:
        """The tensor `name` as it is, of whatever format. Raises ExecutionError."""
        found = self._tensors.get(name)
        if found is None:
            raise ExecutionError(
                f"{self.folder} has no tensor {name!r}", next="copy the whole folder of the model"
            )
        return found

    def tensor(self, name: str, shape: tuple[int, ...]) -> MappedTensor:
        """The tensor `name`, which must be of `shape`, in a format that a graph takes. Raises ExecutionError."""
        found = self.stored(name)
        if found.shape != shape:
            raise ExecutionError(
                f"{self.folder}: {name} is {found.shape}", allowed=f"{shape}, as config.json says"
            )
        if found.format not in FORMAT_BYTES:
            raise ExecutionError(
                f"{self.folder}: {name} is stored as {found.format}", allowed=", ".join(FORMAT_BYTES)
            )
        return found

    def _files(self) -> list[Path]:
        index = self.folder / INDEX_FILE
        if not index.is_file():
            files = sorted(self.folder.glob("*.safetensors"))
            if not files:
                raise ExecutionError(
                    f"{self.folder} has no safetensors file",
                    next="save the model with save_pretrained(..., safe_serialization=True)",
                )
            return files
        try:
            names = set(dict(json_of(index.read_text(encoding="utf-8"))["weight_map"]).values())
        except (ValueError, KeyError, TypeError) as error:
            raise ExecutionError(f"{index} is no index: {error}", allowed="JSON with 'weight_map'") from None
        missing = sorted(x for x in names if Path(x).name != x or not (self.folder / x).is_file())
        if missing:
            raise ExecutionError(
                f"{index} names {missing[0]}, which is not in the folder", next="copy the missing shard"
            )
        return [self.folder / name for name in sorted(names)]


def _read_file(path: Path) -> dict[str, MappedTensor]:
    """Every tensor of one file. Raises ExecutionError where header or lengths contradict the file."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size > MOST_HEADER_BYTES:
                raise ValueError(f"its header would have {size} bytes")
            header = json_of(file.read(size))
        mapped = np.memmap(path, np.uint8, "r", offset=LENGTH_BYTES + size)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _tensor(mapped, entry) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExecutionError(
            f"{path} cannot be read: {error}",
            next="copy the file again; it is cut short or is no safetensors",
        ) from None


def _tensor(mapped: NDArray[np.uint8], entry: Mapping[str, Any]) -> MappedTensor:
    kind, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    begin, end = entry["data_offsets"]
    wanted = math.prod(shape) * FORMAT_BYTES.get(kind, 0)
    if not 0 <= begin <= end <= mapped.size or wanted not in (0, end - begin):
        raise ValueError(f"{end - begin} bytes at {begin} for {shape} numbers as {kind}")
    return MappedTensor(mapped[begin:end], kind, shape)
