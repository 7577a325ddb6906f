"""What this computer has: cores and memory that a process may use, counted without starting anything."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Limits of a container, version 2 and version 1 of Linux control groups.
_LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_FALLBACK_BYTES = 4 * 10**9  # where the system does not say


def num_cores() -> int:
    """Cores this process may run on; at least one."""
    return len(available_cores())


def available_cores() -> tuple[int, ...]:
    """Their numbers."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0))) or (0,)
    return tuple(range(os.cpu_count() or 1))


def memory_available_bytes() -> int:
    """Physical memory, or the limit of the container where that is less."""
    physical = _windows_memory_bytes() if sys.platform == "win32" else _posix_memory_bytes()
    limits = [limit for limit in map(_read_limit, _LIMIT_FILES) if limit is not None]
    return min([physical, *limits])


def _posix_memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # a system that does not know these names
        return _FALLBACK_BYTES


def _windows_memory_bytes() -> int:
    """GlobalMemoryStatusEx; `physical` is the computer's memory in bytes."""
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("physical", "free", "page", "freepage")),
            *((name, ctypes.c_ulonglong) for name in ("virtual", "freevirtual", "extended")),
        )

    status = Status(length=ctypes.sizeof(Status))
    libraries = vars(ctypes)["windll"]  # exists on Windows only
    if not libraries.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return _FALLBACK_BYTES
    return int(status.physical)


def _read_limit(path: str) -> int | None:
    """Bytes in a control-group file; None without a file or without a limit ("max")."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
