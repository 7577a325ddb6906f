"""One job under way, seen from the parent: follows the ranks, finds who failed first, stops them all at one iteration."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from meshwright.executor.job.changing.controller import Controller
from meshwright.executor.job.changing.step_feed import StepFeed
from meshwright.executor.job.gather import Iteration, JobResult, gather, iteration_of
from meshwright.executor.job.job import Job
from meshwright.executor.rank.watchdog import SharedPositions, Watchdog, text_of_position
from meshwright.executor.team.worker_process import STOP_S, Report, WorkerProcess
from meshwright.specs.error import ExecutionError

POLL_S = 0.05  # how often the parent looks at processes and watchdog between reports
GRACE_S = 1.0  # after the first failure the other ranks may say something, too: the earliest is the cause
# On Ctrl-C all ranks stop at one iteration that none has begun: this far ahead of the first one.
STOP_MARGIN_S = 0.2

Progress = Callable[[Iteration], None]

_log = logging.getLogger(__name__)


class Run:
    """Holds what the ranks have reported so far."""

    def __init__(
        self,
        job: Job,
        folder: Path,
        shared: SharedPositions,
        workers: Sequence[WorkerProcess],
        reports: SimpleQueue[Report],
    ) -> None:
        self.job, self.folder, self.shared, self.workers, self.reports = job, folder, shared, workers, reports
        self.rank_of_worker = {worker.number: rank for rank, worker in enumerate(workers)}
        # iteration -> rank -> what it reported, of iterations and evaluations that not all ranks have finished
        self.sums: dict[int, dict[int, dict[str, Any]]] = {}
        self.evaluated: dict[int, dict[int, dict[str, Any]]] = {}
        self.done: set[int] = set()
        self.finished: list[Iteration] = []
        self.begin_s = time.monotonic()
        self.interrupted = False
        self.feed: StepFeed | None = None

    @contextlib.contextmanager
    def fed_by(self, controller: Controller | None) -> Iterator[None]:
        """Meanwhile a controller makes the programs of iterations; without one all have that of the job."""
        if controller is None or self.job.training is None:
            yield
            return
        with StepFeed(
            controller, self.folder, self.job.training.first_step, self.job.iterations
        ) as self.feed:
            yield

    def job_of(self, iteration: int) -> Job:
        """The job with the program of an iteration."""
        step = None if self.feed is None else self.feed.steps.get(iteration)
        if step is None or iteration == 0 or self.job.training is None:
            return self.job
        return replace(
            self.job, program=step.program, training=replace(self.job.training, groups=step.groups)
        )

    def follow(self, timeout_s: float, progress: Progress | None, duration_s: float | None) -> JobResult:
        """Start all ranks and listen until all are done."""
        for rank, worker in enumerate(self.workers):
            worker.send(folder=str(self.folder), rank=rank)
        watchdog = Watchdog(self.shared, timeout_s)
        while len(self.done) < len(self.workers):
            try:
                self._listen(progress)
                if self.feed is not None and self.feed.error is not None:
                    raise self.feed.error
                if watchdog.is_expired():
                    raise ExecutionError(
                        f"no rank has moved for {watchdog.limit_s:g} s:\n{self._positions()}",
                        next="give a longer timeout if a step takes that long; else look at what the named rows wait for",
                    )
                if duration_s is not None and time.monotonic() - self.begin_s > duration_s:
                    duration_s = None
                    self._stop()
            except KeyboardInterrupt:
                if self.interrupted:
                    return self._what_was_reached()
                self.interrupted = True
                saving = "" if self.job.checkpoints is None else ", then saving"
                _log.warning("stopping at the end of a step%s; Ctrl-C again ends it now", saving)
                self._stop()
        last = self.job_of(len(self.finished) - 1)
        return gather(last, self.folder, self.finished, self.interrupted)

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
        """One rank has finished an iteration, or an evaluation after it; the last of them completes it."""
        number, training = report["iteration"], self.job.training
        (self.evaluated if "held_out_loss" in report else self.sums).setdefault(number, {})[rank] = report
        awaited = [self.sums]
        if training is not None and training.is_evaluated(number, self.job.iterations):
            awaited.append(self.evaluated)
        if any(len(rows.get(number, {})) < len(self.workers) for rows in awaited):
            return
        before = self.finished[-1] if self.finished else None
        rows, evaluated = self.sums.pop(number), self.evaluated.pop(number, {})
        finished = iteration_of(self.job_of(number), number, rows, evaluated, before, self.begin_s)
        if self.feed is not None:
            step = self.feed.steps[number]
            finished = replace(finished, groups=step.groups, predicted_s=step.predicted_s)
            self.feed.ended(number, finished.seconds)
        self.finished.append(finished.without_spent())
        if progress is not None:
            progress(finished)

    def _stop(self) -> None:
        """Let all ranks stop at the same iteration, one that none of them can have begun by the time they read this."""
        longest = max((it.seconds for it in self.finished[1:]), default=STOP_MARGIN_S)
        ahead = 2 + int(STOP_MARGIN_S / max(longest, 1e-4))
        self.shared.stop_after(self.shared.furthest() + ahead)

    def _what_was_reached(self) -> JobResult:
        """The losses so far; the ranks are ended and give nothing more."""
        return JobResult(trace=None, iterations=tuple(self.finished), interrupted=True, was_killed=True)

    def _positions(self) -> str:
        """Where every rank is, in words."""
        lines = []
        for rank in range(self.job.num_ranks):
            lines.append(f"  rank {rank}: {self._position(rank)}")
        return "\n".join(lines)

    def _position(self, rank: int) -> str:
        return text_of_position(self.job_of(self.shared.of(rank)[0]).program, self.shared, rank)

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
        where = f"at {said['row']}, iteration {said['iteration']}" if "row" in said else self._reached(rank)
        raise ExecutionError(f"rank {rank} failed {where}: {said['error']}")

    def _reached(self, rank: int) -> str:
        """How far a rank had come, behind "failed" or "died"."""
        has_begun = self.shared.of(rank)[0] >= 0
        return f"at {self._position(rank)}" if has_begun else "before its first iteration"

    def _death(self, number: int) -> str:
        worker = next((worker for worker in self.workers if worker.number == number), None)
        if worker is None:
            return f"worker {number} of the pool, which was not in use, has died"
        rank = self.rank_of_worker[number]
        code = worker.process.wait(STOP_S)
        how = f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"
        words = worker.last_words()
        return f"rank {rank} died ({how}) {self._reached(rank)}" + (
            f"; its last words:\n{words}" if words else ""
        )
