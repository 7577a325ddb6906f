"""A worker process: ends with its parent, refuses what it cannot read, keeps its way to the parent clean."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.executor.job.job import Job
from meshwright.executor.team.worker_process import WORKER_MODULE, worker_environment
from meshwright.specs.error import ExecutionError

END_S = 20.0


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    """A worker that has said that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", WORKER_MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=worker_environment(),
    )
    assert process.stdin and process.stdout
    try:
        assert json.loads(process.stdout.readline()) == {"ready": process.pid}
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_it_ends_when_its_parent_is_gone(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin
    worker.stdin.close()
    assert worker.wait(END_S) == 0


def test_it_reports_a_job_that_it_cannot_read(worker: subprocess.Popen[str], tmp_path: Path) -> None:
    assert worker.stdin and worker.stdout
    (tmp_path / "job.json").write_text('{"schema": 1')
    worker.stdin.write(json.dumps({"folder": str(tmp_path), "rank": 0}) + "\n")
    worker.stdin.flush()
    report = json.loads(worker.stdout.readline())
    assert report["error"].startswith("JSONDecodeError") and "Traceback" in report["error"]


def test_it_refuses_a_job_of_a_newer_version(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"schema": 99}')
    with pytest.raises(ExecutionError, match="upgrade meshwright"):
        Job.read(tmp_path, 0)
