"""What a program says that its devices send to experts and back, beside what its ranks counted as they sent it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from meshwright.ir.program import Program
from meshwright.ir.timing.matching import moved_codes
from meshwright.ir.trace import Trace
from meshwright.ir.value_space import value_space

# Exchanges of so many rows as a routing says: predicted is an expectation, measured what went where.
OF_TOKENS = ("ROUTE", "CHOICES", "GATHER_ROWS", "GATHER_CHOICES", "SCATTER_ROWS", "GATHER_CHOSEN")
SENT = "sent_bytes"  # among a measured trace's metadata: by name, of a device and iteration in the mean


def said_bytes(program: Program) -> dict[str, float]:
    """Bytes that a device sends to others in an iteration, in the mean of all, by name: of n members' buffers (n - 1) / n."""
    codes, space = moved_codes(program), value_space(program)
    sizes = {axis.name: axis.size for axis in program.axes}
    members = np.array([prod(sizes[a] for a in each.axes) for each in program.tables.exchanges] or [1])
    found = {}
    for name in OF_TOKENS:
        effects = [n for n, effect in enumerate(program.tables.effects) if effect.name == name]
        rows = np.flatnonzero(np.isin(program.columns.effect, effects))
        if len(rows):
            shares = 1 - 1 / members[program.columns.exchange[rows]]
            found[name] = float((space.bytes[codes[rows]] * shares).sum()) / program.num_lists
    return found


def both_sent(predicted: Trace, measured: Trace) -> list[tuple[str, float, float]]:
    """Name, bytes predicted, bytes measured of every such exchange; none where the trace says no bytes."""
    counted = measured.metadata.get(SENT)
    if not isinstance(counted, Mapping) or measured.engine == predicted.engine:
        return []
    said = said_bytes(predicted.program)
    return [(name, said[name], float(counted[name])) for name in said if name in counted]
