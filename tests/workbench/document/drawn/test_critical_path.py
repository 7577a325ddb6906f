"""The critical path: without gaps, from the beginning of an iteration to its end."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright import api
from meshwright.ir.timing.wiring import wire
from meshwright.workbench.document.drawn.critical_path import critical_path


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "dualpipe"])
@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 2.5, 0.25)])
def test_its_instructions_take_the_whole_span(schedule: str, times: tuple[float, ...]) -> None:
    """Nothing but computes takes time here, so what is on the path adds up to the span, one behind the other."""
    trace = api.simulate(schedule=schedule, stages=4, microbatches=8, times=times)
    start_s, end_s = trace.start_s[-1], trace.end_s[-1]
    path = critical_path(wire(trace.program), start_s, end_s)
    assert end_s[path[-1]] == end_s.max() and start_s[path[0]] == start_s.min()
    assert (end_s - start_s)[path].sum() == pytest.approx(end_s.max() - start_s.min())
    assert np.allclose(start_s[path[1:]], end_s[path[:-1]])


def test_the_path_goes_through_latency_of_messages() -> None:
    trace = api.simulate(schedule="1f1b", stages=3, microbatches=4, comm=0.5)
    path = critical_path(wire(trace.program), trace.start_s[-1], trace.end_s[-1])
    lists = trace.program.list_of_row[path]
    assert set(lists.tolist()) == {0, 1, 2}, "the first forward goes down the whole pipeline"
    assert (np.diff(trace.end_s[-1][path]) >= 0).all()
