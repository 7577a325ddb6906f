"""Imported by the workers of one test: the disk is full for the file of the second rank of a job."""

from __future__ import annotations

import errno
from pathlib import Path

from meshwright.executor.file.new_file import watching
from meshwright.executor.rank.handler import Handlers


def fill(operation: str, path: Path) -> None:
    """No space for tensors-1.safetensors."""
    if operation == "write" and path.name == "tensors-1.safetensors":
        raise OSError(errno.ENOSPC, "No space left on device")


_full = watching(fill)
_full.__enter__()
HANDLERS: Handlers = {}
