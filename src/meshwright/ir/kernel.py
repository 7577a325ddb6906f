"""One kernel, two ways to run it: plain Python for small programs, compiled for large or many. No import of numba here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

# Importing numba and loading a kernel from its cache takes half a second, compiling one takes several; plain Python
# handles about half a million kernel steps in that time. Measured, 2 cores; any value of this order gives the same results.
SMALL_ROWS = 40_000
# A process that runs many small programs (validation, a search) has soon spent that half second, too, at 1 to 3 us a row and
# kernel: from then on everything runs compiled, some twenty times as fast. In multiples of SMALL_ROWS.
MANY_PROGRAMS = 6

Kernel = Callable[..., int]
_plain_rows: Counter[Kernel] = Counter()  # that plain Python has run in this process, by kernel


@cache
def compiled(kernel: Kernel) -> Kernel:
    """The kernel, compiled (and kept in numba's cache on disk where it is writable)."""
    import numba

    try:
        jitted: Kernel = numba.njit(cache=True, nogil=True)(kernel)
    except RuntimeError:  # no directory for the cache can be written: compile anew in every process
        jitted = numba.njit(nogil=True)(kernel)
    return jitted


def call(
    kernel: Kernel, num_rows: int, inputs: Sequence[Any], outputs: Sequence[np.ndarray[Any, Any]]
) -> int:
    """Run ``kernel(*inputs, *outputs)``; it fills ``outputs`` and returns a status.

    A kernel is a function of numbers and flat arrays that uses nothing but indexing and arithmetic, so that the small
    path can run it on lists, which plain Python indexes several times faster than arrays.
    """
    if num_rows > SMALL_ROWS or _plain_rows.total() > MANY_PROGRAMS * SMALL_ROWS:
        return int(compiled(kernel)(*inputs, *outputs))
    _plain_rows[kernel] += num_rows
    lists = [x.tolist() if isinstance(x, np.ndarray) else x for x in inputs]
    filled = [out.tolist() for out in outputs]
    status = int(kernel(*lists, *filled))
    for out, values in zip(outputs, filled, strict=True):
        out[:] = values
    return status
