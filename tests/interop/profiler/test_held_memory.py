"""Memory of profiles by hand: of devices and of the host, in the last step of a trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.interop.profiler.kineto import GEMM, Kineto

from meshwright.interop.profiler.chrome_file import read_chrome
from meshwright.interop.profiler.held_memory import held_memory
from meshwright.interop.profiler.profiled_job import read_profile
from meshwright.interop.profiler.profiled_trace import trace_of
from meshwright.specs.error import SpecError

US = 1e-6


def profiled() -> Kineto:
    """Two steps of 100 us, whose kernel runs from 10 to 60; 5 bytes stay, the kernel has 7 more, and in the second step 9."""
    made = Kineto()
    for step in range(2):
        at = 1000.0 + 100 * step
        made.annotate(f"ProfilerStep#{step}", at, 99)
        made.kernel(GEMM, at + 1, at + 10, 50)
        made.held(at + 5, 30, kind=0)
        made.held(at + 20, 12 + 2 * step)
        made.held(at + 50, 5)
        made.held(at + 70, 500)  # behind all that runs
        made.held(at + 80, 5)
    return made


def test_the_curve_is_of_the_last_step_on_its_clock(tmp_path: Path) -> None:
    trace = trace_of(read_profile(profiled().save(tmp_path)))
    device, host = trace.memory
    assert (device.device, device.tier, host.tier) == (0, "device", "host")
    assert device.times_s == pytest.approx([100 * US, 110 * US, 140 * US])
    assert device.bytes.tolist() == [5, 14, 5] and host.bytes.tolist() == [30]
    trace.save(tmp_path / "p.npz")
    assert type(trace).load(tmp_path / "p.npz").memory[0].peak_bytes == 14


def test_the_peak_of_a_rank_is_of_its_steps(tmp_path: Path) -> None:
    (figures,) = read_profile(profiled().save(tmp_path)).figures()
    assert figures.peak_bytes == 500  # between the two kernels, which is within the steps
    without = Kineto()
    without.kernel(GEMM, 1, 2, 3)
    (figures,) = read_profile(without.save(tmp_path)).figures()
    assert figures.peak_bytes is None


def test_devices_of_a_process_add_up(tmp_path: Path) -> None:
    made = Kineto()
    for ts, total, device in ((1, 10, 0), (2, 4, 1), (3, 20, 0)):
        made.held(ts, total, device=device)
    assert held_memory(read_chrome(made.save(tmp_path)))["device"].num_bytes.tolist() == [10, 14, 24]


@pytest.mark.parametrize(
    "wrong",
    [{"args": None}, {"args": {}}, {"ts": -1}, {"ts": None}]
    + [
        {"args": {"Total Allocated": held, "Device Type": 1, "Device Id": 0}}
        for held in (-1, "5", True, 1e30)
    ],
)
def test_what_is_no_memory_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    made = Kineto()
    made.held(1, 5)
    made.rows[0].update(wrong)
    path = tmp_path / "m.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(made.data()).encode()))
    with pytest.raises(SpecError, match="event 0"):
        read_chrome(path)


def test_memory_of_torch_itself_is_read(tmp_path: Path) -> None:
    """PyTorch's profiler on this machine: what two steps allocate and give back, of which the first keeps one tensor."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, schedule

    path, kept, size = tmp_path / "host.pt.trace.json.gz", [], 1 << 20
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=2),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        profile_memory=True,
    ) as running:
        for step in range(3):
            passing = torch.ones(3 * size, dtype=torch.uint8) + 1
            kept += [torch.ones(size, dtype=torch.uint8)] if step == 1 else []
            del passing
            running.step()
    job = read_profile(path)
    (curve,) = trace_of(job).memory
    assert curve.tier == "device" and job.figures()[0].peak_bytes is None
    assert curve.bytes[0] == size and curve.bytes.max() >= 7 * size  # the kept one; two of three beside it
