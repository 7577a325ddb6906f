"""PyTorch: runs programs on processes of this machine, trains with them, and measures the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from meshwright.executor.job.gather import JobResult
    from meshwright.executor.job.pool import Pool
    from meshwright.executor.rank.handler import ValueName
    from meshwright.executor.training.training_job import TrainingConfig
    from meshwright.ir.program import Program

__all__ = ["run_program", "run_training"]

_POOL_OPTIONS = ("timeout_s", "progress", "duration_s", "places", "slowing")


def run_training(
    program: Program, training: TrainingConfig, iterations: int, *, pool: Pool | None = None, **options: Any
) -> JobResult:
    """Train: run a program of F, B, I, W, R, REDUCE_GRAD, STEP and transfers on the stages of a model.

    Args:
        program: verified; collapsed axes are expanded, its lists are the ranks.
        training: model, layers of each stage, data, optimizer.
        pool: workers to run on; None: as many as there are ranks, for this job only.
        options: fields of `Job` (dtype, device, measures_memory, ...) and arguments of `Pool.run` (timeout_s, progress,
            duration_s, places, slowing).

    Returns losses, gradient norms, the trace and, where asked for, gradients, parameters and memory curves.

    Raises:
        ExecutionError: the job cannot be run, a rank failed or died, or nobody moved for `timeout_s`.
    """
    return _run(program, iterations, pool, {"training": training, **options})


def run_program(
    program: Program,
    *,
    initial_values: Sequence[Mapping[ValueName, Tensor]] = (),
    iterations: int = 1,
    keep: Sequence[str] = (),
    pool: Pool | None = None,
    **options: Any,
) -> JobResult:
    """Run any program; the owners of its vocabulary have the handlers of its names.

    Args:
        initial_values: for every rank the values that its first iteration reads and nothing has written.
        keep: kinds of values that are returned as they are after the last iteration, in `values`.
        options: fields of `Job` (shapes, options, dtype, ...) and arguments of `Pool.run`.

    Raises:
        ExecutionError: as `run_training`.
    """
    fields = {"initial_values": initial_values, "keep": tuple(keep), **options}
    return _run(program, iterations, pool, fields)


def _run(program: Program, iterations: int, pool: Pool | None, options: dict[str, Any]) -> JobResult:
    from meshwright.executor.job.job import Job
    from meshwright.executor.job.pool import opened_pool

    of_pool = {name: options.pop(name) for name in _POOL_OPTIONS if name in options}
    job = Job.of(program, iterations, **options)
    num_workers = max([job.num_ranks, *(place + 1 for place in of_pool.get("places", ()))])
    with opened_pool(pool, num_workers) as workers:
        return workers.run(job, **of_pool)
