"""`Trace`: when every instruction was posted, started and ended, and how memory went; simulated and measured alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Program
from meshwright.ir.stored.stored_program import arrays_of_program, program_of_arrays, tables_of
from meshwright.ir.text import from_text
from meshwright.specs.bound.array_file import arrays_of
from meshwright.specs.data_text import json_of
from meshwright.specs.error import ProgramError

TRACE_VERSION = 2  # 1 had its program as text, all lists one by one
TIMES = ("posted_s", "start_s", "end_s")
PROFILED = "profiled"  # the engine of a trace that another program's profiler wrote
Times = NDArray[np.float64]
# What reading a file that is no trace, or half of one, may raise: of the archive, of its header, of what that lacks.
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Bytes alive on one device and tier: ``bytes[k]`` from ``times_s[k]`` until ``times_s[k+1]``."""

    device: int
    tier: str
    times_s: Times
    bytes: Times

    @property
    def peak_bytes(self) -> float:
        """The largest value of the curve."""
        return float(self.bytes.max(initial=0.0))


@dataclass(frozen=True, eq=False)
class Trace:
    """Times in seconds, ``[iterations, rows]`` in program order; ``end_s`` is when the result was complete.

    ``engine``: ``reference``, ``max-plus`` or ``event`` (virtual time), ``executed`` (wall clock, zero at the start) or
    ``profiled`` (by another program's profiler, zero at the first start).
    """

    program: Program
    posted_s: Times
    start_s: Times
    end_s: Times
    engine: str
    memory: tuple[MemoryCurve, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Trace of {self.program.num_rows} instructions, {self.num_iterations} iterations, {self.engine}>"

    @property
    def num_iterations(self) -> int:
        """Iterations in the trace."""
        return len(self.end_s)

    @property
    def digest(self) -> str:
        """Digest of the program that was traced."""
        return self.program.digest()

    @property
    def is_measured(self) -> bool:
        """Was it executed, and not simulated?"""
        return self.engine == "executed" or self.is_profile

    @property
    def is_profile(self) -> bool:
        """Did another program's profiler write it? Its rows say when they ran, and not what they wait for."""
        return self.engine == PROFILED

    def save(self, path: str | Path) -> None:
        """Write the trace and its program as one compressed file; lists of devices that are alike to the last bit stand there
        once."""
        header = {
            "schema": TRACE_VERSION,
            "engine": self.engine,
            "digest": self.digest,
            "program": tables_of(self.program),
            "memory": [[curve.device, curve.tier] for curve in self.memory],
            "metadata": dict(self.metadata),
        }
        arrays: dict[str, Any] = {
            f"memory_{k}_{name}": getattr(curve, name)
            for k, curve in enumerate(self.memory)
            for name in ("times_s", "bytes")
        }
        arrays |= arrays_of_program(self.program, {name: getattr(self, name) for name in TIMES})
        with Path(path).open("wb") as file:
            np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Read a trace.

        Raises:
            ProgramError: the file is no trace, is of a newer schema, or its program does not have the digest it carries.
        """
        try:
            return _trace_of(arrays_of(Path(path)), str(path))
        except _BROKEN as error:
            raise ProgramError(
                f"{path} is no trace of meshwright ({error}); give a file that simulate or train wrote"
            ) from error


def labels_of(*traces: Trace) -> tuple[str, ...]:
    """What traces are called beside each other: "predicted" or "measured"; where several are the same, with their numbers."""
    kinds = ["measured" if trace.is_measured else "predicted" for trace in traces]
    return tuple(
        kind if kinds.count(kind) == 1 else f"{kind} {1 + kinds[:place].count(kind)}"
        for place, kind in enumerate(kinds)
    )


def _trace_of(data: Mapping[str, Any], path: str) -> Trace:
    """The trace in the arrays of a file; one of `_BROKEN` where it is none."""
    if data["header"].ndim or data["header"].dtype.kind != "U":
        raise ValueError("its header is no text")
    header = json_of(str(data["header"]))
    if header["schema"] > TRACE_VERSION:
        raise ProgramError(
            f"{path} has trace schema {header['schema']}, this version reads {TRACE_VERSION}; upgrade meshwright"
        )
    program, (posted, start, end) = _read(header, data)
    if program.digest() != header["digest"]:
        raise ProgramError(
            f"{path}: its program has digest {program.digest()}, the trace says {header['digest']}; record it again"
        )
    if any(t.shape != (len(end), program.num_rows) for t in (posted, start, end)) or not len(end):
        raise ValueError("its times are not one row for every iteration and one column for every instruction")
    memory = tuple(
        _curve_of(device, tier, data[f"memory_{k}_times_s"], data[f"memory_{k}_bytes"])
        for k, (device, tier) in enumerate(header["memory"])
    )
    if not isinstance(header["engine"], str):
        raise ValueError("its engine is no text")
    return Trace(program, posted, start, end, header["engine"], memory, dict(header["metadata"]))


def _read(header: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[Program, list[Times]]:
    """Program and times of a file of this schema, or of the first."""
    if header["schema"] > 1:
        return program_of_arrays(header["program"], data, TIMES)
    return from_text(header["program"]), [data[name].astype(np.float64) for name in TIMES]


def _curve_of(device: Any, tier: Any, times_s: Times, held: Times) -> MemoryCurve:
    """One curve; ValueError where it is none."""
    if type(device) is not int or device < 0 or not isinstance(tier, str):
        raise ValueError(f"its memory is of device {device!r} and tier {tier!r}")
    if times_s.ndim != 1 or times_s.shape != held.shape:
        raise ValueError("its memory is not one number for every time")
    return MemoryCurve(device, tier, times_s.astype(np.float64), held.astype(np.float64))
