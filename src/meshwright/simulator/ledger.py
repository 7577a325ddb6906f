"""The memory ledger: bytes alive on every device and tier over a trace, as a step curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.timing.wiring import Wiring
from meshwright.ir.trace import MemoryCurve

Times = NDArray[np.float64]


def ended(wiring: Wiring, end: Times, latency_s: Times) -> Times:
    """When every row freed its stream, [iterations, rows], from when it was complete and the latency of every row, seconds.

    Memory goes by this one, as rings do: what a row read is not needed while others wait for what it wrote. The latency of
    an exchange is the largest of its ends.
    """
    latency, other = latency_s.copy(), wiring.next_end
    if not latency.any():
        return end
    for _ in range(int(wiring.program.num_lists).bit_length()):  # twice as many ends of a circle each time
        latency, other = np.maximum(latency, latency[other]), other[other]
    # what was added and is taken away again may differ by rounding, and a row that follows at once must not seem to overlap
    return np.where(latency > 0, end - latency - 2 * np.spacing(end), end)


def memory_curves(wiring: Wiring, posted: Times, end: Times) -> tuple[MemoryCurve, ...]:
    """Curves of the last iteration: a version lives from when its writer is posted to the end of its last reader, when that
    frees its stream (`ended`).

    Versions that share memory (in place, sums) are one piece. Carried values live throughout. A version read in a later
    iteration lives to the end of this one and, as it does in the long run, from the beginning of it.
    """
    program, deps = wiring.program, wiring.deps
    if not program.tables.value_bytes or not deps.space.bytes.any():
        return ()
    posted, end = posted[-1], end[-1]
    begin, finish = _lives(wiring, posted, end)
    code = deps.code
    carried = np.array([kind.carried for kind in program.tables.value_kinds])
    size = np.where(carried[deps.space.kind_of(code)], 0.0, deps.space.bytes[code])
    pieces = np.flatnonzero((deps.root == np.arange(len(code))) & (size > 0))
    where = program.list_of_row[deps.writer_of()[pieces]]
    tier = deps.space.tier[code[pieces]]
    resident = np.repeat(np.arange(program.num_lists), np.diff(deps.resident_ptr))
    curves = []
    for device in range(program.num_lists):
        codes = deps.resident_code[resident == device]
        for number, name in enumerate(deps.space.tiers):
            base = float(deps.space.bytes[codes[deps.space.tier[codes] == number]].sum())
            own = pieces[(where == device) & (tier == number)]
            if base or len(own) or name == "device":
                curves.append(
                    _curve(
                        device, name, base, begin[own], finish[own], size[own], float(posted.min(initial=0.0))
                    )
                )
    return tuple(curves)


def _lives(wiring: Wiring, posted: Times, end: Times) -> tuple[Times, Times]:
    """Begin and end of every piece of memory, by its root version."""
    deps, n = wiring.deps, wiring.program.num_rows
    writer = deps.writer_of()
    begin, finish = np.full(len(deps.code), np.inf), np.full(len(deps.code), -np.inf)
    np.minimum.at(begin, deps.root, posted[writer])
    np.maximum.at(finish, deps.root, end[writer])
    reader = np.repeat(np.arange(n), np.diff(deps.ptr))
    reads = deps.version >= 0
    now = reads & (deps.lag == 0)
    np.maximum.at(finish, deps.root[deps.version[now]], end[reader[now]])
    later = deps.root[deps.version[reads & (deps.lag > 0)]]
    begin[later], finish[later] = posted.min(initial=0.0), end.max(initial=0.0)
    return begin, finish


def _curve(
    device: int, tier: str, base: float, begin: Times, finish: Times, size: Times, origin: float
) -> MemoryCurve:
    times = np.concatenate([begin, finish])
    change = np.concatenate([size, -size])
    order = np.lexsort((change, times))  # what ends frees its memory before what begins takes its own
    times, change = times[order], change[order]
    last = np.concatenate([times[1:] > times[:-1], [True]]) if len(times) else np.zeros(0, dtype=bool)
    total = base + np.cumsum(change)
    return MemoryCurve(
        device,
        tier,
        np.concatenate([[origin], times[last]]),
        np.concatenate([[base], np.round(total[last], 6)]),
    )
