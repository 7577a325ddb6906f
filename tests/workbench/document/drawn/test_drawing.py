"""A drawn trace has the rows of the trace, devices that do the same once, and never more than can be drawn."""

from __future__ import annotations

import numpy as np
import pytest
from tests.reports.sample import pipeline_trace
from tests.workbench.reading import values

from meshwright import api
from meshwright.ir.program import Axis
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.lowering import Transfers, program_of_orders
from meshwright.schedules import registered
from meshwright.workbench.document.document import DrawnTrace, plain_json
from meshwright.workbench.document.drawn.drawing import MOST_MEMORY_POINTS, drawn_trace


def columns(drawn: DrawnTrace) -> dict[str, np.ndarray]:
    return {name: values(column) for name, column in plain_json(drawn)["columns"].items()}


def test_every_instruction_that_takes_time_is_drawn_once_by_lane_and_start() -> None:
    trace = pipeline_trace(noise=0.1)
    drawn = drawn_trace(trace, "it")
    found = columns(drawn)
    start_s, end_s = trace.start_s[-1] - trace.start_s[-1].min(), trace.end_s[-1] - trace.start_s[-1].min()
    assert sorted(found["start_s"]) == pytest.approx(sorted(start_s[end_s > start_s]), rel=1e-6)
    assert (np.diff(found["lane"].astype(int)) >= 0).all()
    for lane in np.unique(found["lane"]):
        assert (np.diff(found["start_s"][found["lane"] == lane]) >= 0).all()
    assert drawn.span_s == pytest.approx(end_s.max()) and not drawn.is_sampled and not drawn.groups


def test_the_words_of_a_row_are_those_of_the_program() -> None:
    trace = api.simulate(schedule="1f1b", stages=3, microbatches=4)
    drawn = drawn_trace(trace, "it")
    found = columns(drawn)
    told = {
        f"{stage}{drawn.names[name]}{microbatch}"
        for stage, name, microbatch in zip(found["stage"], found["name"], found["microbatch"], strict=True)
    }
    takes_time = np.flatnonzero(trace.end_s[-1] > trace.start_s[-1])
    assert told == {trace.program.text_of(row) for row in takes_time.tolist()}
    assert {drawn.kinds[kind].name for kind in found["kind"]} == {"forward", "backward"}


def test_devices_that_do_the_same_are_drawn_once() -> None:
    orders = registered()["1f1b"].orders(2, 4)
    program = Transfers()(program_of_orders(orders, collapsed=[Axis("dp", 3, materialised=False)]))
    whole = drawn_trace(api.simulate(program.expand("dp")), "it")
    folded = drawn_trace(api.simulate(program), "it")
    assert [each.count for each in whole.groups] == [each.count for each in folded.groups] == [3, 3]
    assert len(whole.devices) == len(folded.devices) == 2
    assert plain_json(whole.columns) == plain_json(folded.columns)


def test_of_too_many_rows_is_drawn_what_runs_at_even_moments() -> None:
    trace = api.simulate(schedule="1f1b", stages=4, microbatches=500)
    whole, drawn = drawn_trace(trace, "it"), drawn_trace(trace, "it", most_rows=800)
    found = columns(drawn)
    assert drawn.is_sampled and 400 < found["lane"].size <= 800
    busy = [float((each["end_s"] - each["start_s"]).sum()) for each in (columns(whole), found)]
    assert busy[1] == pytest.approx(busy[0], rel=0.02)


def test_of_a_long_curve_the_peak_stays() -> None:
    trace = pipeline_trace()
    times = np.linspace(0, trace.end_s[-1].max(), 50_000)
    held = np.random.default_rng(1).random(50_000)
    curve = MemoryCurve(0, "device", times, held)
    shown = Trace(trace.program, trace.posted_s, trace.start_s, trace.end_s, trace.engine, (curve,))
    (memory,) = drawn_trace(shown, "it").memory
    assert (
        memory.bytes.values.max() == np.float32(held.max()) and memory.bytes.values.size <= MOST_MEMORY_POINTS
    )
