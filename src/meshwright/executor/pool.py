"""A pool of workers: processes that keep torch loaded and run one job after another. Leaving the context ends them all."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from meshwright.executor.gather import Iteration, JobResult, gather
from meshwright.executor.handler import check_handlers
from meshwright.executor.job import Job
from meshwright.executor.watchdog import SharedPositions, Watchdog
from meshwright.ir.program import Program
from meshwright.specs.error import ExecutionError

WORKER_MODULE = "meshwright.executor.worker"
START_S = 120.0  # importing torch on a busy machine takes ten seconds; a worker that needs longer is stuck
STOP_S = 5.0  # a process that does not end on request within this is killed
POLL_S = 0.05  # how often the parent looks at processes and watchdog between reports
GRACE_S = 1.0  # after the first failure the other ranks may say something, too: the earliest is the cause
DEFAULT_TIMEOUT_S = 120.0  # of runs for which the caller knows no prediction
# On Ctrl-C all ranks stop at one iteration that none has begun: this far ahead of the first one.
STOP_MARGIN_S = 0.2
LAST_WORDS = 4000  # characters of a dead worker's log that are shown
LOOPBACK = {"Linux": "lo", "Darwin": "lo0"}

Progress = Callable[[Iteration], None]
Report = tuple[int, dict[str, Any]]  # worker, what it said; {"closed": True} when its pipe ended
_log = logging.getLogger(__name__)


class Worker:
    """One process and the thread that reads it."""

    def __init__(self, number: int, folder: Path, reports: SimpleQueue[Report]) -> None:
        self.number = number
        self.log = folder / f"worker-{number}.log"
        with self.log.open("a") as complaints:
            self.process = subprocess.Popen(
                [sys.executable, "-m", WORKER_MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                env=_environment(),
                start_new_session=True,  # a Ctrl-C in the terminal is for the parent alone
            )
        self._reports = reports
        self._reader = threading.Thread(target=self._read, name=f"worker {number}", daemon=True)
        self._reader.start()

    def send(self, **command: Any) -> None:
        """One command; a worker that is gone is noticed by its closed pipe."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            _log.debug("worker %d is gone", self.number)

    def close(self, at_once: bool) -> None:
        """End the process and its thread; kill it where it does not end on request."""
        assert self.process.stdin is not None and self.process.stdout is not None
        if at_once:
            self.process.kill()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            _log.debug("worker %d was gone", self.number)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:].strip()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._reports.put((self.number, json.loads(line)))
        self._reports.put((self.number, {"closed": True}))


