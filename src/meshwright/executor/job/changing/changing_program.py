"""A rank whose program is another one in every step: the next is read and compiled while the last one runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from meshwright.executor.job.changing.step_feed import read_step, step_file
from meshwright.executor.job.job import Job
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handlers
from meshwright.executor.rank.interpreter import Interpreter
from meshwright.executor.rank.rank_list import RankList, compile_rank
from meshwright.executor.rank.slowed_compute import slow_computes
from meshwright.executor.rank.stream.device_streams import is_asynchronous
from meshwright.executor.rank.stream.issued import RowError
from meshwright.executor.rank.value_store import ValueStore
from meshwright.executor.team.exchange_ends import teams_of
from meshwright.executor.training.training_job import TrainingConfig
from meshwright.ir.program import Program
from meshwright.ir.timing.wiring import wire
from meshwright.specs.error import ExecutionError

LOOKED_EVERY_S = 0.002  # for a program that is not there yet


class ReadyProgram(NamedTuple):
    """The program of an iteration, and this rank's list of it."""

    training: TrainingConfig
    program: Program
    ranked: RankList


class ProgramReader:
    """Reads and compiles what `StepFeed` writes, one iteration ahead, in a thread. ``factor``: of slowed computes."""

    def __init__(self, job: Job, rank: int, folder: Path, handlers: Handlers, factor: float) -> None:
        self._job, self._rank, self._folder = job, rank, folder
        self._handlers, self._factor = handlers, factor
        self._teams = set(teams_of(wire(job.program), job.backend))
        self._turn = threading.Condition()
        self._ready: dict[int, ReadyProgram | Exception] = {}
        self._wanted, self._is_over = 1, False
        threading.Thread(target=self._read, name="next programs", daemon=True).start()

    def take(self, iteration: int) -> ReadyProgram:
        """The program of an iteration, waited for where it is not made yet; the next one is looked for from here on."""
        with self._turn:
            self._turn.wait_for(lambda: iteration in self._ready)
            found = self._ready.pop(iteration)
            self._wanted = iteration + 1
            self._turn.notify_all()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """Nothing more is read."""
        with self._turn:
            self._is_over = True
            self._turn.notify_all()

    def _read(self) -> None:
        for iteration in range(1, self._job.iterations):
            with self._turn:
                self._turn.wait_for(lambda: self._is_over or self._wanted >= iteration)  # noqa: B023
            path = step_file(self._folder, iteration)
            while not path.exists() and not self._is_over:
                time.sleep(LOOKED_EVERY_S)
            if self._is_over:
                return
            try:
                found: ReadyProgram | Exception = self._compiled(path)
            except Exception as error:  # the rank raises it when it comes there
                found = error
            with self._turn:
                self._ready[iteration] = found
                self._turn.notify_all()

    def _compiled(self, path: Path) -> ReadyProgram:
        program, groups = read_step(path)
        assert self._job.training is not None, "what changes by step is a training"
        job = replace(self._job, program=program, training=replace(self._job.training, groups=groups))
        assert job.training is not None
        wiring = wire(program)
        if others := set(teams_of(wiring, job.backend)) - self._teams:
            raise ExecutionError(
                f"the program of a later step has ranks exchange that the first one has not: {sorted(others)[:3]}",
                allowed="programs that need the same process groups, which are made once",
            )
        ranked = compile_rank(
            wiring, self._rank, job.shape_of(), self._handlers, job.keep, is_asynchronous(job.device)
        )
        slow_computes(ranked, self._factor)
        return ReadyProgram(job.training, program, ranked)


class ChangingInterpreter:
    """As `Interpreter`, of another program in every iteration; times are those of the last one.

    ``num_done``: iterations begun, of all programs.
    """

    def __init__(self, first: Interpreter, programs: ProgramReader, context: Context) -> None:
        self._now, self._programs, self._context = first, programs, context
        self.position, self.num_done = first.position, 0
        self._watching: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def prepare(self, iteration: int) -> None:
        """Go over to the program of an iteration. What was issued before has ended: exchanges use the same tags."""
        if iteration == 0:
            return
        ready = self._programs.take(iteration)
        self._now.close()
        state = self._context.training
        state.adopt(ready.training, ready.program)
        store = ValueStore(ready.ranked, state.initial_values())
        self._now = Interpreter(ready.ranked, store, self._context, self.position.behind(iteration))
        self._now.watch(self._watching)

    def run_iteration(self) -> None:
        """As of `Interpreter`."""
        self.num_done += 1
        try:
            self._now.run_iteration()
        except RowError as error:
            error.iteration = self.num_done - 1
            raise

    def watch(self, watching: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        """As of `Interpreter`, of all programs."""
        self._watching = watching
        self._now.watch(watching)

    def close(self) -> None:
        """As of `Interpreter`; no further program is read."""
        self._programs.close()
        self._now.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)
