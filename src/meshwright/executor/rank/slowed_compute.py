"""Slows the computes of one process in proportion: a factor of 2 makes each take twice its own processor time.

The added time is spent computing, not asleep: the core is as busy as that of a processor that really is slower, and the
clock that measures computes sees it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from meshwright.executor.meter.compute_clock import compute_seconds
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handler, Pending, Row
from meshwright.executor.rank.rank_list import RankList
from meshwright.ir.table import Kind

# zlib lets other threads of the process run while it sums more than 5 kB, so that transfers go on; this many take
# about two microseconds, and the time added is a whole number of them.
_SCRATCH = bytes(6000)


def slow_computes(ranked: RankList, factor: float) -> None:
    """Let every COMPUTE of a rank's list take `factor` times as long."""
    for step in ranked.steps:
        if step.row.kind == Kind.COMPUTE and factor > 1.0:
            step.handler = _slowed(step.handler, factor)


def _slowed(handler: Handler, factor: float) -> Handler:
    def run(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any] | Pending:
        begin_s = compute_seconds()
        outputs = handler(context, row, inputs)
        stretch(factor, begin_s)
        return outputs

    return run


def stretch(factor: float, begin_s: float) -> None:
    """Keep this thread busy until `factor` times what it has computed since `begin_s` (of `compute_seconds`) is over."""
    if factor <= 1.0:
        return
    end_s = begin_s + factor * (compute_seconds() - begin_s)
    while compute_seconds() < end_s:
        zlib.crc32(_SCRATCH)
