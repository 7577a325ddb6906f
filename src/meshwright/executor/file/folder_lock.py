"""A lock on a folder of checkpoints: two trainings in one folder would remove each other's unfinished files."""

from __future__ import annotations

import logging
from pathlib import Path

from filelock import FileLock, Timeout

from meshwright.executor.file.new_file import make_folder
from meshwright.specs.error import SpecError

LOCK_FILE = "in-use.lock"
_log = logging.getLogger(__name__)


class FolderLock:
    """Held by one process until it is released or the process ends, however it ends.

    Where the file system has no such locks there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(folder / LOCK_FILE, blocking=False, thread_local=False)

    def take(self) -> None:
        """Raises SpecError where another process holds it."""
        make_folder(self.folder)
        try:
            self._lock.acquire()
        except Timeout:
            raise SpecError(
                f"a running training keeps its checkpoints in {self.folder}",
                allowed="a folder of its own for each training",
                next="wait until it ends, or stop it",
            ) from None
        # where a system has no locks at all, filelock before 4 raises a RuntimeError
        except (OSError, RuntimeError) as error:
            _log.warning(
                "%s cannot be locked (%s): take care that no other training uses it", self.folder, error
            )

    def release(self) -> None:
        """Let others have it."""
        self._lock.release()


def check_free(folder: Path) -> None:
    """Raise SpecError where a running training holds the folder's lock."""
    if (folder / LOCK_FILE).is_file():
        lock = FolderLock(folder)
        lock.take()
        lock.release()
