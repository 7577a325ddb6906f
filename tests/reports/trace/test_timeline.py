"""What pictures start from: lanes, labels and sampling of one iteration."""

from __future__ import annotations

import numpy as np
import pytest
from tests.reports.sample import pipeline_trace, trace_of

from meshwright.ir.core_vocabulary import STEP, F
from meshwright.ir.judge.metrics import busy_s, span_s
from meshwright.ir.program import Axis, ProgramBuilder
from meshwright.reports.trace.timeline import LANES, read_timeline


def test_lanes_hold_every_row_once_in_order_of_start() -> None:
    timeline = read_timeline(pipeline_trace(noise=0.1))
    lanes = [timeline.rows(d, lane) for d in range(len(timeline.devices)) for lane in range(len(LANES))]
    assert sorted(np.concatenate(lanes).tolist()) == list(range(timeline.num_rows))
    for rows in lanes:
        assert (np.diff(timeline.start_s[rows]) >= 0).all()


def test_times_count_from_the_start_of_the_chosen_iteration() -> None:
    trace = pipeline_trace(iterations=3)
    last = read_timeline(trace)
    assert last.start_s.min() == 0.0
    assert last.origin_s == trace.start_s[2].min() > 0
    assert last.extent_s == pytest.approx(span_s(trace))
    assert read_timeline(trace, 0).origin_s == 0.0


@pytest.mark.parametrize("num_bins", [7, 100, 5000])
def test_sampled_share_of_busy_time_is_the_busy_time(num_bins: int) -> None:
    trace = pipeline_trace(noise=0.05)
    timeline = read_timeline(trace)
    busy = busy_s(trace)
    for device in range(4):
        bins = timeline.sample(device, 0, num_bins, timeline.extent_s)
        assert bins.shape == (num_bins,)
        rows = np.unique(bins[bins >= 0])
        assert (timeline.device[rows] == device).all() and (timeline.lane[rows] == 0).all()
        share = (bins >= 0).mean() * timeline.extent_s
        assert share == pytest.approx(busy[device], abs=16 * 2 * timeline.extent_s / num_bins)


def test_labels_name_only_axes_with_several_stored_lists() -> None:
    effect = F
    both = ProgramBuilder((Axis("pp", 2), Axis("dp", 3), Axis("tp", 4, False)))
    for device in range(6):
        both.add(device, effect)
    one = ProgramBuilder((Axis("pp", 1),))
    one.add(0, effect)
    assert read_timeline(trace_of(both.build())).devices == (
        "pp0 dp0", "pp0 dp1", "pp0 dp2", "pp1 dp0", "pp1 dp1", "pp1 dp2",
    )  # fmt: skip
    assert read_timeline(trace_of(one.build())).devices == ("dev0",)


def test_what_happens_once_a_stage_has_no_microbatch() -> None:
    from meshwright.ir.table import Duty

    builder = ProgramBuilder((Axis("pp", 1),), duties=(Duty("F"), Duty("STEP", "stage")))
    builder.add(0, F)
    builder.add(0, STEP)
    assert read_timeline(trace_of(builder.build())).microbatch.tolist() == [0, -1]
