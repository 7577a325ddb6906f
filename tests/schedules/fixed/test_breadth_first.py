"""Breadth-first interleaving: its closed forms for all small counts."""

from __future__ import annotations

import pytest
from tests.schedules.timing import schedule_trace

from meshwright.ir.judge.metrics import peak_alive, span_s
from meshwright.schedules import registered


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("v", [1, 2, 4])
def test_idle_time_and_peak(p: int, v: int) -> None:
    f, i, w = 1.3, 1.2, 0.9
    for m in range(p, 25):
        trace = schedule_trace("breadth_first", p, m, v, (f, i, w))
        assert span_s(trace) == pytest.approx(m * (f + i + w) + (p - 1) * (f + i + w) / v, abs=1e-9), m
        assert peak_alive(trace) == pytest.approx([m] * p), m


def test_a_chunk_is_left_once() -> None:
    """Forward and backward of a chunk are one run each: what is gathered for it is gathered twice a step."""
    for row in registered()["breadth_first"].orders(4, 6, 3):
        runs = [
            c for k, c in enumerate(row) if not k or (row[k - 1].name, row[k - 1].stage) != (c.name, c.stage)
        ]
        assert len(runs) == 2 * 3
