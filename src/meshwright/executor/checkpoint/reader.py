"""Reads boxes from a checkpoint's safetensors files, and of these only what is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from meshwright.executor.checkpoint.index import CheckpointIndex
from meshwright.executor.checkpoint.planner import Read
from meshwright.executor.checkpoint.storage import Progress
from meshwright.executor.checkpoint.tensor_file import DTYPES
from meshwright.specs.error import ExecutionError


def read_boxes(
    checkpoint: Path, index: CheckpointIndex, reads: Iterable[Read], progress: Progress | None = None
) -> None:
    """Copy what is stored to where it goes; `progress` is called with bytes that were read.

    Raises:
        ExecutionError: a file is missing, or not what the index says.
    """
    for name, of_file in groupby(sorted(reads, key=lambda read: read.box.file), lambda read: read.box.file):
        path = checkpoint / name
        _check_file(path, index.files[name].size_bytes)
        try:
            with safe_open(str(path), framework="pt", device="cpu") as file:
                for read in of_file:
                    num_bytes = _read(path, file, read)
                    if progress is not None:
                        progress(num_bytes)
        except SafetensorError as error:
            raise ExecutionError(
                f"{path} cannot be read: {error}", next="resume from an earlier checkpoint"
            ) from error


def _check_file(path: Path, expected: int) -> None:
    found = path.stat().st_size if path.is_file() else None
    if found != expected:
        is_there = "is missing" if found is None else f"has {found} bytes instead of {expected}"
        raise ExecutionError(
            f"{path} {is_there}",
            next="resume from an earlier checkpoint; `meshwright checkpoint verify` says which are whole",
        )


def _read(path: Path, file: Any, read: Read) -> int:
    """Fill the targets; returns how many bytes were read."""
    is_whole = read.lengths == read.box.sizes
    part = file.get_tensor(read.box.key) if is_whole else file.get_slice(read.box.key)[read.places]
    if tuple(part.shape) != read.lengths or part.dtype != DTYPES[read.dtype]:
        raise ExecutionError(
            f"{path}: {read.box.key} is {part.dtype} of {list(part.shape)}, the index says {DTYPES[read.dtype]} of "
            f"{list(read.lengths)}",
            next="resume from an earlier checkpoint",
        )
    with torch.no_grad():
        for target in read.targets:
            target.copy_(part)
    return int(part.nbytes)
