"""A process keeps what it frees, where the C library can and the user has not chosen otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from meshwright.executor.team import freed_memory
from meshwright.executor.team.freed_memory import CHOICES

# Frees 24 MiB at the end of the heap, twice: the second time nothing is fetched from the kernel again.
PROGRAM = """
import ctypes, resource, runpy
keep = runpy.run_path({path!r})["keep_freed_memory"]
is_kept = keep()
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def fill():
    parts = [library.malloc(1 << 20) for _ in range(24)]
    for part in parts:
        ctypes.memset(part, 1, 1 << 20)
    for part in reversed(parts):
        library.free(part)
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(is_kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**chosen: str) -> tuple[str, int]:
    """What the process says of itself, and its page faults when it fills the memory again."""

    program = PROGRAM.format(path=freed_memory.__file__)
    environment = {name: value for name, value in os.environ.items() if name not in CHOICES} | chosen
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    is_kept, num = told.stdout.split()
    return is_kept, int(num)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only GNU's C library is told")
def test_freed_memory_is_used_again() -> None:
    is_kept, num = faults()
    assert is_kept == "True" and num < 1000, "24 MiB are 6,144 pages"


def test_what_a_user_has_chosen_stays() -> None:
    is_kept, _ = faults(MALLOC_TRIM_THRESHOLD_="131072")
    assert is_kept == "False"
