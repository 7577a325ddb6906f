"""MachineCode: a kernel as the compiler made it, kept on disk, loaded and called without the compiler.

Importing numba and its own cache takes 0.6 s of CPU; LLVM alone, which loads the bytes that numba made, takes 0.04 s. A
kernel's arguments are numbers, flat arrays and named tuples of both, so that its calling convention is short: a pointer for
the result, one for an error, then of each array (owner, parent, items, bytes of one, data, shape, strides), of each tuple
what is in it. Where a compiler's version would have it otherwise nothing is kept, and numba calls its kernel itself.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshwright.specs.cluster.profile import cache_path

SUFFIX = ".kernel"
FORMAT = b"meshwright-kernel 1"
_WORD, _POINTER = ctypes.c_int64, ctypes.c_void_p
_ARRAY = (_POINTER, _POINTER, _WORD, _WORD, _POINTER, _WORD, _WORD)
_LLVM_TYPE = {_WORD: "i64", _POINTER: "ptr", ctypes.c_double: "double"}


class MachineCode(NamedTuple):
    """A kernel for arguments of certain types; `engine` owns the memory in which it lies."""

    function: Any
    engine: Any

    def run(self, args: Sequence[Any]) -> int:
        """Run it on arguments of these types. Raises RuntimeError where the kernel divides by zero."""
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        words: list[int | float] = []
        _flatten(args, words)
        if self.function(ctypes.byref(result), ctypes.byref(error), *words):
            raise RuntimeError("a compiled kernel ended with an error; run it as plain Python to see it")
        return result.value


def signature_of(args: Sequence[Any]) -> str:
    """The types of arguments in a word; empty where some are of no type that machine code takes."""
    try:
        return " ".join(map(_type_name, args))
    except TypeError:
        return ""


def _type_name(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.flags.c_contiguous:
        return str(value.dtype.str)
    if type(value) in (int, float):
        return type(value).__name__
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{type(value).__name__}({' '.join(map(_type_name, value))})"
    raise TypeError(f"{type(value)} is no argument of a kernel")


def _flatten(args: Sequence[Any], words: list[int | float]) -> None:
    """What is passed for each argument."""
    for value in args:
        if isinstance(value, np.ndarray):
            size, each = value.size, value.itemsize
            words += (0, 0, size, each, value.__array_interface__["data"][0], size, each)
        elif isinstance(value, tuple):
            _flatten(value, words)
        else:
            words.append(value)


def _word_types(args: Sequence[Any]) -> Iterator[Any]:
    """The types of what is passed for each argument."""
    for value in args:
        if isinstance(value, np.ndarray):
            yield from _ARRAY
        elif isinstance(value, tuple):
            yield from _word_types(value)
        else:
            yield _WORD if isinstance(value, int) else ctypes.c_double


def load(kernel: Callable[..., int], signature: str, args: Sequence[Any]) -> MachineCode | None:
    """What is kept of a kernel for these types; None where nothing is that its source and this processor made."""
    for folder in _folders(kernel):
        try:
            head, checksum, symbol, code = (
                (folder / _file_name(kernel, signature)).read_bytes().split(b"\n", 3)
            )
        except (OSError, ValueError):
            continue
        if head == _made_from(kernel) and checksum == _digest(code):
            return _linked(symbol.decode(), code, args)
    return None


def make(
    kernel: Callable[..., int], whole: Callable[..., int], signature: str, args: Sequence[Any]
) -> MachineCode | None:
    """Compile and keep a kernel for these types; None where numba's calling convention is not the one above. `whole`: the
    kernel with the parts that it calls compiled."""
    compiled = _compiled(whole, args)
    if compiled is None:
        return None
    symbol, code = compiled
    content = b"\n".join([_made_from(kernel), _digest(code), symbol.encode(), code])
    for folder in _folders(kernel):
        if _written(folder / _file_name(kernel, signature), content):
            break
    return _linked(symbol, code, args)


def _compiled(whole: Callable[..., int], args: Sequence[Any]) -> tuple[str, bytes] | None:
    """The function's name in the object, and the object. Imports numba."""
    import llvmlite.binding as llvm
    import numba

    compiler: Any = numba  # whose annotations leave out some options
    known = compiler.types
    types = tuple(_numba_type(each) for each in args)
    jitted = compiler.njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(whole)
    jitted.compile(types)
    made = jitted.overloads[types].fndesc
    module = llvm.parse_assembly(jitted.inspect_llvm(types))
    wanted = [_POINTER, _POINTER, *_word_types(args)]
    found = [_kind(str(each.type)) for each in module.get_function(made.llvm_func_name).arguments]
    others = [each.name for each in module.functions if each.is_declaration]
    is_closed = all(name.startswith("llvm.") for name in others)
    is_count = known.unliteral(made.restype) == known.int64
    if not is_closed or not is_count or found != [_LLVM_TYPE[each] for each in wanted]:
        return None
    return made.llvm_func_name, _target_machine().emit_object(module)


def _kind(llvm_type: str) -> str:
    """Pointers have types of their own in older versions."""
    return "ptr" if llvm_type.endswith("*") else llvm_type


def _numba_type(value: Any) -> Any:
    import numba

    known: Any = numba.types
    if isinstance(value, np.ndarray):
        return known.Array(numba.from_dtype(value.dtype), 1, "C")
    if isinstance(value, tuple):
        return known.NamedTuple([_numba_type(each) for each in value], type(value))
    return known.int64 if isinstance(value, int) else known.float64


def _linked(symbol: str, code: bytes, args: Sequence[Any]) -> MachineCode:
    """The function in this process."""
    import llvmlite.binding as llvm

    machine = _target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, _POINTER, *_word_types(args))
    return MachineCode(kind(engine.get_function_address(symbol)), engine)


def _target_machine() -> Any:
    """This processor. Imports LLVM."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = _processor()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=3, codemodel="jitdefault", jit=True
    )


@cache
def _processor() -> tuple[str, str]:
    """Its name, and what it can do, in LLVM's words."""
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@cache
def _made_from(kernel: Callable[..., int]) -> bytes:
    """What a kernel's object depends on, in a word: the file in which it and its parts stand, the compiler, the processor."""
    import llvmlite

    source = Path(kernel.__code__.co_filename).read_bytes()
    return _digest(b"\n".join([FORMAT, source, repr((llvmlite.__version__, *_processor())).encode()]))


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _file_name(kernel: Callable[..., int], signature: str) -> str:
    return f"{kernel.__module__}.{kernel.__qualname__}-{_digest(signature.encode()).decode()[:16]}{SUFFIX}"


def _folders(kernel: Callable[..., int]) -> list[Path]:
    """Where objects may be kept, as numba keeps its own: where it is told to, else beside the source, else in the user's
    cache."""
    told = os.environ.get("NUMBA_CACHE_DIR", "")
    if told:
        return [Path(told)]
    return [Path(kernel.__code__.co_filename).parent / "__pycache__", cache_path().parent]


def _written(path: Path, content: bytes) -> bool:
    """Write a file at once, for whoever reads it meanwhile; False where its folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError:
        return False
    return True
