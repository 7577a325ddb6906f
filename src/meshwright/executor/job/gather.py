"""What a job gave: the results of all ranks as one trace, one set of losses, gradients and parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.executor.job.job import Job
from meshwright.executor.layout.piece import assembled
from meshwright.executor.meter.memory_file import read_curves
from meshwright.executor.meter.rank_times import joined_times
from meshwright.executor.rank.handler import ValueName
from meshwright.executor.routing.routing_record import joined
from meshwright.ir.program import Program
from meshwright.ir.timing.matching import match
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.specs.sequence.sequence_group import GroupedBatch

Times = NDArray[np.float64]
ENGINE = "executed"


@dataclass(frozen=True)
class Iteration:
    """One finished iteration: loss in nats per token, norm of all gradients (before clipping), tokens of all replicas,
    seconds, and how many steps of a rank's parameter groups were taken back (`PostValidate`).

    The first one includes the start of the job. ``end_s`` is on the machine's monotonic clock. ``held_out_loss`` where one
    was found after it, which took ``paused_s`` (they are not among the seconds of any iteration). ``groups``: which ranks
    shared which of its sequences, and ``predicted_s`` what it was predicted to take, where a controller made its program.
    ``router_loss``: what routers' losses add to it, which is not in ``loss``. ``num_dropped``: choices of experts, over all
    layers, that were beyond their capacity.
    ``computes``, ``waits``: by rank the seconds of its host in computes by name, and waiting for rows by name; only while
    the job runs.
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
    groups: GroupedBatch | None = None
    predicted_s: float | None = None
    router_loss: float = 0.0
    num_dropped: int = 0
    computes: Mapping[int, Mapping[str, float]] = field(default_factory=dict, repr=False, compare=False)
    waits: Mapping[int, Mapping[str, float]] = field(default_factory=dict, repr=False, compare=False)

    def without_spent(self) -> Iteration:
        """The same as it is kept for the end of the job: a long one has many."""
        return replace(self, computes={}, waits={})


@dataclass(frozen=True, eq=False)
class JobResult:
    """``gradients``: for every iteration, by name in the whole model, where they were recorded. ``values``: for every
    rank what was kept. ``sent_bytes``: for every rank what it sent in all iterations, by the instruction's name (`inner`:
    inside computes), collectives as on a ring. ``flops``: what it computed in all iterations, by what for (`FlopMeter`), if
    they were counted. ``allocated_bytes``: the most that every rank's tensors had on a GPU, by CUDA's allocator; 0 on CPU.
    ``routing``: which experts the tokens of the last steps went to, where that was recorded. ``trace`` is None where the job
    was killed (``was_killed``); it has the measured memory."""

    trace: Trace | None
    iterations: tuple[Iteration, ...] = ()
    gradients: tuple[dict[str, Tensor], ...] = ()
    parameters: dict[str, Tensor] = field(default_factory=dict)
    values: tuple[dict[ValueName, Tensor], ...] = ()
    sent_bytes: tuple[dict[str, float], ...] = ()
    flops: tuple[dict[str, float], ...] = ()
    allocated_bytes: tuple[int, ...] = ()
    routing: RoutingTrace | None = None
    interrupted: bool = False
    was_killed: bool = False

    @property
    def losses(self) -> list[float]:
        """Loss of every iteration."""
        return [iteration.loss for iteration in self.iterations]


def iteration_of(
    job: Job,
    number: int,
    rows: Mapping[int, Mapping[str, Any]],
    evaluated: Mapping[int, Mapping[str, Any]],
    before: Iteration | None,
    begin_s: float,
) -> Iteration:
    """An iteration from what the ranks reported of it and of its evaluation: sums, and the latest time.

    ``before``: the iteration before it, after which the clock began; else ``begin_s``.
    """
    end_s = max(row["time"] for row in rows.values())
    before_s = begin_s if before is None else before.end_s + before.paused_s
    return Iteration(
        number=number,
        loss=sum(row.get("loss", 0.0) for row in rows.values()),
        gradient_norm=sum(row.get("squared_norm", 0.0) for row in rows.values()) ** 0.5,
        tokens=num_tokens(job),
        seconds=end_s - before_s,
        end_s=end_s,
        num_undone=int(sum(row.get("num_undone", 0) for row in rows.values())),
        held_out_loss=sum(row["held_out_loss"] for row in evaluated.values()) if evaluated else None,
        router_loss=sum(row.get("router_loss", 0.0) for row in rows.values()),
        num_dropped=round(sum(row.get("num_dropped", 0.0) for row in rows.values())),
        paused_s=max((row["time"] for row in evaluated.values()), default=end_s) - end_s,
        computes={rank: row["computes"] for rank, row in rows.items() if "computes" in row},
        waits={rank: row["waits"] for rank, row in rows.items() if "waits" in row},
    )


def num_tokens(job: Job) -> int:
    """Of a step, over all replicas; of groups of ranks without what pads their sequences."""
    if job.training is not None and job.training.groups is not None:
        return job.training.groups.num_tokens
    return sum(microbatch.tokens for microbatch in job.program.tables.microbatches) * num_replicas(job)


def num_replicas(job: Job) -> int:
    """Ranks with different samples: of a training along its replicas' axes, else all but those along the first axis."""
    axes = job.program.axes
    if job.training is None:
        return job.num_ranks // axes[0].size
    return math.prod(axis.size for axis in axes if axis.name in job.training.replica_axes)


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
        sent_bytes=tuple(one["sent_bytes"] for one in tensors),
        flops=tuple(one["flops"] for one in tensors),
        allocated_bytes=tuple(one["allocated_bytes"] for one in tensors),
        routing=_routing(job, [one["routing"] for one in tensors]),
        interrupted=interrupted,
    )


def _routing(job: Job, rows: Sequence[Sequence[Any]]) -> RoutingTrace | None:
    """What all ranks recorded of their routers' choices; None where nothing was asked for."""
    if not job.routing_steps or job.training is None:
        return None
    source = f"training of {job.training.model.name} on {job.training.source.name}"
    return joined(job.program, job.training.model, rows, source)


def _trace(job: Job, folder: Path) -> Trace:
    """All ranks' times in program order, zero at the first posted row; an exchange starts when all its ends are posted."""
    columns, num_done = joined_times([folder / f"times-{rank}.npz" for rank in range(job.num_ranks)])
    starts = exchange_starts(job.program, columns["posted"], columns["start"])
    columns["start"] = np.minimum(
        starts, columns["end"]
    )  # clocks of two hosts agree to half a message's time only
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
    ranks = range(job.num_ranks)
    return tuple(curve for rank in ranks for curve in read_curves(folder / f"memory-{rank}.npz", rank))
