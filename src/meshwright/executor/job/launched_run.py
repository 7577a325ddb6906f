"""A rank of a job that torchrun or Slurm has started: this process is the rank. Rank 0 tells and gathers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from meshwright.executor.file.job_folder import job_folder
from meshwright.executor.job.gather import JobResult, gather
from meshwright.executor.job.group_reports import GroupReports
from meshwright.executor.job.job import Job, LoadHandlers
from meshwright.executor.job.job_run import Progress
from meshwright.executor.job.launch import Launch
from meshwright.executor.job.meeting import Watch, meet, same_job
from meshwright.executor.job.worker import failure, run_rank
from meshwright.executor.rank.watchdog import SharedPositions, text_of_position
from meshwright.executor.team.host_interface import interface_to
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.error import ExecutionError


def run_launched(
    job: Job,
    launch: Launch,
    *,
    timeout_s: float,
    progress: Progress | None = None,
    duration_s: float | None = None,
    places: Sequence[int] = (),
    load_handlers: LoadHandlers,
) -> JobResult:
    """Run a job of which this process is one rank; as `Pool.run`, on all hosts at once.

    Interrupted or terminated on any host, all ranks end at the same iteration, after saving where the job keeps
    checkpoints. On other ranks than 0 the result is empty. ``load_handlers`` finds those of an owner of a vocabulary.

    Raises:
        ExecutionError: the processes do not fit the job, cannot meet, or a rank failed (the first to fail says why).
    """
    launch.check(job.num_ranks)
    rank = (tuple(places) or tuple(range(job.num_ranks))).index(launch.process)
    _choose_interface(launch)
    with job_folder() as folder:
        store = meet(launch)
        digest = _write(job, folder, launch, store)
        same_job(store, launch, digest)
        limits = {
            "timeout_s": timeout_s,
            "slowing": Slowing().to_dict(),
            "places": [launch.local_process] * job.num_ranks,
        }
        (folder / "limits.json").write_text(json.dumps(limits))
        return _run(job, launch, rank, folder, store, timeout_s, progress, duration_s, load_handlers)


def _run(
    job: Job, launch: Launch, rank: int, folder: Path, store: Any, timeout_s: float, progress: Progress | None,
    duration_s: float | None, load_handlers: LoadHandlers,
) -> JobResult:  # fmt: skip
    shared = SharedPositions(folder / "positions", job.num_ranks, is_new=True)

    def where() -> str:
        return f"rank {rank} on {socket.gethostname()}: {text_of_position(job.program, shared, rank)}"

    def words_of(error: BaseException) -> str:
        return f"{where()} failed: {failure(error)['error']}"

    watch = Watch(launch, shared, timeout_s, where)
    reports = GroupReports(
        job, rank, shared, progress, duration_s, lambda error: watch.leave(words_of(error))
    )
    with watch, _stopping(reports):
        try:
            run_rank(folder, rank, reports, load_handlers, store)
        except KeyboardInterrupt:
            watch.fail(f"rank {rank} was interrupted twice")
            raise
        except BaseException as error:
            raise ExecutionError(watch.fail(words_of(error))) from None
    if rank != 0:
        return JobResult(trace=None, interrupted=reports.was_asked)
    return gather(job, folder, reports.finished, reports.was_asked)


def _write(job: Job, folder: Path, launch: Launch, store: Any) -> str:
    """The job's files, and what tells it from another. The first process of a host makes what is kept for later runs."""
    ready = f"ready/{socket.gethostname()}"
    if launch.local_process != 0:
        store.wait([ready])
    job.write(folder, warns=launch.process == 0)
    if launch.local_process == 0:
        store.set(ready, "yes")
    fields = json.loads((folder / "job.json").read_text())
    if fields["training"] is not None:
        # the same text may lie elsewhere on another host; a checkpoint knows its digest
        fields["training"]["source"].pop("data")
    text = json.dumps(fields, sort_keys=True) + (folder / "program.txt").read_text()
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _choose_interface(launch: Launch) -> None:
    """Let gloo listen on the interface from which process 0's host is reached, unless the user has chosen one."""
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        name = interface_to(launch.address, launch.port)
        if name is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name


@contextlib.contextmanager
def _stopping(reports: GroupReports) -> Iterator[None]:
    """SIGINT and SIGTERM ask for a stop at the next iteration; the second one ends this process at once."""

    def ask(number: int, frame: Any) -> None:
        if reports.wants_to_stop:
            raise KeyboardInterrupt
        reports.wants_to_stop = True

    before: dict[int, Callable[..., Any] | int | None] = {}
    for one in (int(signal.SIGINT), int(signal.SIGTERM)):
        before[one] = signal.signal(one, ask)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
