"""Perfetto files: the schema that ui.perfetto.dev reads, every instruction once, nothing overlapping on a thread."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reports.sample import pipeline_trace

from meshwright.ir.trace import Trace
from meshwright.reports.trace.perfetto import perfetto_events, perfetto_json, write_perfetto

NEEDED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "pid", "tid", "ts", "dur"},
    "s": {"id", "pid", "tid", "ts", "name", "cat"},
    "f": {"id", "pid", "tid", "ts", "name", "cat", "bp"},
    "C": {"name", "pid", "ts", "args"},
}


def by_phase(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    result: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        result[event["ph"]].append(event)
    return result


def check(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Events have what their phase needs, stand in order of time, and slices of a thread do not overlap."""
    events = by_phase(document)
    for phase, of_phase in events.items():
        for event in of_phase:
            assert NEEDED[phase] <= set(event)
            assert phase == "M" or event["ts"] >= 0
            assert event.get("dur", 0) >= 0
    times = [event["ts"] for event in document["traceEvents"] if event["ph"] != "M"]
    assert times == sorted(times)
    threads: dict[tuple[int, int], float] = {}
    for event in events["X"]:
        thread = (event["pid"], event["tid"])
        assert round(event["ts"] * 1000) >= threads.get(thread, 0)
        threads[thread] = round(event["ts"] * 1000) + round(event["dur"] * 1000)
    named = {(e["pid"], e["tid"]) for e in events["M"] if e["name"] == "thread_name"}
    assert named == set(threads)
    return events


@pytest.mark.parametrize("transfer_s", [0.0, 0.25])
def test_every_instruction_once_with_its_times(transfer_s: float) -> None:
    trace = pipeline_trace(transfer_s=transfer_s, noise=0.1, scale=0.013)
    events = check(perfetto_events(trace))
    assert sorted(e["args"]["row"] for e in events["X"]) == list(range(trace.program.num_rows))
    for event in events["X"]:
        row = event["args"]["row"]
        assert event["name"] == trace.program.text_of(row)
        assert event["ts"] == pytest.approx(trace.start_s[0, row] * 1e6, abs=1e-3)
    processes = [e["args"]["name"] for e in events["M"] if e["name"] == "process_name"]
    assert processes == ["pp0", "pp1", "pp2", "pp3"]
    threads = {e["args"]["name"] for e in events["M"] if e["name"] == "thread_name" and e["pid"] == 2}
    assert threads == {"compute", "send/pp0", "send/pp2", "receive/pp0", "receive/pp2"}


def test_arrows_lead_from_each_send_to_its_receive() -> None:
    trace = pipeline_trace()
    events = check(perfetto_events(trace))
    starts, ends = {e["id"]: e for e in events["s"]}, {e["id"]: e for e in events["f"]}
    assert len(starts) == len(events["s"]) == 2 * 3 * 8 and set(starts) == set(ends)
    slices = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in events["X"]}
    for number, start in starts.items():
        end = ends[number]
        assert abs(start["pid"] - end["pid"]) == 1 and end["ts"] >= start["ts"]
        name = slices[start["pid"], start["tid"], start["ts"]]
        direction = 1 if "SEND_F" in name else -1
        assert end["pid"] - start["pid"] == direction


def test_memory_counters_follow_the_curve() -> None:
    trace = pipeline_trace()
    events = check(perfetto_events(trace))
    for device in range(4):
        values = [e["args"]["bytes"] for e in events["C"] if e["pid"] == device + 1]
        assert max(values) == trace.memory[device].peak_bytes


def test_predicted_and_measured_are_groups_of_their_own(tmp_path: Path) -> None:
    traces = {"predicted": pipeline_trace(), "measured": pipeline_trace(noise=0.1, engine="executed")}
    path = write_perfetto(traces, tmp_path / "trace.json")
    events = check(json.loads(path.read_text(encoding="utf-8")))
    names = {e["pid"]: e["args"]["name"] for e in events["M"] if e["name"] == "process_name"}
    assert sorted(names.values()) == sorted(f"{label} pp{i}" for label in traces for i in range(4))
    assert len({e["id"] for e in events["s"]}) == 2 * 48


def test_overlapping_instructions_of_a_stream_get_lanes() -> None:
    trace = pipeline_trace(2, 4)
    start, end = trace.start_s.copy(), trace.end_s.copy()
    sends = [row for row in range(trace.program.num_rows) if "0SEND_F" in trace.program.text_of(row)]
    start[0, sends] = np.arange(4) * 0.1
    end[0, sends] = 10.0
    overlapping = Trace(trace.program, start, start, end, "executed")
    events = check(perfetto_events(overlapping))
    lanes = {
        e["args"]["name"]
        for e in events["M"]
        if e["name"] == "thread_name" and "send/pp1" in e["args"]["name"]
    }
    assert lanes == {"send/pp1", "send/pp1 (2)", "send/pp1 (3)", "send/pp1 (4)"}


def test_times_start_with_the_iteration() -> None:
    document = json.loads(perfetto_json(pipeline_trace(iterations=3)))
    assert min(e["ts"] for e in by_phase(document)["X"]) == 0.0
