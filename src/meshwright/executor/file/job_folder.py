"""A folder for the time of a job, locked by its owner, so that the next job sweeps those of owners that were killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX, NEW, OWNED = "meshwright-job-", "meshwright-new-", "owned.lock"


@contextmanager
def job_folder() -> Iterator[Path]:
    """A new folder in TMPDIR, which goes when the block is left; those that were left behind go first."""
    sweep(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=NEW))
    lock = _lock_of(made)
    _is_taken(lock)  # or there are no locks here, and nobody sweeps
    folder = made.rename(made.with_name(made.name.replace(NEW, PREFIX)))  # seen by others once it is locked
    try:
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def sweep(where: Path) -> None:
    """Remove this user's folders whose owners have ended without doing so: their locks are free."""
    for folder in where.glob(f"{PREFIX}*"):
        if not _is_own(folder) or not (folder / OWNED).is_file():
            continue
        lock = _lock_of(folder)
        if _is_taken(lock):
            lock.release()
            shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Is it this user's, and still there?"""
    try:
        return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _lock_of(folder: Path) -> FileLock:
    return FileLock(folder / OWNED, blocking=False, thread_local=False)


def _is_taken(lock: FileLock) -> bool:
    """Take it. False where another has it, or the file system has no locks."""
    try:
        lock.acquire()
    except (Timeout, OSError, RuntimeError):
        return False
    return True
