"""Measuring a device: starts one busy process a rank, collects their samples, returns a Profile."""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

from meshwright.executor.file.job_folder import job_folder
from meshwright.executor.team.worker_process import STOP_S, Report, WorkerProcess
from meshwright.specs.cluster.profile import PassSample, Profile, Sample
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.error import ExecutionError

Progress = Callable[[str, float], None]
Effort = Literal["full", "quick"]
WORKER_MODULE = "meshwright.executor.measure.worker"
SLOWING_FILE = "slowing.json"  # in the folder of the measurement, read by its workers
MEASURE_TIMEOUT_S = 180.0  # about seven times what a measurement takes on two idle cores
AGAIN = "run it again with nothing else busy"


def measure(
    num_processes: int = 2,
    *,
    effort: Effort = "full",
    progress: Progress | None = None,
    timeout_s: float = MEASURE_TIMEOUT_S,
    slowing: Slowing | None = None,
) -> Profile:
    """Measure this machine with `num_processes` processes of one thread each, all busy at once.

    Args:
        num_processes: as many as will train side by side.
        effort: "full" (about 20 s on two cores) or "quick" (every table, few repetitions: to try the path, not
            to predict with).
        progress: called with what is being measured and the share that is done, 0 to 1.
        timeout_s: after this the measurement is given up.
        slowing: links and processes that are slowed on purpose while it is measured.

    Returns the profile; the caller keeps it (`specs.profile.keep`). Raises ExecutionError when a process
    dies or the time is over; no process survives this call.
    """
    slowed = slowing or Slowing()
    slowed.check(num_processes)
    with job_folder() as folder:
        (folder / SLOWING_FILE).write_text(json.dumps(slowed.to_dict()))
        reports: SimpleQueue[Report] = SimpleQueue()
        with _workers(num_processes, folder, effort, reports) as workers:
            result = _collect(workers, reports, progress or _ignore, timeout_s)
    return _profile(result, num_processes, slowed)


def device_name() -> str:
    """The processor's own name, such as "AMD EPYC"; its architecture where it does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or "cpu"


def _ignore(what: str, share: float) -> None:
    """No progress wanted."""


@contextlib.contextmanager
def _workers(
    num_processes: int, folder: Path, effort: Effort, reports: SimpleQueue[Report]
) -> Iterator[list[WorkerProcess]]:
    """Processes of a measurement; all are ended and waited for when the block is left, however it is left."""
    workers: list[WorkerProcess] = []
    try:
        for rank in range(num_processes):
            told = (str(rank), str(num_processes), str(folder), effort)
            workers.append(WorkerProcess(rank, folder, reports, WORKER_MODULE, told))
        yield workers
    finally:
        for worker in workers:
            worker.close(at_once=True)


def _collect(
    workers: Sequence[WorkerProcess], reports: SimpleQueue[Report], progress: Progress, timeout_s: float
) -> Mapping[str, Any]:
    """What rank 0 says in the end. Nobody waits for the dead: the first that ends with an error is one for all."""
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            rank, said = reports.get(timeout=max(0.0, end_s - time.monotonic()))
        except Empty:
            raise ExecutionError(
                f"measuring this machine gave no result within {timeout_s:g} s", next=AGAIN
            ) from None
        if "result" in said:
            found: Mapping[str, Any] = said["result"]
            return found
        if "progress" in said:
            progress(str(said["progress"]), float(said["share"]))
        elif workers[rank].process.wait(STOP_S):
            words = workers[rank].last_words()
            raise ExecutionError(f"measuring this machine failed on rank {rank}:\n{words}", next=AGAIN)


def _profile(result: Mapping[str, Any], num_processes: int, slowing: Slowing) -> Profile:
    """The profile of what the workers sent."""
    tables = {
        name: tuple(Sample(tuple(shape), seconds, spread) for shape, seconds, spread in rows)
        for name, rows in result["tables"].items()
    }
    told = f"; {slowing}" if slowing != Slowing() else ""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Profile(
        device=device_name(),
        num_processes=num_processes,
        tables=tables,
        constants=result["constants"],
        passes=tuple(PassSample(**row) for row in result["passes"]),
        measured=now,
        source=f"meshwright.executor.measure.measure, {num_processes} processes of one thread{told}",
        process_factors=tuple(result["process_factors"]),
    )
