"""Which exchanges of a trace run beside a compute of their own device."""

from __future__ import annotations

import numpy as np

from meshwright.ir.table import Kind
from meshwright.ir.trace import Trace


def num_beside(trace: Trace, device: int, iteration: int = 0, name: str = "") -> int:
    """Collectives of a list, of this name or any, during which one of its computes runs."""
    program, start_s, end_s = trace.program, trace.start_s[iteration], trace.end_s[iteration]
    rows = np.arange(int(program.offsets[device]), int(program.offsets[device + 1]))
    computes = rows[program.kinds[rows] == Kind.COMPUTE]
    named = np.array([name in ("", effect.name) for effect in program.tables.effects])[program.columns.effect]
    moves = rows[(program.kinds[rows] == Kind.COLLECTIVE) & named[rows]]
    earliest = np.minimum(end_s[computes][None], end_s[moves][:, None])
    both_s = earliest - np.maximum(start_s[computes][None], start_s[moves][:, None])
    return int((both_s > 0.0).any(axis=1).sum())
