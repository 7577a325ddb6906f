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
        self._taken: tuple[int, int] | None = None  # which file it was

    def take(self) -> None:
        """Raises SpecError where another process holds it."""
        make_folder(self.folder)
        try:
            self._lock.acquire()
            self._taken = _file_at(self.folder)
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

    def keep(self) -> None:
        """Whoever removes the folder of a running training removes the lock with it: take the one that is there now.

        Raises SpecError where another process has taken the folder since.
        """
        if self._taken is None or _file_at(self.folder) == self._taken:
            return
        _log.warning("%s was removed while it was in use, and is made again", self.folder)
        self._lock.release()
        self._lock = FolderLock(self.folder)._lock
        self.take()

    def release(self) -> None:
        """Let others have it."""
        self._lock.release()


def _file_at(folder: Path) -> tuple[int, int] | None:
    """Which file the folder's lock is now, by device and number; None: there is none."""
    try:
        found = (folder / LOCK_FILE).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_free(folder: Path) -> None:
    """Raise SpecError where a running training holds the folder's lock."""
    if (folder / LOCK_FILE).is_file():
        lock = FolderLock(folder)
        lock.take()
        lock.release()
