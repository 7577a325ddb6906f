"""Files that are there whole or not at all, with the rights that the user's mask gives."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Where to write what becomes `path` when the block is left, and goes when it fails; a file that was there keeps its
    rights. Pipes and devices are written as they are. Raises OSError.
    """
    target = Path(path).resolve()  # a link stays one
    if target.exists() and not target.is_file():
        yield target
        return
    part = target.with_name(f".{os.getpid()}-{target.name}")  # suffixes say forms
    try:
        yield part
        if target.exists():
            shutil.copymode(target, part)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
