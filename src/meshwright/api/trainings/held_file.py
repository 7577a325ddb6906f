"""Whether a process still writes a file: who writes holds a lock on it, which goes with the process, however that ends."""

from __future__ import annotations

from pathlib import Path
from typing import IO


def hold(file: IO[str]) -> None:
    """Until it is closed. Where there are no such locks (not POSIX, some network file systems) nothing happens."""
    try:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_SH)
    except (ImportError, OSError):
        return


def is_held(path: Path) -> bool:
    """Does anybody hold it? False, too, where there are no locks. Raises OSError where the file cannot be opened."""
    with path.open("rb") as file:
        try:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (ImportError, OSError):
            return False
    return False
