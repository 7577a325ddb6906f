"""The safetensors files of a folder as memory-mapped arrays: nothing is read before it is used, and no torch is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.data_text import json_of
from meshwright.specs.error import ExecutionError

INDEX_FILE = "model.safetensors.index.json"
# Formats of weights that are read here, by safetensors' names, and bytes of one number.
FORMAT_BYTES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
LENGTH_BYTES = 8  # a file begins with the length of its header
MOST_HEADER_BYTES = 100_000_000  # as the safetensors library allows


class MappedTensor(NamedTuple):
    """A tensor as it lies in its file.

    Args:
        data: uint8, memory-mapped.
        format: a key of FORMAT_BYTES.
        shape: of the tensor.
    """

    data: NDArray[np.uint8]
    format: str
    shape: tuple[int, ...]

    def numbers(self) -> NDArray[np.float32]:
        """The values, copied into float32."""
        if self.format != "BF16":
            kind = np.float32 if self.format == "F32" else np.float16
            return self.data.view(kind).reshape(self.shape).astype(np.float32)
        upper_half = self.data.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return upper_half.view(np.float32).reshape(self.shape)


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

    def tensor(self, name: str, shape: tuple[int, ...]) -> MappedTensor:
        """The tensor `name`, which must be of `shape`. Raises ExecutionError."""
        found = self._tensors.get(name)
        if found is None:
            raise ExecutionError(
                f"{self.folder} has no tensor {name!r}", next="copy the whole folder of the model"
            )
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
