"""One kernel, two ways to run it: plain Python for small programs, compiled for large or many. No import of numba here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from meshwright.ir.kernel.machine_code import MachineCode, load, make, signature_of

# Compiling a kernel takes half a second to several, plain Python 1 to 3 us a row. Measured, 2 cores; any values of this order
# give the same results.
SMALL_ROWS = 40_000
# Loading one that was compiled before takes 40 ms with all that loads it: worth it for so many times fewer rows.
LOADING = 10
# A process that runs many small programs (validation, a search) has soon spent that time, too: from then on everything runs
# compiled, some twenty times as fast. In multiples of either.
MANY_PROGRAMS = 6

Kernel = Callable[..., int]
T = TypeVar("T")
_plain_rows: Counter[Kernel] = Counter()  # that plain Python has run in this process, by kernel
_parts: set[Any] = set()
_codes: dict[tuple[Kernel, str], MachineCode | None] = {}  # by types of arguments, too; None: there is none


def part(function: T) -> T:
    """Marks a function that kernels of its file call: it is compiled with them, and plain where they are.

    Of its file only, because what is kept of a kernel is as old as the kernel's own file.
    """
    _parts.add(function)
    return function


@cache
def compiled(kernel: Kernel) -> Kernel:
    """The kernel and its parts, compiled, as a Python function (kept in numba's cache on disk where that is writable)."""
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
    args = (*inputs, *outputs)
    run = _fast(kernel, num_rows, args)
    if run is not None:
        return run(args)
    _plain_rows[kernel] += num_rows
    filled = [_as_lists(out) for out in outputs]
    status = int(kernel(*(_as_lists(x) for x in inputs), *filled))
    for out, values in zip(outputs, filled, strict=True):
        _copy_back(out, values)
    return status


def _fast(kernel: Kernel, num_rows: int, args: Sequence[Any]) -> Callable[[Sequence[Any]], int] | None:
    """What runs a kernel faster than plain Python does; None where that is not worth what it takes to get it."""
    if not _is_worth(num_rows, SMALL_ROWS // LOADING):
        return None
    key = kernel, signature_of(args)
    if key not in _codes:
        found = load(*key, args) if key[1] else None
        if found is None and not _is_worth(num_rows, SMALL_ROWS):
            return None
        if found is None and key[1]:
            found = make(kernel, _with_compiled_parts(kernel), key[1], args)
        _codes[key] = found
    code = _codes[key]
    return code.run if code else lambda given: int(compiled(kernel)(*given))


def _is_worth(num_rows: int, least: int) -> bool:
    """Is so much to do, or was so much done by plain Python?"""
    return num_rows > least or _plain_rows.total() > MANY_PROGRAMS * least


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
