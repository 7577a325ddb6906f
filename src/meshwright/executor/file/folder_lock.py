"""A lock on a folder of checkpoints: two trainings in one folder would remove each other's unfinished files."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from meshwright.executor.file.new_file import make_folder
from meshwright.specs.error import SpecError

LOCK_FILE = "in-use.lock"
_log = logging.getLogger(__name__)


class FolderLock:
    """Held by one process until it is released or the process ends, however it ends.

    Where the system or the file system has no such locks there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: Any = None

    def take(self) -> None:
        """Raises SpecError where another process holds it."""
        make_folder(self.folder)
        self._file = (self.folder / LOCK_FILE).open("ab")
        if not _try_lock(self._file):
            self.release()
            raise in_use(self.folder)

    def release(self) -> None:
        """Let others have it."""
        if self._file is not None:
            self._file.close()
            self._file = None


def check_free(folder: Path) -> None:
    """Raise SpecError where a running training holds the folder's lock."""
    path = folder / LOCK_FILE
    if not path.is_file():
        return
    with path.open("ab") as file:
        is_free = _try_lock(file)
    if not is_free:
        raise in_use(folder)


def in_use(folder: Path) -> SpecError:
    """Another training is there."""
    return SpecError(
        f"a running training keeps its checkpoints in {folder}",
        allowed="a folder of its own for each training",
        next="wait until it ends, or stop it",
    )


def _try_lock(file: Any) -> bool:
    """False where another process has it."""
    if os.name == "nt":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _log.warning(
            "this file system has no locks (%s): take care that no other training uses the folder", error
        )
    return True
