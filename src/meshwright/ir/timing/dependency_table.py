"""The flat tables of what waits for what, which `ir.dependencies` fills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.value_space import ValueSpace

AFTER, RING = -1, -2  # "versions" of dependencies that are an order only: complete, ended

Ints = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dependencies:
    """Flat tables. Row ``i`` of iteration ``t`` waits for ``row[k]`` of iteration ``t - lag[k]``, ``k`` in
    ``ptr[i]:ptr[i+1]``: until it is complete, or, where ``version[k] == RING``, until it has ended.

    ``version[k]`` is the version read (AFTER and RING: none). ``write_ptr[i]:write_ptr[i+1]`` are the versions that row
    ``i`` writes; ``code`` numbers the values, ``root`` joins versions that share memory (in place, accumulation).
    ``resident_code[resident_ptr[d]:resident_ptr[d+1]]`` are the carried values of list ``d``: they live for ever.
    """

    ptr: Ints
    row: Ints
    lag: Ints
    version: Ints
    write_ptr: Ints
    code: Ints
    root: Ints
    resident_ptr: Ints
    resident_code: Ints
    space: ValueSpace

    @property
    def max_lag(self) -> int:
        """Iterations that a dependency reaches back at most."""
        return int(self.lag.max(initial=0))

    def writer_of(self) -> Ints:
        """Row that writes each version."""
        return np.repeat(np.arange(len(self.write_ptr) - 1, dtype=np.int32), np.diff(self.write_ptr))
