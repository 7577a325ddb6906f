"""Is a checkpoint whole? Its files are read and hashed, and what they hold is compared with the index. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meshwright.executor.checkpoint.index import CheckpointIndex, StoredBox, read_index
from meshwright.executor.file.new_file import sha256_of
from meshwright.specs.error import SpecError

LENGTH_BYTES = 8  # of the header's length, at the beginning of a safetensors file
SUFFIX = ".safetensors"


def problems(checkpoint: Path, progress: Callable[[int], None] | None = None) -> list[str]:
    """What is wrong with one checkpoint, a sentence for each file that is; empty where it is whole.

    `progress` is called with the bytes of every chunk that was read.
    """
    try:
        index = read_index(checkpoint)
    except SpecError as error:
        return [str(error)]
    found = [_file_problem(checkpoint / name, index, progress) for name in sorted(index.files)]
    return [problem for problem in found if problem]


def _file_problem(path: Path, index: CheckpointIndex, progress: Callable[[int], None] | None) -> str:
    expected = index.files[path.name]
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size != expected.size_bytes:
        return f"{path} has {size} bytes instead of {expected.size_bytes}"
    if sha256_of(path, progress) != expected.sha256:
        return f"{path} was changed: its SHA-256 is not that of the index"
    return _content_problem(path, index) if path.suffix == SUFFIX else ""


def _content_problem(path: Path, index: CheckpointIndex) -> str:
    """A file that is what was written must also hold what the index says it does."""
    try:
        header = read_header(path)
    except (ValueError, OSError) as error:
        return f"{path} is no safetensors file: {error}"
    for name, tensor in index.tensors.items():
        for box in tensor.boxes:
            if box.file == path.name and _stored(header, box) != (tensor.dtype, box.sizes):
                return f"{path} does not hold {name} at {list(box.offsets)}"
    return ""


def _stored(header: Mapping[str, Any], box: StoredBox) -> tuple[str, tuple[int, ...]] | None:
    entry = header.get(box.key)
    return None if entry is None else (entry["dtype"], tuple(entry["shape"]))


def read_header(path: Path) -> dict[str, Any]:
    """Names, dtypes and shapes of a safetensors file. Raises ValueError where it has no header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > path.stat().st_size:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    return header