def _environment() -> dict[str, str]:
    """The caller's environment, one thread a process, gloo on the loopback."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if interface := LOOPBACK.get(platform.system()):
        environment["GLOO_SOCKET_IFNAME"] = interface
    paths = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


class Pool:
    """A context with `num_workers` processes. Jobs of as many ranks or fewer run on it, one after another.

    A job that fails ends all workers of the pool (its peers wait for each other in no known state); the next job starts
    new ones.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._workers: list[Worker] = []
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._num_jobs = 0

    def __enter__(self) -> Pool:
        self._folder = Path(tempfile.mkdtemp(prefix="meshwright-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_workers(at_once=kind is not None)
        shutil.rmtree(self._folder, ignore_errors=True)

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
    ) -> JobResult:
        """Run a job and gather what its ranks give.

        Args:
            timeout_s: how long no rank may move, such as max(30, 20 x the predicted step).
            progress: called in this thread after every iteration.
            duration_s: after this the job stops at the next iteration that no rank has begun.
            places: worker (and on CUDA device) of every rank; empty: in order.

        Ctrl-C stops at an iteration and returns what was reached (`interrupted`); a second one ends all at once.

        Raises:
            ExecutionError: a rank failed or died, or nobody moved for `timeout_s`. All workers are ended.
        """
        places = tuple(places) or tuple(range(job.num_ranks))
        if sorted(places) != sorted(set(places)) or not places or max(places) >= self.num_workers:
            raise ExecutionError(
                f"ranks on workers {places}", allowed=f"different ones of the pool's {self.num_workers}"
            )
        if not job.handlers_module:
            _check_handlers(job.program)
        self._start_workers()
        folder = self._folder / f"job-{self._num_jobs}"
        self._num_jobs += 1
        folder.mkdir()
        job.write(folder)
        (folder / "limits.json").write_text(json.dumps({"timeout_s": timeout_s, "places": places}))
        shared = SharedPositions(folder / "positions", job.num_ranks, is_new=True)
        try:
            run = _Run(job, folder, shared, [self._workers[place] for place in places], self._reports)
            result = run.follow(timeout_s, progress, duration_s)
        except BaseException:
            self._end_workers(at_once=True)
            raise
        finally:
            shared.close()
        if result.was_killed:
            self._end_workers(at_once=True)
        shutil.rmtree(folder)
        return result

    def _start_workers(self) -> None:
        """All workers, where they do not run yet, ready for a job."""
        if self._workers:
            return
        self._reports = SimpleQueue()
        try:
            self._workers = [Worker(n, self._folder, self._reports) for n in range(self.num_workers)]
            waiting = set(range(self.num_workers))
            end_s = time.monotonic() + START_S
            while waiting:
                number, report = self._reports.get(timeout=max(0.0, end_s - time.monotonic()))
                if "ready" not in report:
                    raise ExecutionError(f"worker {number} did not start:\n{self._workers[number].last_words()}")
                waiting.discard(number)
        except Empty:
            self._end_workers(at_once=True)
            raise ExecutionError(f"workers did not start within {START_S:g} s") from None
        except BaseException:
            self._end_workers(at_once=True)
            raise

    def _end_workers(self, at_once: bool) -> None:
        workers, self._workers = self._workers, []
        if at_once:
            for worker in workers:
                worker.process.kill()
        for worker in workers:
            worker.close(at_once)


def _check_handlers(program: Program) -> None:
    """Before any process starts: has every name a handler?"""
    import meshwright.executor.exchange
    import meshwright.executor.train_stage  # noqa: F401 - registers handlers

    check_handlers(program)


class _Run:
    """One job under way, seen from the parent."""

    def __init__(
        self, job: Job, folder: Path, shared: SharedPositions, workers: Sequence[Worker], reports: SimpleQueue[Report]
    ) -> None:
        self.job, self.folder, self.shared, self.workers, self.reports = job, folder, shared, workers, reports
        self.rank_of_worker = {worker.number: rank for rank, worker in enumerate(workers)}
        self.sums: list[dict[int, dict[str, Any]]] = []  # iteration -> rank -> what it reported
        self.done: set[int] = set()
        self.finished: list[Iteration] = []
        self.begin_s = time.monotonic()
        self.interrupted = False

    def follow(self, timeout_s: float, progress: Progress | None, duration_s: float | None) -> JobResult:
        """Start all ranks and listen until all are done."""
        for rank, worker in enumerate(self.workers):
            worker.send(folder=str(self.folder), rank=rank)
        watchdog = Watchdog(self.shared, timeout_s)
        while len(self.done) < len(self.workers):
            try:
                self._listen(progress)
                if watchdog.is_expired():
                    raise ExecutionError(
                        f"no rank has moved for {timeout_s:g} s:\n{self._positions()}",
                        next="give a longer timeout if a step takes that long; else look at what the named rows wait for",
                    )
                if duration_s is not None and time.monotonic() - self.begin_s > duration_s:
                    duration_s = None
                    self._stop()
            except KeyboardInterrupt:
                if self.interrupted:
                    return self._what_was_reached()
                self.interrupted = True
                self._stop()
        return gather(self.job, self.folder, self.finished, self.interrupted)

    def _listen(self, progress: Progress | None) -> None:
        """Take reports for a while."""
        try:
            number, report = self.reports.get(timeout=POLL_S)
        except Empty:
            return
        rank = self.rank_of_worker.get(number)
        if "error" in report or "closed" in report:
            self._raise_failure(number, report)
        if rank is None:
            return
        if "done" in report:
            self.done.add(rank)
        elif "iteration" in report:
            self._note(rank, report, progress)

    def _note(self, rank: int, report: dict[str, Any], progress: Progress | None) -> None:
        """One rank has finished an iteration; the last of them completes it."""
        iteration = report["iteration"]
        while len(self.sums) <= iteration:
            self.sums.append({})
        self.sums[iteration][rank] = report
        if len(self.sums[iteration]) < len(self.workers):
            return
        rows = self.sums[iteration].values()
        end_s = max(row["time"] for row in rows)
        before_s = self.finished[-1].end_s if self.finished else self.begin_s
        tables = self.job.program.tables
        replicas = self.job.num_ranks // self.job.program.axes[0].size
        finished = Iteration(
            number=iteration,
            loss=sum(row.get("loss", 0.0) for row in rows),
            gradient_norm=sum(row.get("squared_norm", 0.0) for row in rows) ** 0.5,
            tokens=sum(microbatch.tokens for microbatch in tables.microbatches) * replicas,
            seconds=end_s - before_s,
            end_s=end_s,
        )
        self.finished.append(finished)
        if progress is not None:
            progress(finished)

    def _stop(self) -> None:
        """Let all ranks stop at the same iteration, one that none of them can have begun by the time they read this."""
        longest = max((it.seconds for it in self.finished[1:]), default=STOP_MARGIN_S)
        ahead = 2 + int(STOP_MARGIN_S / max(longest, 1e-4))
        self.shared.stop_after(self.shared.furthest() + ahead)

    def _what_was_reached(self) -> JobResult:
        """The losses so far; the ranks are ended and give nothing more."""
        return JobResult(
            trace=None, iterations=tuple(self.finished), interrupted=True, was_killed=True
        )

    def _positions(self) -> str:
        """Where every rank is, in words."""
        lines = []
        for rank in range(self.job.num_ranks):
            lines.append(f"  rank {rank}: {self._position(rank)}")
        return "\n".join(lines)

    def _position(self, rank: int) -> str:
        iteration, row, waited = self.shared.of(rank)
        if iteration < 0:
            return "has not begun"
        first = int(self.job.program.offsets[rank])
        if first == int(self.job.program.offsets[rank + 1]):
            return "has an empty list"
        text = f"iteration {iteration}, {self.job.program.text_of(first + row)} (position {row})"
        if waited >= 0:
            text += f", which waits for {self.job.program.text_of(first + waited)}"
        return text

    def _raise_failure(self, number: int, report: dict[str, Any]) -> None:
        """Name the rank that failed first. A rank that died without a word is the cause of the errors of its peers."""
        reports: list[Report] = [(number, report)]
        end_s = time.monotonic() + GRACE_S
        while (left := end_s - time.monotonic()) > 0:
            try:
                reports.append(self.reports.get(timeout=left))
            except Empty:
                break
        spoke = {worker for worker, said in reports if "error" in said}
        silent = [worker for worker, said in reports if "closed" in said and worker not in spoke]
        if silent:
            raise ExecutionError(self._death(silent[0]))
        first, said = min(
            ((worker, said) for worker, said in reports if "error" in said), key=lambda item: item[1]["time"]
        )
        rank = self.rank_of_worker.get(first, first)
        where = f"at {said['row']}, iteration {said['iteration']}" if "row" in said else f"at {self._position(rank)}"
        raise ExecutionError(f"rank {rank} failed {where}: {said['error']}\n{said['traceback'].strip()}")

    def _death(self, number: int) -> str:
        worker = next((worker for worker in self.workers if worker.number == number), None)
        if worker is None:
            return f"worker {number} of the pool, which was not in use, has died"
        rank = self.rank_of_worker[number]
        code = worker.process.wait(STOP_S)
        how = f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"
        words = worker.last_words()
        return f"rank {rank} died ({how}) at {self._position(rank)}" + (f"; its last words:\n{words}" if words else "")
