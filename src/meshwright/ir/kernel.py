"""One kernel, two ways to run it: plain Python for small programs, compiled for large or many. No import of numba here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

# Importing numba and loading a kernel from its cache takes half a second, compiling one takes several; plain Python
# handles about half a million kernel steps in that time. Measured, 2 cores; any value of this order gives the same results.
SMALL_ROWS = 40_000
# A process that runs many small programs (validation, a search) has soon spent that half second, too, at 1 to 3 us a row and
# kernel: from then on everything runs compiled, some twenty times as fast. In multiples of SMALL_ROWS.
MANY_PROGRAMS = 6

Kernel = Callable[..., int]
T = TypeVar("T")
_plain_rows: Counter[Kernel] = Counter()  # that plain Python has run in this process, by kernel
_parts: set[Any] = set()


def part(function: T) -> T:
    """Marks a function that kernels of its file call: it is compiled with them, and plain where they are.

    Of its file only, because numba's cache of a kernel is as old as the kernel's own file.
    """
    _parts.add(function)
    return function


@cache
def compiled(kernel: Kernel) -> Kernel:
    """The kernel and its parts, compiled (and kept in numba's cache on disk where it is writable)."""
    import numba

    whole = _with_compiled_parts(kernel)
    options: dict[str, Any] = {"nogil": True}
    if whole is not kernel or kernel in _parts:
        # Nothing is allocated in a kernel, so nobody need count references to its arrays: of those in named tuples numba
        # counts each use, which is 20 times the time of the rest.
        options["_nrt"] = False
    if kernel in _parts:
        options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # only kernels call it
    try:
        jitted: Kernel = numba.njit(cache=True, **options)(whole)
    except RuntimeError:  # no directory for the cache can be written: compile anew in every process
        jitted = numba.njit(**options)(whole)
    return jitted


def _with_compiled_parts(kernel: Any) -> Any:
    """The kernel as a function that calls the compiled form of each part that it names; itself where it names none."""
    named = {name: kernel.__globals__.get(name) for name in kernel.__code__.co_names}
    parts = {
        name: compiled(value)
        for name, value in named.items()
        if isinstance(value, FunctionType) and value in _parts
    }
    if not parts:
        return kernel
    copy = FunctionType(kernel.__code__, {**kernel.__globals__, **parts}, kernel.__name__)
    copy.__qualname__ = kernel.__qualname__
    return copy


def call(kernel: Kernel, num_rows: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    """Run ``kernel(*inputs, *outputs)``; it fills ``outputs`` and returns a status.

    A kernel is a function of numbers, flat arrays and named tuples of both that uses nothing but indexing, arithmetic and
    its parts, so that the small path can run it on lists, which plain Python indexes several times faster than arrays.
    """
    if num_rows > SMALL_ROWS or _plain_rows.total() > MANY_PROGRAMS * SMALL_ROWS:
        return int(compiled(kernel)(*inputs, *outputs))
    _plain_rows[kernel] += num_rows
    filled = [_as_lists(out) for out in outputs]
    status = int(kernel(*(_as_lists(x) for x in inputs), *filled))
    for out, values in zip(outputs, filled, strict=True):
        _copy_back(out, values)
    return status


def _as_lists(x: Any) -> Any:
    """Arrays as lists, also in a named tuple; all else as it is."""
    if isinstance(x, np.ndarray):
        return x.tolist()
    return type(x)(*map(_as_lists, x)) if isinstance(x, tuple) else x


def _copy_back(out: Any, values: Any) -> None:
    """Lists that a kernel has filled into the arrays that they were."""
    if isinstance(out, tuple):
        for one, filled in zip(out, values, strict=True):
            _copy_back(one, filled)
    elif isinstance(out, np.ndarray):
        out[:] = values
