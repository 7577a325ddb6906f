"""Whether rows that write in place what they read leave it to others until these have read it.

A row that reads and writes one value has one memory for both versions. Who else reads the version before must have ended when
the row starts: by their stream, by what the row waits for, or because a ring of one makes it wait. The contributions to a sum
are looked at by `check_whole`. Rows of the same iteration and device are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.ir.grid import grid
from meshwright.ir.kernel.kernel import call
from meshwright.ir.timing.wiring import Wiring
from meshwright.specs.error import ProgramError


def check_in_place(wiring: Wiring) -> None:
    """Nobody reads a version that may be overwritten meanwhile.

    Raises:
        ProgramError: with the row that writes in place, and the reader that it does not wait for.
    """
    program, deps = wiring.program, wiring.deps
    if not len(deps.code):
        return
    edges = (program.offsets, deps.ptr, deps.row, deps.lag, deps.version)
    streams = program.columns.stream
    overwriter = np.zeros(2 * len(deps.code), dtype=np.int32)
    if not call(
        _find_overwriters, program.num_rows, (*edges, deps.write_ptr, deps.code, streams), [overwriter]
    ):
        return
    num_streams = len(program.tables.streams)
    longest = int(np.diff(program.offsets).max(initial=0))
    where, last = np.zeros(2, dtype=np.int64), np.zeros(num_streams, dtype=np.int32)
    ended = np.zeros(longest * num_streams, dtype=np.int32)
    if call(
        _find_unordered, program.num_rows, (*edges, streams, num_streams, overwriter), [ended, last, where]
    ):
        reader, view = program.row(int(where[0])), program.row(int(where[1]))
        raise ProgramError(
            f"device {view.device}, position {view.position}: {view.text} writes in place what {reader.text} may still read "
            f"on stream {reader.stream}; give the kind of this value a ring of one, or let the row wait for that reader\n"
            + grid(program, view.row)
        )


def _find_overwriters(
    offsets: Any, ptr: Any, dep_row: Any, dep_lag: Any, dep_version: Any, write_ptr: Any, codes: Any, streams: Any,
    overwriter: Any,
) -> int:  # fmt: skip
    """Kernel: one more than the row that overwrites each version, by (version, lag 0 or 1); 1 where a reader of any of them
    is on another stream."""
    found = 0
    for i in range(offsets[len(offsets) - 1]):
        for k in range(ptr[i], ptr[i + 1]):
            if dep_version[k] >= 0 and dep_lag[k] <= 1:
                for v in range(write_ptr[i], write_ptr[i + 1]):
                    if codes[v] == codes[dep_version[k]]:
                        overwriter[2 * dep_version[k] + dep_lag[k]] = i + 1
    for i in range(offsets[len(offsets) - 1]):
        for k in range(ptr[i], ptr[i + 1]):
            if dep_version[k] >= 0 and dep_lag[k] <= 1:
                other = overwriter[2 * dep_version[k] + dep_lag[k]] - 1
                if other > i and streams[other] != streams[i]:
                    found = 1
    return found


def _find_unordered(
    offsets: Any, ptr: Any, dep_row: Any, dep_lag: Any, dep_version: Any, streams: Any, num_streams: int, overwriter: Any,
    ended: Any, last: Any, where: Any,
) -> int:  # fmt: skip
    """Kernel: 1 and two rows, a reader of a version and the row that overwrites it without waiting for it.

    ``ended[row of the list, stream]`` is one more than the last row of a stream that has ended when the row starts.
    """
    for d in range(len(offsets) - 1):
        first = offsets[d]
        for s in range(num_streams):
            last[s] = -1
        for i in range(first, offsets[d + 1]):
            own = (i - first) * num_streams
            for s in range(num_streams):
                ended[own + s] = 0
            # the row before it in its stream, and what it waits for
            for k in range(ptr[i] - 1, ptr[i + 1]):
                if k >= ptr[i] and dep_lag[k] != 0:
                    continue
                other = dep_row[k] if k >= ptr[i] else last[streams[i]]
                if other < 0:
                    continue
                for s in range(num_streams):
                    at = ended[(other - first) * num_streams + s]
                    if at > ended[own + s]:
                        ended[own + s] = at
                if other + 1 > ended[own + streams[other]]:
                    ended[own + streams[other]] = other + 1
            last[streams[i]] = i
        for i in range(first, offsets[d + 1]):
            for k in range(ptr[i], ptr[i + 1]):
                if dep_version[k] < 0 or dep_lag[k] > 1:
                    continue
                other = overwriter[2 * dep_version[k] + dep_lag[k]] - 1
                if other > i and ended[(other - first) * num_streams + streams[i]] < i + 1:
                    where[0] = i
                    where[1] = other
                    return 1
    return 0
