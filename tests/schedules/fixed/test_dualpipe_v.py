"""DualPipeV: idle time, peak, and the pairs of its main phase."""

from __future__ import annotations

import pytest
from tests.schedules.timing import schedule_trace

from meshwright.ir.judge.metrics import peak_alive, span_s
from meshwright.schedules import registered


@pytest.mark.parametrize("p", range(1, 9))
def test_idle_time_and_peak(p: int) -> None:
    """Equal times and m >= 2p: half a stage's forward a hop, and 2p + 1 activations of a chunk."""
    for m in range(2 * p, 25):
        trace = schedule_trace("dualpipe_v", p, m, 2)
        assert span_s(trace) == pytest.approx(3 * m + (p - 1) / 2, abs=1e-9), m
        assert max(peak_alive(trace)) == p + 0.5, m


def test_fewer_microbatches_than_it_is_made_for() -> None:
    """Never slower than the 2p that its order was written for."""
    for p in range(1, 9):
        whole = span_s(schedule_trace("dualpipe_v", p, 2 * p, 2))
        assert all(span_s(schedule_trace("dualpipe_v", p, m, 2)) <= whole for m in range(1, 2 * p))


def test_the_main_phase_pairs_a_forward_with_a_whole_backward_of_the_other_chunk() -> None:
    p, m = 3, 12
    for device, row in enumerate(registered()["dualpipe_v"].orders(p, m)):
        down, up = device, 2 * p - 1 - device
        pairs = [
            (a.stage, b.stage)
            for a, b, c in zip(row, row[1:], row[2:])
            if (a.name, b.name, c.name) == ("F", "I", "W")
            and (b.stage, b.microbatch) == (c.stage, c.microbatch)
        ]
        assert pairs.count((down, up)) >= m - 2 * p + device + 1
        assert pairs.count((up, down)) >= m - 2 * p + device + 1
