"""Times of ranks on clocks of their own, put together on one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshwright.executor.meter.rank_times import NAMES, Pause, joined_times, shift_times, write_times

FAST_S = 3.0  # the second rank's clock is ahead


def write(path: Path, ahead_s: float) -> None:
    """Three iterations of one row, with a pause of half a second behind the first."""
    begin = np.array([[10.0], [12.0], [13.0]]) + ahead_s
    arrays = {"posted": begin, "start": begin + 0.25, "end": begin + 0.75}
    write_times(path, arrays, 3, [Pause(0, 11.0 + ahead_s, 11.5 + ahead_s)])


def test_shifted_times_are_those_of_the_other_clock(tmp_path: Path) -> None:
    paths = [tmp_path / "0.npz", tmp_path / "1.npz"]
    for path, ahead_s in zip(paths, (0.0, FAST_S)):
        write(path, ahead_s)
    apart, _ = joined_times(paths)
    assert (apart["end"][:, 1] - apart["end"][:, 0]).tolist() == pytest.approx([FAST_S] * 3)
    shift_times(paths[1], -FAST_S)
    found, num_done = joined_times(paths)
    assert num_done == 3
    for name in NAMES:
        assert found[name][:, 0].tolist() == pytest.approx(found[name][:, 1].tolist())
    # the pause, in which both were at the same time only on one clock, is not part of any iteration
    assert found["posted"][:, 1].tolist() == pytest.approx([10.0, 11.5, 12.5])
    assert apart["posted"][:, 0].tolist() == pytest.approx([10.0, 12.0, 13.0])
