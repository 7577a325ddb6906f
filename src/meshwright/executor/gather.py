"""What a job gave: the results of all ranks as one trace, one set of losses, gradients and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.executor.handler import ValueName
from meshwright.executor.job import Job
from meshwright.executor.piece import assembled
from meshwright.executor.rank_times import joined_times
from meshwright.ir.matching import match
from meshwright.ir.program import Program
from meshwright.ir.trace import MemoryCurve, Trace

Times = NDArray[np.float64]
ENGINE = "executed"


@dataclass(frozen=True)
class Iteration:
    """One finished iteration: loss in nats per token, norm of all gradients (before clipping), tokens of all replicas,
    seconds, and how many steps of a rank's parameter groups were taken back (`PostValidate`).

    The first one includes the start of the job. ``end_s`` is on the machine's monotonic clock. ``held_out_loss`` where one
    was found after it, which took ``paused_s`` (they are not among the seconds of any iteration).
    """

    number: int
    loss: float
    gradient_norm: float
    tokens: int
    seconds: float
    end_s: float
    num_undone: int = 0
    held_out_loss: float | None = None
    paused_s: float = 0.0


@dataclass(frozen=True, eq=False)
class JobResult:
    """``gradients``: for every iteration, by name in the whole model, where they were recorded. ``values``: for every
    rank what was kept. ``trace`` is None where the job was killed (``was_killed``); it has the measured memory."""

    trace: Trace | None
    iterations: tuple[Iteration, ...] = ()
    gradients: tuple[dict[str, Tensor], ...] = ()
    parameters: dict[str, Tensor] = field(default_factory=dict)
    values: tuple[dict[ValueName, Tensor], ...] = ()
    interrupted: bool = False
    was_killed: bool = False

    @property
    def losses(self) -> list[float]:
        """Loss of every iteration."""
        return [iteration.loss for iteration in self.iterations]


def gather(job: Job, folder: Path, iterations: Sequence[Iteration], interrupted: bool) -> JobResult:
    """Read what the ranks wrote.

    Raises:
        ExecutionError: ranks ran different numbers of iterations.
    """
    ranks = range(job.num_ranks)
    tensors = [torch.load(folder / f"tensors-{rank}.pt", weights_only=True) for rank in ranks]
    gradients: list[dict[str, Tensor]] = []
    parameters: dict[str, Tensor] = {}
    for one in tensors:
        assembled(one["parameters"], parameters)
        for iteration, found in enumerate(one["gradients"]):
            if iteration == len(gradients):
                gradients.append({})
            assembled(found, gradients[iteration])
    return JobResult(
        trace=_trace(job, folder),
        iterations=tuple(iterations),
        gradients=tuple(gradients),
        parameters=parameters,
        values=tuple({ValueName.parse(text): v for text, v in one["values"].items()} for one in tensors),
        interrupted=interrupted,
    )


def _trace(job: Job, folder: Path) -> Trace:
    """All ranks' times in program order, zero at the first posted row; an exchange starts when all its ends are posted."""
    columns, num_done = joined_times([folder / f"times-{rank}.npz" for rank in range(job.num_ranks)])
    columns["start"] = exchange_starts(job.program, columns["posted"], columns["start"])
    zero = columns["posted"].min(initial=np.inf)
    zero = zero if np.isfinite(zero) else 0.0
    metadata: dict[str, Any] = {"device": job.device, "backend": job.backend, "dtype": job.dtype}
    if num_done > len(columns["end"]):
        metadata["first_iteration"] = num_done - len(columns["end"])  # those before it were not kept
    return Trace(
        job.program,
        columns["posted"] - zero,
        columns["start"] - zero,
        columns["end"] - zero,
        ENGINE,
        _memory(job, folder),
        metadata,
    )


def exchange_starts(program: Program, posted: Times, start: Times) -> Times:
    """Starts with those of exchanges replaced by the largest posted time over their ends, ``[iterations, rows]``."""
    next_end = match(program)
    alone = next_end == np.arange(program.num_rows)
    latest, other = posted.copy(), next_end
    for _ in range(1, program.num_lists):  # an exchange has at most one end a list
        np.maximum(latest, posted[:, other], out=latest)
        other = next_end[other]
    return np.where(alone, start, latest)


def _memory(job: Job, folder: Path) -> tuple[MemoryCurve, ...]:
    curves = []
    for rank in range(job.num_ranks):
        with np.load(folder / f"memory-{rank}.npz", allow_pickle=False) as file:
            curve = file["curve"]
        if len(curve):
            curves.append(MemoryCurve(rank, "device", curve[:, 0].copy(), curve[:, 1].copy()))
    return tuple(curves)
