"""A job whose processes somebody else started: the same numbers as in a pool, one voice, one end for all."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from tests.executor.job.launched_case import END_S, ends_of, free_port, start, write_inputs

from meshwright.ir.trace import Trace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where both processes run: one host."""
    write_inputs(tmp_path)
    return tmp_path


def wait_for_steps(path: Path, number: int) -> None:
    end_s = time.monotonic() + END_S
    while time.monotonic() < end_s:
        if path.exists() and len(path.read_text().splitlines()) >= number:
            return
        time.sleep(0.05)
    pytest.fail("the training did not begin")


@pytest.mark.slow
def test_one_process_tells_and_all_save(folder: Path) -> None:
    options = (
        "--iterations",
        6,
        "--evaluate-every",
        3,
        "--json",
        "-q",
        "-o",
        "trace.npz",
        "--checkpoints",
        "runs",
    )
    port = free_port()
    ends = ends_of([start(folder, rank, port, *options) for rank in (0, 1)])
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert ends[1][1] == ""
    said = json.loads(ends[0][1])
    assert len(said["losses"]) == 6 and [one["step"] for one in said["held_out_losses"]] == [3, 6]
    assert Trace.load(folder / "trace.npz").num_iterations == 6
    assert (folder / "runs" / "step-6" / "checkpoint.json").is_file()


@pytest.mark.slow
def test_sigterm_on_one_host_ends_all_after_saving(folder: Path) -> None:
    port, metrics = free_port(), folder / "m.jsonl"
    options = (
        "--iterations",
        1_000_000,
        "--checkpoints",
        folder / "runs",
        "--metrics",
        metrics,
        "--json",
    )
    processes = [start(folder, rank, port, *options) for rank in (0, 1)]
    wait_for_steps(metrics, 3)
    processes[1].send_signal(signal.SIGTERM)
    ends = ends_of(processes)
    assert [code for code, _, _ in ends] == [130, 130], ends
    said = json.loads(ends[0][1])
    assert said["interrupted"] and (folder / "runs" / f"step-{said['num_iterations']}").is_dir()


@pytest.mark.slow
def test_one_that_dies_ends_the_others_with_a_message(folder: Path) -> None:
    port, metrics = free_port(), folder / "m.jsonl"
    processes = [
        start(folder, rank, port, "--iterations", 1_000_000, "--metrics", metrics) for rank in (0, 1)
    ]
    wait_for_steps(metrics, 3)
    processes[1].kill()
    ends = ends_of(processes)
    assert ends[0][0] == 1 and "rank 0" in ends[0][2] and "failed" in ends[0][2], ends


@pytest.mark.slow
def test_another_plan_or_too_few_processes_are_refused(folder: Path) -> None:
    port = free_port()
    options = (("--iterations", 4), ("--iterations", 5))
    ends = ends_of([start(folder, rank, port, *options[rank]) for rank in (0, 1)])
    assert ends[1][0] == 1 and "the same command" in ends[1][2]
    assert ends[0][0] == 1 and "the same command" in ends[0][2], ends
    (alone,) = ends_of([start(folder, 0, free_port(), WORLD_SIZE="1")])
    assert alone[0] == 1 and "the plan has 2 devices" in alone[2]
