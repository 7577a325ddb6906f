"""What every picture of a trace starts from: one iteration of it, as flat arrays per device and lane."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.ir.program import Program
from meshwright.ir.trace import Trace

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

# Lanes of one device, from top to bottom: the first is drawn as a row, the others as thin lines beneath it.
LANES = ("compute", "send", "receive", "collective", "memory", "host")
# Position in LANES of each ir.table.Kind by name; COMPUTE on any stream is drawn in the row of computes.
LANE_OF_KIND = {
    "COMPUTE": 0,
    "SEND": 1,
    "RECEIVE": 2,
    "COLLECTIVE": 3,
    "LOAD": 4,
    "STORE": 4,
    "COPY": 4,
    "CALL": 5,
}


@dataclass(frozen=True)
class Timeline:
    """One iteration of a trace, times in seconds from the first start of that iteration.

    All arrays have one entry per program row, in program order: `device` is an index into `devices`,
    `lane` into `LANES`, `name` into `names`, `stream` into `streams`; `microbatch` is -1 where there is none.
    """

    program: Program
    devices: tuple[str, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    streams: tuple[str, ...]
    device: IntArray
    lane: IntArray
    name: IntArray
    stream: IntArray
    microbatch: IntArray
    start_s: FloatArray
    end_s: FloatArray
    origin_s: float
    time_unit: str

    @property
    def num_rows(self) -> int:
        """Number of instructions in the iteration."""
        return int(self.start_s.size)

    @cached_property
    def extent_s(self) -> float:
        """Seconds from the first start to the last end, at least a positive number."""
        last = float(self.end_s.max()) if self.num_rows else 0.0
        return last if last > 0.0 else 1.0

    def text(self, row: int) -> str:
        """The program's own spelling of a row, for example `1SEND_B3`."""
        return str(self.program.text_of(row))

    def rows(self, device: int, lane: int) -> IntArray:
        """Rows of one lane of one device, by start."""
        rows, keys = self._order
        key = device * len(LANES) + lane
        low, high = np.searchsorted(keys, [key, key + 1])
        return rows[low:high]

    @cached_property
    def lanes(self) -> tuple[int, ...]:
        """The lanes that any device uses, always with the computes first."""
        return (0, *(lane for lane in np.unique(self.lane).tolist() if lane > 0))

    def sample(self, device: int, lane: int, num_bins: int, horizon_s: float) -> IntArray:
        """The row that runs at the middle of each of `num_bins` equal bins of [0, horizon_s], or -1.

        Rounding both ends to bins is sampling at the middles: neighbours never overlap, and what is
        shorter than a bin is drawn in proportion to its time. Returns an array [num_bins].
        """
        rows = self.rows(device, lane)
        found = running_at(self.start_s[rows], self.end_s[rows], num_bins, horizon_s)
        return np.where(found >= 0, rows[found], -1) if rows.size else found

    @cached_property
    def _order(self) -> tuple[IntArray, IntArray]:
        keys = self.device * len(LANES) + self.lane
        rows = np.lexsort((self.end_s, self.start_s, keys))
        return rows, keys[rows]


def running_at(start_s: FloatArray, end_s: FloatArray, num_bins: int, horizon_s: float) -> IntArray:
    """Which of the rows of one lane, by start, runs at the middle of each of `num_bins` equal bins of [0, horizon_s], or
    -1. Returns an array [num_bins]."""
    bins = np.full(num_bins, -1, dtype=np.int64)
    scale = num_bins / horizon_s
    first = np.clip(np.rint(start_s * scale), 0, num_bins).astype(np.int64)
    last = np.clip(np.rint(end_s * scale), 0, num_bins).astype(np.int64)
    lengths = np.maximum(last - first, 0)
    offsets = np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
    bins[np.arange(int(lengths.sum())) + offsets] = np.repeat(np.arange(first.size), lengths)
    return bins


def read_timeline(trace: Trace, iteration: int = -1) -> Timeline:
    """One iteration of a trace (the last unless given) as a `Timeline`.

    `trace.metadata["time_unit"]` is "s" unless the times are abstract, then "".
    Raises IndexError if the trace has no such iteration.
    """
    program = trace.program
    names, kinds, name_of_effect = interned_names(program)
    name = np.array(name_of_effect or [0], dtype=np.int64)[program.columns.effect]
    start_s = np.asarray(trace.start_s[iteration], dtype=np.float64)
    origin_s = float(start_s.min()) if start_s.size else 0.0
    return Timeline(
        program=program,
        devices=device_labels(program),
        names=names,
        kinds=kinds,
        streams=program.tables.streams,
        device=program.list_of_row.astype(np.int64),
        lane=np.array([LANE_OF_KIND[kind] for kind in kinds] or [0], dtype=np.int64)[name],
        name=name,
        stream=program.columns.stream.astype(np.int64),
        microbatch=microbatches_of(program, names, name, program.columns.microbatch),
        start_s=start_s - origin_s,
        end_s=np.asarray(trace.end_s[iteration], dtype=np.float64) - origin_s,
        origin_s=origin_s,
        time_unit=str(trace.metadata.get("time_unit", "s")),
    )


def microbatches_of(
    program: Program, names: tuple[str, ...], name: IntArray, microbatch: NDArray[np.integer]
) -> IntArray:
    """Microbatch of rows of these names, -1 for what happens once a stage or group."""
    once = {duty.name for duty in program.tables.duties if duty.per != "path"}
    is_once = np.array([known in once for known in names] or [False], dtype=np.bool_)
    return np.where(is_once[name], -1, microbatch.astype(np.int64))


def device_labels(program: Program) -> tuple[str, ...]:
    """One short label a list: its coordinates over the stored axes of more than one device, or its number."""
    wide = {axis.name for axis in program.list_axes if axis.size > 1}
    labels = []
    for index in range(program.num_lists):
        named = [f"{axis}{place}" for axis, place in program.coordinates(index).items() if axis in wide]
        labels.append(" ".join(named) or f"dev{index}")
    return tuple(labels)


def interned_names(program: Program) -> tuple[tuple[str, ...], tuple[str, ...], list[int]]:
    """Distinct (name, kind) of the effects, and which of them each effect is."""
    seen: dict[tuple[str, str], int] = {}
    index = [seen.setdefault((effect.name, effect.kind.name), len(seen)) for effect in program.tables.effects]
    return tuple(name for name, _ in seen), tuple(kind for _, kind in seen), index
