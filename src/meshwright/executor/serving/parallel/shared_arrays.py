"""Arrays that processes of one host share in mapped files: what travels between them is a header of plain JSON, no pickle."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNED_BYTES = 64  # arrays begin where lines of a cache do
LEAST_BYTES = 1 << 16
GROWTH = 2  # a file that is too small is followed by one that holds so many times what is asked for

Header = dict[str, Any]  # {"file": name, "arrays": {name: [dtype, shape, offset]}}
Arrays = dict[str, NDArray[Any]]


class SharedArrays:
    """The writer's end. All arrays of a `put` are valid until the next one."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name, self._num_files = folder, name, 0
        self._memory = self._grown(LEAST_BYTES)

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> Header:
        """Copy arrays into the file; give what readers need to find them."""
        header, places = self.make({name: (str(array.dtype), array.shape) for name, array in arrays.items()})
        for name, array in arrays.items():
            places[name][...] = array
        return header

    def make(self, wanted: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[Header, Arrays]:
        """Room for arrays of these dtypes and shapes, and the header that says where it is."""
        placed: dict[str, list[Any]] = {}
        end = 0
        for name, (dtype, shape) in wanted.items():
            placed[name] = [dtype, list(shape), end]
            num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
            end += -(-num_bytes // ALIGNED_BYTES) * ALIGNED_BYTES
        if end > len(self._memory):
            self._memory = self._grown(GROWTH * end)
        header = {"file": f"{self._name}-{self._num_files}", "arrays": placed}
        return header, _views(self._memory, header)

    def _grown(self, num_bytes: int) -> mmap.mmap:
        """The next file; the one before it goes when nobody maps it any more."""
        (self._folder / f"{self._name}-{self._num_files}").unlink(missing_ok=True)
        self._num_files += 1
        with (self._folder / f"{self._name}-{self._num_files}").open("w+b") as file:
            file.truncate(num_bytes)
            return mmap.mmap(file.fileno(), num_bytes)


class MappedArrays:
    """A reader's end of one `SharedArrays`; what it finds it may also write."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, ""
        self._memory: mmap.mmap | None = None

    def get(self, header: Header) -> Arrays:
        """The arrays of a header, where they are."""
        if self._memory is None or header["file"] != self._file:
            with (self._folder / header["file"]).open("r+b") as file:
                self._memory, self._file = mmap.mmap(file.fileno(), 0), header["file"]
        return _views(self._memory, header)


def _views(memory: mmap.mmap, header: Header) -> Arrays:
    return {
        name: np.frombuffer(memory, np.dtype(dtype), int(np.prod(shape)), offset).reshape(shape)
        for name, (dtype, shape, offset) in header["arrays"].items()
    }
