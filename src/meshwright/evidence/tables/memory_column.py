"""`column_of`: which memory a row's measured peak is, and of which device: by the row's words, else by its software's log.

Three quantities: what tensors take ("allocated"), what the caching allocator holds for them ("reserved"), and all that is in
use on the device ("device": reserved, the driver's context, communicators), as nvidia-smi and rocm-smi show it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from meshwright.evidence.tables.published import traits_of_row
from meshwright.evidence.tables.table import TrainingRow, remarks_of
from meshwright.prediction.memory_buffer import most_context_bytes
from meshwright.prediction.memory_estimate import DeviceMemory, MemoryEstimate
from meshwright.prediction.memory_limit import fit_probability
from meshwright.specs.plan.plan import Plan

Counts = Literal["allocated", "reserved", "device"]
Devices = Literal["fullest", "first", "ends"]


class MemoryColumn(NamedTuple):
    """What is counted; of the fullest device of a pipeline, its first, or the fuller one of its ends; and is that known?"""

    counts: Counts = "reserved"
    devices: Devices = "fullest"
    is_known: bool = True


# First match counts: who says "device memory, not allocated" means the first.
COUNTS: tuple[tuple[re.Pattern[str], Counts], ...] = (
    (re.compile(r"(?:nvidia|rocm|amd)-smi|device memory"), "device"),
    (re.compile(r"\breserved"), "reserved"),
    (re.compile(r"\ballocated"), "allocated"),
)
ENDS = re.compile(r"first or last (?:node|rank|stage)")


def column_of(row: TrainingRow) -> MemoryColumn:
    """As the row says; else as its software logs it; the one in the middle where nobody knows."""
    text = remarks_of(row).lower()
    traits = traits_of_row(row)
    counts = next((kind for words, kind in COUNTS if words.search(text)), None)
    if counts is None:
        return MemoryColumn(traits.reports or "reserved", traits.reports_of, bool(traits.reports))
    return MemoryColumn(counts, "ends" if ENDS.search(text) else traits.reports_of)


class Peak(NamedTuple):
    """Bytes of what a column counts: expected, and at most; `chance` that it is no more than was measured, where the
    estimate says what that quantity's distribution is (None for tensors alone)."""

    expected: float
    upper: float
    chance: float | None


def peak_of(
    column: MemoryColumn, memory: MemoryEstimate, plan: Plan, capacity: float, measured: float | None
) -> Peak:
    """The peak that a column means, of a run that ended: an allocator whose device is full gives freed blocks back before
    it fails, so no more was held than there is. What lies outside the allocator is half way between least and most."""
    devices = _devices(column, memory)
    upper = max(each.upper_bytes for each in devices)
    if column.counts == "allocated":
        return Peak(max(each.allocated_bytes for each in devices), upper, None)
    least = devices[0].context_bytes
    most = most_context_bytes(plan) if least else 0.0
    outside = (least + most) / 2 if column.counts == "device" else 0.0
    inside = capacity - (outside or least)
    held = max(max(each.allocated_bytes, min(each.reserved_bytes, inside)) for each in devices)
    upper += most if column.counts == "device" or not column.is_known else 0.0
    room = None if measured is None else measured - outside + least
    chance = None if room is None else fit_probability(MemoryEstimate(tuple(devices)), room)
    return Peak(held + outside, upper, chance)


def _devices(column: MemoryColumn, memory: MemoryEstimate) -> Sequence[DeviceMemory]:
    if column.devices == "first":
        return memory.devices[:1]
    return (memory.devices[0], memory.devices[-1]) if column.devices == "ends" else memory.devices
