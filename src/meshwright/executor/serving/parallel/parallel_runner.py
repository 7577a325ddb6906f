"""ParallelRunner: a model over several processes of this host, driven from this one.

    with_all = ParallelRunner(open_served("models/llama"), RunnerOptions(tp=2, pp=2))

This process holds no weights. It writes a step's inputs into memory that all share, says so on the ranks' pipes, and reads
logits from where the last stage has put them. Ranks end when their pipes do, whatever becomes of this process.

Shapes: R rows whose logits are asked for, V vocabulary.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.executor.file.job_folder import job_folder
from meshwright.executor.serving.adapter.adapter_folder import AdapterFolder
from meshwright.executor.serving.adapter.loaded_adapters import LoadedAdapters
from meshwright.executor.serving.parallel.rank_place import check_degrees
from meshwright.executor.serving.parallel.shared_arrays import SharedArrays
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import ServedModel
from meshwright.executor.serving.torch_runner import completed
from meshwright.executor.team.worker_process import Report, WorkerProcess, close_all
from meshwright.serving.engine.runner import Pair, StepInputs
from meshwright.specs.cluster.computer import num_cores
from meshwright.specs.error import ExecutionError

RANK_MODULE = "meshwright.executor.serving.parallel.rank"
OPEN_S = 600.0  # importing torch and reading weights; large models on slow disks take minutes
STEP_S = 300.0  # a step that takes longer hangs
KILLED_S = 0.2  # after an error the kernel tells within this which process a signal has ended
ARRAYS = ("token_ids", "positions", "query_starts", "past_lengths", "block_ids", "block_starts", "rows")


class ParallelRunner:
    """A `Runner` of ``tp`` x ``pp`` ranks.

    When a rank fails or dies the others are ended, as they may wait for it: every call then raises the same error, and a new
    runner has to be made.

    Raises:
        PlanError: the degrees do not divide the model.
        ExecutionError: a rank does not start, or cannot read its weights.
    """

    def __init__(self, served: ServedModel, options: RunnerOptions) -> None:
        check_degrees(served.model, options.tp, options.pp)
        options = completed(served, options)
        threads = options.num_threads or max(1, num_cores() // options.num_ranks)
        options = replace(options, num_threads=threads)
        self.block_tokens, self.num_blocks = options.block_tokens, options.num_blocks
        self.num_host_blocks, self.max_model_tokens = options.num_host_blocks, options.max_model_tokens
        self.vocabulary_size = served.model.vocabulary_size
        self._model, self._lock, self._adapters = served.model, threading.Lock(), LoadedAdapters()
        self._stack = ExitStack()
        self._workers: list[WorkerProcess] = []
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._failure: ExecutionError | None = None
        self._number = 0  # of the command under way
        try:
            self._open(served, options)
        except BaseException:
            self._end(at_once=True)
            raise

    def _open(self, served: ServedModel, options: RunnerOptions) -> None:
        folder = self._stack.enter_context(job_folder())
        self._inputs, self._logits = SharedArrays(folder, "inputs"), SharedArrays(folder, "logits")
        for rank in range(options.num_ranks):
            self._workers.append(WorkerProcess(rank, folder, self._reports, RANK_MODULE))
        opening = {"options": asdict(options), "folder": str(folder), "timeout_s": 2 * OPEN_S}
        model = str(served.folder.absolute())
        for rank, worker in enumerate(self._workers):
            worker.send(rank=rank, model=model, number=self._number, **opening)
        self._wait(OPEN_S)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the ranks that run."""
        return tuple(worker.process.pid for worker in self._workers)

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Logits [R, V], valid until the next call. Raises ExecutionError with the rank that failed."""
        with self._lock:
            given = self._inputs.put({name: getattr(inputs, name) for name in ARRAYS})
            shape = (len(inputs.rows), self.vocabulary_size)
            header, arrays = self._logits.make({"logits": ("float32", shape)})
            adapters = [int(number) for number in inputs.adapters]
            self._adapters.check(adapters)
            longest = int(inputs.max_context)
            self._do("step", inputs=given, logits=header, max_context=longest, adapters=adapters)
            return arrays["logits"]

    def move_blocks(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        """See `Runner`; every rank moves its part of each block."""
        moves = [[[int(one) for one in pair] for pair in pairs] for pairs in (swap_out, copies, swap_in)]
        with self._lock:
            self._do("move", moves=moves)

    def load_adapter(self, folder: str | os.PathLike[str]) -> int:
        """As `TorchRunner.load_adapter`; every rank reads its part. A wrong folder is refused before any rank is asked."""
        AdapterFolder(folder, self._model)
        with self._lock:
            number = self._adapters.add()
            self._do("load_adapter", adapter=number, folder=os.path.abspath(folder))
            return number

    def drop_adapter(self, number: int) -> None:
        """Forget an adapter that no sequence has any more."""
        with self._lock:
            self._adapters.drop(number)
            self._do("drop_adapter", adapter=number)

    def close(self) -> None:
        """End all ranks."""
        self._end(at_once=False)
        self._failure = self._failure or ExecutionError("the runner is closed", next="make a new one")

    def _do(self, what: str, **fields: Any) -> None:
        """One command on all ranks, until all have done it."""
        if self._failure is not None:
            raise self._failure
        self._number += 1
        for worker in self._workers:
            worker.send(do=what, number=self._number, **fields)
        self._wait(STEP_S)

    def _wait(self, timeout_s: float) -> None:
        waiting, end_s = set(range(len(self._workers))), time.monotonic() + timeout_s
        while waiting:
            try:
                rank, report = self._reports.get(timeout=max(0.0, end_s - time.monotonic()))
            except Empty:
                raise self._failed(min(waiting), f"has said nothing for {timeout_s:g} s") from None
            if "error" in report or "closed" in report:
                killed = self._killed()
                if killed is None and "error" in report:
                    raise self._failed(rank, f"failed: {report['error']}")
                dead = rank if killed is None else killed
                raise self._failed(dead, f"has ended\n{self._workers[dead].last_words()}".strip())
            if report.get("done") == self._number:
                waiting.discard(rank)

    def _killed(self) -> int | None:
        """The rank that a signal has ended: its peers may say first that they cannot reach it."""
        end_s = time.monotonic() + KILLED_S
        while time.monotonic() < end_s:
            for rank, worker in enumerate(self._workers):
                if (worker.process.poll() or 0) < 0:
                    return rank
            time.sleep(KILLED_S / 10)
        return None

    def _failed(self, rank: int, what: str) -> ExecutionError:
        """End the others; what all later calls raise, too."""
        self._end(at_once=True)
        self._failure = ExecutionError(
            f"rank {rank} of the served model {what}",
            next="make a new runner; requests that were under way have to be computed again",
        )
        return self._failure

    def _end(self, at_once: bool) -> None:
        workers, self._workers = self._workers, []
        close_all(workers, at_once)
        self._stack.close()
