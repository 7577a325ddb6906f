"""Measuring a device: starts one busy process a rank, collects their samples, returns a Profile."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from meshwright.specs.cluster.profile import PassSample, Profile, Sample
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.error import ExecutionError

Progress = Callable[[str, float], None]
Effort = Literal["full", "quick"]
WORKER_MODULE = "meshwright.executor.measure.worker"
SLOWING_FILE = "slowing.json"  # in the folder of the measurement, read by its workers
MEASURE_TIMEOUT_S = 180.0  # about seven times what a measurement takes on two idle cores
GUARD_PAUSE_S = 0.2  # how often the workers are looked at
STOP_S = 5.0  # a process that does not end on request within this is killed
STDERR_SHOWN = 4000  # characters of a failed worker's last words
LOOPBACK = {"Linux": "lo", "Darwin": "lo0"}


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
    with tempfile.TemporaryDirectory(prefix="meshwright-measure-") as folder:
        (Path(folder) / SLOWING_FILE).write_text(json.dumps(slowed.to_dict()))
        with _workers(num_processes, Path(folder), effort) as processes:
            result = _collect(processes, Path(folder), progress or _ignore, timeout_s)
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
def _workers(num_processes: int, folder: Path, effort: Effort) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of a measurement; all are ended and waited for when the block is left, however it is left."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(num_processes):
            processes.append(_start(rank, num_processes, folder, effort))
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def _start(rank: int, num_processes: int, folder: Path, effort: Effort) -> subprocess.Popen[str]:
    """One worker; rank 0 talks to us, every rank's complaints go to a file."""
    command = [sys.executable, "-m", WORKER_MODULE, str(rank), str(num_processes), str(folder), effort]
    with (folder / f"stderr.{rank}").open("w") as complaints:
        output: int | IO[str] = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        return subprocess.Popen(command, stdout=output, stderr=complaints, text=True, env=_environment())


def _environment() -> dict[str, str]:
    """The caller's environment, one thread a process, gloo on the loopback (a host's name may not resolve)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if interface := LOOPBACK.get(platform.system()):
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    return environment


def _collect(
    processes: list[subprocess.Popen[str]], folder: Path, progress: Progress, timeout_s: float
) -> Mapping[str, Any]:
    """Read rank 0 until its result; a timer ends the workers when the time is over or one of them died."""
    over, late = threading.Event(), threading.Event()
    died: list[int] = []
    guard = threading.Thread(target=_guard, args=(processes, over, late, timeout_s, died), daemon=True)
    guard.start()
    try:
        stream = processes[0].stdout
        assert stream is not None, "rank 0 is started with a pipe"
        for line in stream:
            message = json.loads(line)
            if "result" in message:
                found: Mapping[str, Any] = message["result"]
                return found
            progress(str(message["progress"]), float(message["share"]))
        # Rank 0 is gone without a result: it failed itself, or was ended because a peer failed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            processes[0].wait(STOP_S)
    finally:
        over.set()
        guard.join()
    if late.is_set():
        died.clear()  # those were ended by us
    elif not died:
        died.extend(rank for rank, process in enumerate(processes) if process.poll() not in (None, 0))
    raise ExecutionError(_last_words(folder, died, timeout_s), next="run it again with nothing else busy")


def _guard(
    processes: list[subprocess.Popen[str]],
    over: threading.Event,
    late: threading.Event,
    timeout_s: float,
    died: list[int],
) -> None:
    """Ends every worker as soon as one of them failed or the time is over, so that nobody waits for the dead."""
    waited_s = 0.0
    while not over.wait(GUARD_PAUSE_S):
        waited_s += GUARD_PAUSE_S
        died.extend(rank for rank, process in enumerate(processes) if process.poll() not in (None, 0))
        if not died and waited_s > timeout_s:
            late.set()
        if died or late.is_set():
            for process in processes:
                process.kill()
            return


def _last_words(folder: Path, failed: list[int], timeout_s: float) -> str:
    """What to tell when there is no result: who died, and what it said."""
    if not failed:
        return f"measuring this machine gave no result within {timeout_s:g} s"
    text = (folder / f"stderr.{failed[0]}").read_text(encoding="utf-8", errors="replace")
    return f"measuring this machine failed on rank {failed[0]}:\n{text[-STDERR_SHOWN:]}"


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
