"""ParallelRunner: a model over several processes of this host, driven from this one.

    with_all = ParallelRunner(open_served("models/llama"), RunnerOptions(tp=2, pp=2))

This process holds no weights. It writes a step's inputs into memory that all share, says so on the ranks' pipes, and reads
logits from where the last stage has put them. Every stage works at a step of its own: as many may be under way as there are
stages. Ranks end when their pipes do, whatever becomes of this process.

Shapes: R rows whose logits are asked for, V vocabulary.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.executor.file.job_folder import job_folder
from meshwright.executor.serving.adapter.adapter_folder import AdapterFolder
from meshwright.executor.serving.adapter.loaded_adapters import LoadedAdapters
from meshwright.executor.serving.parallel.rank_place import check_degrees
from meshwright.executor.serving.parallel.served_ranks import ServedRanks
from meshwright.executor.serving.parallel.shared_arrays import SharedArrays
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import ServedModel
from meshwright.executor.serving.torch_runner import completed
from meshwright.serving.engine.runner import Pair, StepInputs
from meshwright.serving.weight.expert_loads import SlotRows
from meshwright.specs.cluster.computer import num_cores
from meshwright.specs.error import ExecutionError

OPEN_S = 600.0  # importing torch and reading weights; large models on slow disks take minutes
STEP_S = 300.0  # a step that takes longer hangs
ARRAYS = ("token_ids", "positions", "query_starts", "past_lengths", "block_ids", "block_starts", "rows")


class StepSlot(NamedTuple):
    """Where a step that is under way has its arrays, by the number that ranks know it by."""

    number: int
    inputs: SharedArrays
    logits: SharedArrays


class StartedStep:
    """A `StepUnderWay`: a command, and the slot where its logits will be."""

    def __init__(
        self, ranks: ServedRanks, number: int, logits: NDArray[np.float32], free: Callable[[], None]
    ) -> None:
        self._ranks, self._number, self._logits, self._free = ranks, number, logits, free

    def has_ended(self, wake: Callable[[], None]) -> bool:
        """See `StepUnderWay`."""
        return self._ranks.have_done(self._number, wake)

    def logits(self) -> NDArray[np.float32]:
        """Wait for them; then its slot is free. Raises ExecutionError with the rank that failed."""
        try:
            self._ranks.wait(self._number, STEP_S)
        finally:
            self._free()
        return self._logits


class ParallelRunner:
    """A `PipelinedRunner` of ``tp`` x ``pp`` ranks.

    ``ranks``: the processes.

    When a rank fails or dies the others are ended, as they may wait for it: every call then raises the same error, and a new
    runner has to be made.

    Raises:
        PlanError: the degrees do not divide the model.
        ExecutionError: a rank does not start, or cannot read its weights.
    """

    def __init__(self, served: ServedModel, options: RunnerOptions) -> None:
        check_degrees(served.model, options.tp, options.pp, options.ep)
        options = completed(served, options)
        threads = options.num_threads or max(1, num_cores() // options.num_ranks)
        options = replace(options, num_threads=threads)
        self.block_tokens, self.num_blocks = options.block_tokens, options.num_blocks
        self.num_host_blocks, self.max_model_tokens = options.num_host_blocks, options.max_model_tokens
        self.vocabulary_size, self.num_lanes = served.model.vocabulary_size, options.pp
        self._model, self._lock, self._adapters = served.model, threading.Lock(), LoadedAdapters()
        self._free: SimpleQueue[StepSlot] = SimpleQueue()  # the one that was used longest ago comes first
        with ExitStack() as stack:
            folder = stack.enter_context(job_folder())
            for number in range(self.num_lanes):
                arrays = (SharedArrays(folder, f"{name}-{number}") for name in ("inputs", "logits"))
                self._free.put(StepSlot(number, *arrays))
            self.ranks = ServedRanks(options.num_ranks, folder)
            stack.callback(self.ranks.close, at_once=True)
            opening = {"options": asdict(options), "folder": str(folder), "timeout_s": 2 * OPEN_S}
            self.ranks.wait(
                self.ranks.send(do="open", model=str(served.folder.absolute()), **opening), OPEN_S
            )
            self._stack = stack.pop_all()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the ranks that run."""
        return self.ranks.process_ids

    @property
    def peak_weight_bytes(self) -> tuple[int, ...]:
        """Of every rank the most bytes of weights that were there at once, as of its last command."""
        return tuple(self.ranks.peak_weight_bytes)

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """Logits [R, V], valid until the next step. Raises ExecutionError with the rank that failed."""
        return self.start(inputs).logits()

    def start(self, inputs: StepInputs) -> StartedStep:
        """See `PipelinedRunner`. Raises ExecutionError, too, where nobody takes the logits of others."""
        adapters = [int(number) for number in inputs.adapters]
        self._adapters.check(adapters)
        try:
            slot = self._free.get(timeout=STEP_S)
        except Empty:
            raise ExecutionError(
                f"{self.num_lanes} steps are under way and nobody takes their logits",
                allowed=f"at most {self.num_lanes} steps, one for each stage",
            ) from None
        try:
            given = slot.inputs.put({name: getattr(inputs, name) for name in ARRAYS})
            shape = (len(inputs.rows), self.vocabulary_size)
            header, arrays = slot.logits.make({"logits": ("float32", shape)})
            longest = int(inputs.max_context)
            number = self.ranks.send(
                do="step",
                slot=slot.number,
                inputs=given,
                logits=header,
                max_context=longest,
                adapters=adapters,
            )
        except BaseException:
            self._free.put(slot)
            raise
        return StartedStep(self.ranks, number, arrays["logits"], partial(self._free.put, slot))

    def move_blocks(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        """See `Runner`; every rank moves its part of each block, behind the steps that were started before."""
        self.ranks.send(
            do="move",
            moves=[[[int(one) for one in pair] for pair in pairs] for pairs in (swap_out, copies, swap_in)],
        )

    def slot_rows(self) -> list[SlotRows]:
        """See `RoutingRunner`; behind the steps that were started before."""
        with self._lock:
            self.ranks.wait(self.ranks.send(do="tell_rows"), STEP_S)
            told = [rows for of_rank in self.ranks.told_rows for rows in of_rank]
        return [SlotRows(layer, device, tuple(experts), tuple(rows)) for layer, device, experts, rows in told]

    def load_adapter(self, folder: str | os.PathLike[str]) -> int:
        """As `TorchRunner.load_adapter`; every rank reads its part. A wrong folder is refused before any rank is asked."""
        AdapterFolder(folder, self._model)
        with self._lock:
            number = self._adapters.add()
            done = self.ranks.send(do="load_adapter", adapter=number, folder=os.path.abspath(folder))
            self.ranks.wait(done, STEP_S)
            return number

    def drop_adapter(self, number: int) -> None:
        """Forget an adapter that no sequence has any more."""
        with self._lock:
            self._adapters.drop(number)
            self.ranks.wait(self.ranks.send(do="drop_adapter", adapter=number), STEP_S)

    def close(self) -> None:
        """End all ranks."""
        self.ranks.close(at_once=False)
        self._stack.close()
