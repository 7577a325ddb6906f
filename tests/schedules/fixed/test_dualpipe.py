"""DualPipe: idle time, peak, what stands where, mirrored lists, pairs of its main phase, counts that it refuses."""

from __future__ import annotations

import pytest
from tests.schedules.timing import program_of, schedule_trace

from meshwright.ir.judge.metrics import device_time_s, peak_alive, span_s
from meshwright.ir.judge.verify import verify
from meshwright.ir.table import Hop
from meshwright.schedules import Compute, Schedule, registered
from meshwright.schedules.order import devices_of_stages
from meshwright.specs.error import ScheduleError

DEVICES = (2, 4, 6, 8, 16)


@pytest.mark.parametrize("p", DEVICES)
def test_idle_time_and_peak(p: int) -> None:
    """F = I = W: a device idles p/2 - 1 forwards and keeps p + 1 activations, whatever the number of microbatches."""
    for m in (2 * p, 2 * p + 2, 4 * p):
        trace = schedule_trace("dualpipe", p, m)
        assert span_s(trace) == pytest.approx(3 * m + p / 2 - 1, abs=1e-9), m
        assert max(peak_alive(trace)) == p + 1, m


@pytest.mark.parametrize("p", [4, 8])
def test_it_is_dualpipe_v_unfolded(p: int) -> None:
    """As long as dualpipe_v with half the devices and half the microbatches of each stream, whatever F, I and W take."""
    for times in ((1.0, 1.5, 0.5), (1.0, 1.2, 0.9), (2.0, 1.0, 1.0)):
        unfolded = schedule_trace("dualpipe", p, 4 * p, 1, times)
        folded = schedule_trace("dualpipe_v", p // 2, 2 * p, 2, tuple(2 * each for each in times))  # type: ignore[arg-type]
        assert span_s(unfolded) == pytest.approx(span_s(folded), abs=1e-9)
        assert device_time_s(unfolded) == pytest.approx(device_time_s(folded), abs=1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 1), (2, 2), (2, 7), (4, 3), (4, 9), (6, 12), (8, 20)])
def test_every_compute_occurs_once(p: int, m: int) -> None:
    computes = [c for row in registered()["dualpipe"].orders(p, m) for c in row]
    assert sorted(computes) == sorted(
        Compute(n, s, k) for n in ("F", "I", "W") for s in range(p) for k in range(m)
    )


@pytest.mark.parametrize("p", DEVICES)
def test_streams_go_both_ways_through_the_same_stages(p: int) -> None:
    tables = program_of("dualpipe", p, 2 * p).tables
    down, up = (tuple(Hop(s, d) for s, d in enumerate(way)) for way in (range(p), reversed(range(p))))
    assert tables.paths == (down, up)
    assert [m.path for m in tables.microbatches] == [0] * p + [1] * p
    assert tables.devices_of_stage == tuple(tuple(sorted({s, p - 1 - s})) for s in range(p))
    stages = devices_of_stages(registered()["dualpipe"].orders(p, 2 * p))
    assert {len(devices) for devices in stages.values()} == {registered()["dualpipe"].num_copies}


def test_a_device_and_its_mirror_run_the_same_list_with_the_streams_exchanged() -> None:
    p, m = 6, 14
    orders = registered()["dualpipe"].orders(p, m)
    for device in range(p // 2):
        assert [
            Compute(name, stage, (microbatch + m // 2) % m) for name, stage, microbatch in orders[device]
        ] == orders[p - 1 - device]


def test_the_main_phase_pairs_a_forward_with_a_whole_backward_of_the_other_stream() -> None:
    p, m = 8, 20
    for device, row in enumerate(registered()["dualpipe"].orders(p, m)):
        near = min(device, p - 1 - device)
        pairs = [
            (a.microbatch < m // 2, b.microbatch < m // 2)
            for a, b, c in zip(row, row[1:], row[2:])
            if (a.name, b.name, c.name) == ("F", "I", "W") and b[1:] == c[1:]
        ]
        assert pairs.count((True, False)) >= m // 2 - p + near + 1
        assert pairs.count((False, True)) >= m // 2 - p + near + 1


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_fewer_microbatches_than_it_is_made_for(p: int) -> None:
    """Proven, and never slower than the 2p that its order was written for; an odd one costs what its stream takes more."""
    whole = span_s(schedule_trace("dualpipe", p, 2 * p))
    for m in range(1, 2 * p):
        trace = schedule_trace("dualpipe", p, m)
        verify(trace.program)
        assert span_s(trace) <= whole, m
    assert span_s(schedule_trace("dualpipe", p, 2 * p + 1)) == pytest.approx(
        3 * (2 * p + 1) + p / 2 - 1 + (2 if p > 2 else 1), abs=1e-9
    )


@pytest.mark.parametrize("p", [1, 3, 7])
def test_an_odd_number_of_devices_has_no_mirror(p: int) -> None:
    with pytest.raises(ScheduleError, match=f"takes multiples of 2 devices and was asked for {p}"):
        registered()["dualpipe"].orders(p, 8)
    assert not registered()["dualpipe"].takes_devices(p) and registered()["dualpipe"].takes_devices(p + 1)


def test_a_stage_on_more_devices_than_a_schedule_says() -> None:
    lists = [["0F0", "0B0"], ["0F1", "0B1"]]
    with pytest.raises(ScheduleError, match=r"mine: stage 0 stands on devices 0, 1, .* num_copies=2"):
        Schedule("mine", lambda p, m: lists).orders(2, 2)
    assert len(Schedule("mine", lambda p, m: lists, num_copies=2).orders(2, 2)) == 2
