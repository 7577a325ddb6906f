"""A trace as Chrome trace events, for ui.perfetto.dev: a process a device, a thread a stream, arrows for exchanges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.ir.table import Kind
from meshwright.ir.timing.matching import match
from meshwright.ir.trace import Trace
from meshwright.reports.trace.timeline import FloatArray, IntArray, Timeline, read_timeline

SCHEMA = "meshwright-perfetto 1"
NANOSECONDS = 1_000_000_000
MICROSECOND = 1000.0  # nanoseconds; the format counts in microseconds
ABSTRACT_UNIT_NS = 1_000_000  # one unit of an abstract time is drawn as a millisecond
PROCESSES_PER_TRACE = 1_000_000  # process ids of the second trace start here
MAX_LANES = 64  # threads of one stream, where its instructions overlap

Event = dict[str, Any]


def perfetto_events(traces: Trace | Mapping[str, Trace], iteration: int = -1) -> dict[str, Any]:
    """The trace file as plain data: complete events, flow arrows, memory counters, names of processes and threads.

    Several labelled traces become groups of processes beside each other. Events are sorted by time.
    """
    labelled = traces if isinstance(traces, Mapping) else {"": traces}
    names: list[Event] = []
    events: list[Event] = []
    for place, (label, trace) in enumerate(labelled.items()):
        picture = _Picture(label, trace, read_timeline(trace, iteration), place * PROCESSES_PER_TRACE)
        names += picture.names()
        events += [*picture.slices(), *picture.arrows(), *picture.counters()]
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    engines = {label or "trace": f"{trace.engine} engine" for label, trace in labelled.items()}
    return {
        "traceEvents": names + events,
        "displayTimeUnit": "ms",
        "otherData": {"schema": SCHEMA, **engines},
    }


def perfetto_json(traces: Trace | Mapping[str, Trace], iteration: int = -1) -> str:
    """The trace file as text."""
    return json.dumps(perfetto_events(traces, iteration), separators=(",", ":"), allow_nan=False)


def write_perfetto(traces: Trace | Mapping[str, Trace], path: str | Path, iteration: int = -1) -> Path:
    """Write the trace file and return its path."""
    target = Path(path)
    target.write_text(perfetto_json(traces, iteration), encoding="utf-8")
    return target


class _Picture:
    """One trace on its way into events."""

    def __init__(self, label: str, trace: Trace, timeline: Timeline, first_process: int) -> None:
        self.label = label
        self.trace = trace
        self.timeline = timeline
        self.first_process = first_process
        unit_ns = NANOSECONDS if timeline.time_unit == "s" else ABSTRACT_UNIT_NS
        self.unit_ns = unit_ns
        # Whole nanoseconds: rounding keeps the order, so what does not overlap in seconds does not here either.
        self.start_ns = np.rint(timeline.start_s * unit_ns).astype(np.int64)
        self.end_ns = np.maximum(np.rint(timeline.end_s * unit_ns).astype(np.int64), self.start_ns)
        self.thread = self._threads()

    def process(self, device: int) -> int:
        return self.first_process + device + 1

    def _threads(self) -> IntArray:
        """Thread of every row: its stream, or a further one where instructions of a stream overlap (batches)."""
        timeline, streams = self.timeline, len(self.timeline.streams)
        thread = timeline.stream + 1
        order = np.lexsort((self.end_ns, self.start_ns, timeline.stream, timeline.device))
        key = timeline.device * streams + timeline.stream
        same = key[order][1:] == key[order][:-1]
        overlaps = same & (self.start_ns[order][1:] < self.end_ns[order][:-1])
        for stream_key in np.unique(key[order][1:][overlaps]).tolist():
            rows = order[key[order] == stream_key]
            thread[rows] += self._lanes(rows) * streams
        return thread

    def _lanes(self, rows: IntArray) -> IntArray:
        """Greedy: the first lane that is free at the row's start."""
        free_ns: list[int] = []
        lanes = np.zeros(rows.size, dtype=np.int64)
        for place, row in enumerate(rows.tolist()):
            start = int(self.start_ns[row])
            lane = next((index for index, end in enumerate(free_ns) if end <= start), len(free_ns))
            lane = min(lane, MAX_LANES - 1)
            free_ns[lane : lane + 1] = [int(self.end_ns[row])]
            lanes[place] = lane
        return lanes

    def names(self) -> list[Event]:
        """Names and order of the processes and threads."""
        events: list[Event] = []
        pairs = (
            np.unique(np.stack([self.timeline.device, self.thread]), axis=1).T.tolist()
            if self.thread.size
            else []
        )
        for device, name in enumerate(self.timeline.devices):
            title = f"{self.label} {name}".strip()
            events.append(_meta("process_name", self.process(device), 0, title))
            events.append(_meta("process_sort_index", self.process(device), 0, self.process(device)))
        streams = self.timeline.streams
        for device, thread in pairs:
            lane, stream = divmod(thread - 1, len(streams))
            name = streams[stream] + (f" ({lane + 1})" if lane else "")
            events.append(_meta("thread_name", self.process(device), thread, name))
            events.append(_meta("thread_sort_index", self.process(device), thread, thread))
        return events

    def slices(self) -> list[Event]:
        """One complete event an instruction."""
        timeline, columns = self.timeline, self.trace.program.columns
        names = self.trace.program.tables.name_of_stage
        return [
            {
                "ph": "X",
                "name": f"{timeline.text(row)} {names(int(columns.stage[row]))}".rstrip(),
                "cat": timeline.names[timeline.name[row]],
                "pid": self.process(int(timeline.device[row])),
                "tid": int(self.thread[row]),
                "ts": start / MICROSECOND,
                "dur": (end - start) / MICROSECOND,
                "args": {
                    "stage": int(columns.stage[row]),
                    "microbatch": int(timeline.microbatch[row]),
                    "row": row,
                },
            }
            for row, (start, end) in enumerate(zip(self.start_ns.tolist(), self.end_ns.tolist(), strict=True))
        ]

    def arrows(self) -> list[Event]:
        """From each SEND to its RECEIVE: the flow starts where the send starts and ends where the receive ends."""
        program = self.trace.program
        partners = match(program)
        events: list[Event] = []
        for row in np.flatnonzero(program.kinds == Kind.SEND).tolist():
            other = int(partners[row])
            if other == row:
                continue
            sent, received = int(self.start_ns[row]), max(int(self.start_ns[row]), int(self.end_ns[other]))
            number = self.first_process + row
            events.append(self._arrow("s", row, number, sent))
            events.append({**self._arrow("f", other, number, received), "bp": "e"})
        return events

    def _arrow(self, phase: str, row: int, number: int, time_ns: int) -> Event:
        return {
            "ph": phase,
            "id": number,
            "name": "exchange",
            "cat": "exchange",
            "pid": self.process(int(self.timeline.device[row])),
            "tid": int(self.thread[row]),
            "ts": time_ns / MICROSECOND,
        }

    def counters(self) -> list[Event]:
        """Memory of each device and tier inside the iteration, as counter tracks in bytes."""
        events: list[Event] = []
        for curve in self.trace.memory:
            times: FloatArray = np.asarray(curve.times_s, dtype=np.float64) - self.timeline.origin_s
            inside = np.flatnonzero((times >= 0.0) & (times <= self.timeline.extent_s))
            shown = inside if not inside.size or inside[0] == 0 else np.concatenate(([inside[0] - 1], inside))
            for index in shown.tolist():
                time_ns = max(0, round(float(times[index]) * self.unit_ns))
                events.append({
                    "ph": "C",
                    "name": f"memory ({curve.tier})",
                    "pid": self.process(int(curve.device)),
                    "ts": time_ns / MICROSECOND,
                    "args": {"bytes": int(curve.bytes[index])},
                })  # fmt: skip
        return events


def _meta(about: str, process: int, thread: int, value: str | int) -> Event:
    key = "sort_index" if about.endswith("sort_index") else "name"
    return {"ph": "M", "name": about, "pid": process, "tid": thread, "args": {key: value}}
