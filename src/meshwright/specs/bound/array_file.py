"""Archives of NumPy arrays that anybody may have written: how much they declare is known before any of it is read."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.bound.bound import MOST_ARRAY_BYTES, MOST_PACKED, check_most
from meshwright.specs.error import SpecError

_HEADS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# What NumPy and the archive raise of files that are damaged, or none.
_BROKEN = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, KeyError, MemoryError),
    *(SyntaxError, tokenize.TokenError),  # a head is written in Python's own words
)


def arrays_of(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file by name; nothing is unpickled.

    Raises:
        ValueError: it is no such file, or its arrays are larger than what such a file holds. OSError: it cannot be opened.
    """
    with path.open("rb"):
        pass  # a file that cannot be opened has its own words
    try:
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive, path.stat().st_size)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (*_BROKEN, SpecError) as error:
        raise ValueError(f"it is no archive of plain arrays ({_words(error)})") from error


def _check_sizes(archive: zipfile.ZipFile, file_bytes: int) -> None:
    """Raise ValueError where arrays declare more than stands there, or all together more than is ever read."""
    total = sum(each.file_size for each in archive.infolist())
    check_most("bytes of its arrays", total, max(MOST_ARRAY_BYTES, MOST_PACKED * file_bytes))
    for each in archive.infolist():
        with archive.open(each) as member:
            version = np.lib.format.read_magic(member)
            if version not in _HEADS:
                raise ValueError(f"{each.filename} has version {version}")
            shape, _, dtype = _HEADS[version](member)
            declared, there = math.prod(shape) * dtype.itemsize, each.file_size - member.tell()
        if min(shape, default=0) < 0 or declared != there or dtype.hasobject:
            raise ValueError(
                f"{each.filename} says {dtype} of shape {shape}, and {there:,} bytes stand there"
            )


def _words(error: BaseException) -> str:
    """NumPy's own words about a file of another kind advise to load it unsafely."""
    if "pickle" in str(error):
        return "another kind of file"
    return (
        "a head that cannot be read" if isinstance(error, (SyntaxError, tokenize.TokenError)) else str(error)
    )
