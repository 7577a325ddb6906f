"""A pool of workers: processes that keep torch loaded and run one job after another. Leaving the context ends them all."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import TracebackType

from meshwright.executor.file.job_folder import job_folder
from meshwright.executor.handlers.core_handler import CORE_HANDLERS
from meshwright.executor.job.changing.controller import Controller
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.job_run import Progress, Run
from meshwright.executor.rank.handler import handlers_of
from meshwright.executor.rank.watchdog import SharedPositions
from meshwright.executor.team.worker_process import Report, WorkerProcess, close_all
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.error import ExecutionError

START_S = 120.0  # importing torch on a busy machine takes ten seconds; a worker that needs longer is stuck
DEFAULT_TIMEOUT_S = 120.0  # of runs for which the caller knows no prediction


class Pool:
    """A context with `num_workers` processes. Jobs of as many ranks or fewer run on it, one after another.

    A job that fails ends all workers of the pool (its peers wait for each other in no known state); the next job starts
    new ones.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._workers: list[WorkerProcess] = []
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._num_jobs = 0

    def __enter__(self) -> Pool:
        self._kept = job_folder()
        self._folder = self._kept.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_workers(at_once=kind is not None)
        self._kept.__exit__(None, None, None)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the workers that were started."""
        return tuple(worker.process.pid for worker in self._workers)

    def run(
        self,
        job: Job,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        progress: Progress | None = None,
        duration_s: float | None = None,
        places: Sequence[int] = (),
        slowing: Slowing | None = None,
        controller: Controller | None = None,
    ) -> JobResult:
        """Run a job and gather what its ranks give.

        Args:
            timeout_s: how long no rank may move, such as max(30, 20 x the predicted step).
            progress: called in this thread after every iteration.
            duration_s: after this the job stops at the next iteration that no rank has begun.
            places: worker (and on CUDA device) of every rank; empty: in order.
            slowing: links and processes (by worker) that are slowed on purpose; on CPU only.
            controller: who makes the programs of further iterations; the job has that of the first. None: all have that.

        Ctrl-C stops at an iteration and returns what was reached (`interrupted`); a second one ends all at once.

        Raises:
            ExecutionError: a rank failed or died, or nobody moved for `timeout_s`. All workers are ended.
        """
        places = tuple(places) or tuple(range(job.num_ranks))
        if sorted(places) != sorted(set(places)) or not places or max(places) >= self.num_workers:
            raise ExecutionError(
                f"ranks on workers {places}", allowed=f"different ones of the pool's {self.num_workers}"
            )
        _check_slowing(slowing, job, places)
        if not job.program.vocabulary.owners:  # before any process starts
            handlers_of(job.program, CORE_HANDLERS)
        self.start()
        folder = self._folder / f"job-{self._num_jobs}"
        self._num_jobs += 1
        folder.mkdir()
        job.write(folder)
        limits = {
            "timeout_s": timeout_s, "places": places, "slowing": (slowing or Slowing()).to_dict(),
            "is_controlled": controller is not None,
        }  # fmt: skip
        (folder / "limits.json").write_text(json.dumps(limits))
        shared = SharedPositions(folder / "positions", job.num_ranks, is_new=True)
        try:
            run = Run(job, folder, shared, [self._workers[place] for place in places], self._reports)
            with run.fed_by(controller):
                result = run.follow(timeout_s, progress, duration_s)
        except BaseException:
            self._end_workers(at_once=True)
            raise
        finally:
            shared.close()
        if result.was_killed:
            self._end_workers(at_once=True)
        shutil.rmtree(folder, ignore_errors=True)  # what is left goes with the pool's folder
        return result

    def start(self) -> None:
        """Start all workers, where they do not run yet, ready for a job."""
        if self._workers:
            return
        self._reports = SimpleQueue()
        try:
            self._workers = [WorkerProcess(n, self._folder, self._reports) for n in range(self.num_workers)]
            waiting = set(range(self.num_workers))
            end_s = time.monotonic() + START_S
            while waiting:
                number, report = self._reports.get(timeout=max(0.0, end_s - time.monotonic()))
                if "ready" not in report:
                    raise ExecutionError(
                        f"worker {number} did not start:\n{self._workers[number].last_words()}"
                    )
                waiting.discard(number)
        except Empty:
            self._end_workers(at_once=True)
            raise ExecutionError(f"workers did not start within {START_S:g} s") from None
        except BaseException:
            self._end_workers(at_once=True)
            raise

    def _end_workers(self, at_once: bool) -> None:
        workers, self._workers = self._workers, []
        close_all(workers, at_once)


def _check_slowing(slowing: Slowing | None, job: Job, places: Sequence[int]) -> None:
    """Slowed processes take part in the job, and their transport is one that we can hold back."""
    if slowing is None:
        return
    if job.backend != "gloo":
        raise ExecutionError(
            f"{slowing} on {job.backend}", allowed="slowing on CPU, where gloo carries messages"
        )
    slowing.check(max(places) + 1)


@contextmanager
def opened_pool(pool: Pool | None, num_workers: int) -> Iterator[Pool]:
    """`pool`, which stays open, or where there is none a new one, which ends with the context."""
    if pool is not None:
        yield pool
        return
    with Pool(num_workers) as own:
        yield own
