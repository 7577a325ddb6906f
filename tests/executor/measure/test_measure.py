"""Tests of executor/measure/measure.py: a quick measurement fills every table, and nobody survives a failure."""

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from meshwright.executor.measure import measure as measuring
from meshwright.specs.cluster.profile import COMPUTE_TABLES, TRANSFER_TABLES, Profile
from meshwright.specs.error import ExecutionError


@pytest.fixture
def started(monkeypatch):
    """Every process that the measurement starts."""
    processes: list[subprocess.Popen[str]] = []
    start = measuring.WorkerProcess

    def remember(*arguments):
        made = start(*arguments)
        processes.append(made.process)
        return made

    monkeypatch.setattr(measuring, "WorkerProcess", remember)
    return processes


def test_quick_measurement_fills_every_table(started):
    shares: list[float] = []
    profile = measuring.measure(2, effort="quick", progress=lambda what, share: shares.append(share))
    assert set(profile.tables) == {*COMPUTE_TABLES, *TRANSFER_TABLES}
    assert {sample.name for sample in profile.passes} == {"F", "B", "R", "I", "W", "STEP"}
    assert profile.num_processes == 2 and profile.device
    assert profile.constants["compute_slowdown"] >= 1.0
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0)
    assert Profile.from_json(profile.to_json()) == profile
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_a_failing_worker_is_reported_with_its_words(started, monkeypatch):
    monkeypatch.setattr(measuring, "WORKER_MODULE", "meshwright.executor.no_such_worker")
    with pytest.raises(ExecutionError, match="(?s)rank .*no_such_worker"):
        measuring.measure(2, effort="quick")
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_a_peer_that_dies_ends_the_measurement(started, monkeypatch):
    """Rank 1 never starts to work; rank 0 would wait for it at the rendezvous."""
    start = measuring.WorkerProcess

    def lame(rank: int, folder: Path, reports, module: str, arguments):
        return start(rank, folder, reports, "meshwright.no_such_worker" if rank == 1 else module, arguments)

    monkeypatch.setattr(measuring, "WorkerProcess", lame)
    with pytest.raises(ExecutionError, match="rank 1"):
        measuring.measure(2, effort="quick")
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_time_over_is_an_error(started):
    with pytest.raises(ExecutionError, match="no result within 0.1 s"):
        measuring.measure(2, timeout_s=0.1)
    assert all(process.poll() is not None for process in started)
