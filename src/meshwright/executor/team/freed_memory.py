"""What a process does with memory that it has freed: keeps it for the next tensors, in place of giving it back to the kernel.

The C library of most Linux systems gives the end of its heap back as soon as a few megabytes there are free, and fetches it
again for the next tensors, page by page. A step that frees a microbatch's values in pieces, as a chain of segments does, had
6,000 to 22,000 faults so; a fault costs 0.25 us to several, most of all in a virtual machine.
"""

from __future__ import annotations

import ctypes
import os
import platform

# Parameters of mallopt(3), and the largest threshold that it takes on machines of 64 bits.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD_BYTES = 32 << 20
NEVER = -1
# What a user has chosen stays.
CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, but single tensors of more than 32 MiB. False where the C library is not GNU's, or
    the environment says otherwise."""
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in CHOICES):
        return False
    library = ctypes.CDLL(None)
    is_kept = library.mallopt(TRIM_THRESHOLD, NEVER) and library.mallopt(
        MMAP_THRESHOLD, LARGEST_THRESHOLD_BYTES
    )
    return bool(is_kept)
