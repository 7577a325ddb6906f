"""`train`, `compare` and `calibrate`: running a plan, and where the prediction was wrong."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.loading import is_data_file, load
from meshwright.api.simulating import simulate
from meshwright.api.subject import Subject, cluster_of, plan_subject, subject
from meshwright.ir.program import Program
from meshwright.ir.trace import Trace
from meshwright.lowering.mesh import device_order
from meshwright.lowering.plan_pass import architecture_of, clip_norm
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.cluster_source import Cluster
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.specs.plan import Plan
from meshwright.specs.profile import Profile, keep
from meshwright.specs.slowing import Slowing

if TYPE_CHECKING:
    from meshwright.evidence.compare import Comparison
    from meshwright.executor.gather import Iteration, JobResult
    from meshwright.executor.pool import Pool

logger = logging.getLogger(__name__)
BUSY_LOAD = 0.7  # processes running before we begin; half a core taken is already seen in every number
LEARNING_RATE = 1e-3  # of AdamW, for decoders of a few million parameters
TIMEOUT_STEPS, LEAST_TIMEOUT_S = (
    20.0,
    30.0,
)  # how many predicted steps a rank may stand still, and at least how long
SPARE_ITERATIONS = (
    4.0  # a run by the clock gets this many times the predicted iterations, so that the clock ends it
)
MAX_RANKS = 64  # processes on one machine; more is a plan for a cluster, given to the wrong machine


@dataclass(frozen=True, eq=False)
class Training:
    """What a training gave: the measured trace and the plan's iterations; `result` holds the parameters."""

    plan: Plan
    predicted: Trace
    result: JobResult

    @property
    def trace(self) -> Trace | None:
        """The measured trace; None where the job was ended by force."""
        return self.result.trace

    @property
    def iterations(self) -> Sequence[Iteration]:
        """Loss, tokens and seconds of every iteration."""
        return self.result.iterations

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all iterations but the first (it holds the start of the job) over their seconds."""
        counted = self.iterations[1:] or self.iterations
        seconds = sum(iteration.seconds for iteration in counted)
        return sum(iteration.tokens for iteration in counted) / seconds if seconds > 0 else 0.0


def train(
    what: Any,
    *,
    data: str | os.PathLike[str] | None = None,
    iterations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    learning_rate: float = LEARNING_RATE,
    cluster: str | ClusterSpec | None = None,
    profile: Profile | None = None,
    progress: Callable[[Iteration], None] | None = None,
    pool: Pool | None = None,
    slowing: Slowing | None = None,
) -> Trace:
    """Train by a plan on processes of this machine; the very program that `simulate` runs.

    Args:
        what: a Plan, its file, or a planner's candidate.
        data: a folder or file of text, read as bytes; None: the Python standard library's sources.
        iterations, seconds: how long: a number of steps (20), or by the clock.
        seed: keys parameters, data and everything drawn.
        learning_rate: of AdamW.
        cluster, profile: what the prediction rests on, as in `subject`; a plan for GPUs is predicted for this machine.
        progress: called after every iteration.
        pool: processes to run on; None: as many as the plan has devices, ended afterwards.
        slowing: links and processes slowed on purpose; `profile` is then one that was measured under it.

    Returns the measured trace; its metadata hold `losses` and `tokens_per_s`. Ctrl-C ends it with what was reached.

    Raises ExecutionError, OutOfMemoryError, and what `subject` raises.
    """
    done = run_training(
        what, data=data, iterations=iterations, seconds=seconds, seed=seed, learning_rate=learning_rate,
        cluster=cluster, profile=profile, progress=progress, pool=pool,
        slowing=slowing,
    )  # fmt: skip
    if done.trace is None:
        raise ExecutionError("the training was interrupted twice and left no trace")
    said = {"losses": [it.loss for it in done.iterations], "tokens_per_s": done.tokens_per_s}
    return replace(done.trace, metadata={**done.trace.metadata, **said})


def run_training(
    what: Any,
    *,
    data: str | os.PathLike[str] | None = None,
    iterations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    learning_rate: float = LEARNING_RATE,
    cluster: str | ClusterSpec | None = None,
    profile: Profile | None = None,
    progress: Callable[[Iteration], None] | None = None,
    pool: Pool | None = None,
    first_step: int = 0,
    measures_memory: bool = True,
    slowing: Slowing | None = None,
) -> Training:
    """`train` with everything that it gives: prediction, parameters, losses. `first_step` keys the data."""
    made = _on_processes(what, cluster, profile)
    if made.plan is None:
        raise SpecError(f"{made.label} is no plan", allowed="a plan: it says model, batch and degrees")
    made.plan.check_executable()
    made.plan.model.check_executable()
    if iterations is not None and iterations < 1 or seconds is not None and not seconds > 0:
        raise SpecError(
            f"{iterations} iterations, {seconds} seconds", allowed="1 iteration or more, or time above 0"
        )
    _require_torch()
    _require_proof(made)
    predicted = simulate(made)
    step_s = float(predicted.metadata["step"]["value"])
    if seconds is not None:
        iterations = min(iterations or math.inf, max(2, math.ceil(SPARE_ITERATIONS * seconds / step_s)))  # type: ignore[assignment]
    job = _job(
        made.plan, made.program, int(iterations or 20), data, seed, learning_rate, first_step, measures_memory
    )
    timeout_s = max(LEAST_TIMEOUT_S, TIMEOUT_STEPS * step_s)
    with _pool(pool, job.num_ranks) as workers:
        result = workers.run(
            job, timeout_s=timeout_s, progress=progress, duration_s=seconds, places=device_order(made.plan),
            slowing=slowing,
        )  # fmt: skip
    return Training(made.plan, predicted, result)


def _on_processes(what: Any, cluster: str | ClusterSpec | None, profile: Profile | None) -> Subject:
    """What is trained. A plan for GPUs runs on processes of this machine, and is predicted and proven for these."""
    from meshwright.planner.step_pricing import is_gpu_cluster

    made = load(what) if isinstance(what, str | os.PathLike) and is_data_file(what) else what
    plan = getattr(made, "plan", made)
    if isinstance(plan, Plan) and is_gpu_cluster(cluster_of(plan, cluster)):
        return plan_subject(plan, Cluster.detect(plan.num_devices), profile)
    return made if isinstance(made, Subject) else subject(made, cluster=cluster, profile=profile)


def compare(predicted: Any, measured: Any, *, allow_different: bool = False) -> Comparison:
    """Predicted beside measured: step, bubble, peaks, and every instruction name. Takes traces, or paths of their files.

    Raises ProgramError where the traces are of different programs, unless `allow_different`.
    """
    from meshwright.evidence.compare import compare as compare_traces

    traces = [Trace.load(one) if isinstance(one, str | Path) else one for one in (predicted, measured)]
    return compare_traces(traces[0], traces[1], allow_different=allow_different)


def calibrate(
    num_processes: int = 2,
    *,
    effort: Any = "full",
    keeps: bool = True,
    progress: Callable[[str, float], None] | None = None,
    slowing: Slowing | None = None,
) -> Profile:
    """Measure this machine with all processes busy, and keep the profile in the user's cache.

    Args:
        num_processes: as many as will train side by side.
        effort: "full" (about 20 s) or "quick".
        keeps: write it to the cache; where that cannot be written, one warning.
        slowing: links and processes slowed on purpose while it is measured. Such a profile is not of this machine: it is
            never kept.
        progress: called with what is being measured and the share that is done.

    Raises ExecutionError.
    """
    _require_torch()
    from meshwright.executor.measure import measure

    if num_processes < 1:
        raise SpecError(f"{num_processes} processes", allowed="1 or more")
    _warn_if_busy()
    profile = measure(num_processes, effort=effort, progress=progress, slowing=slowing)
    if keeps and slowing is None:
        keep(profile)
    return profile


def _warn_if_busy() -> None:
    """Other work on the machine is measured as if it were the machine."""
    if not hasattr(os, "getloadavg"):
        return
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        logger.warning(
            "%.1f processes were running on this machine in the last minute; what is measured beside them, and predicted "
            "from it, is too slow. Measure again when it is idle: meshwright calibrate",
            load,
        )


def _job(
    plan: Plan, program: Program, iterations: int, data: Any, seed: int, learning_rate: float, first_step: int,
    measures_memory: bool,
) -> Any:  # fmt: skip
    """The plan's program as a job of bytes."""
    from meshwright.executor.job import Job
    from meshwright.executor.ops.optimizer_step import OptimizerConfig
    from meshwright.executor.training import Training as TrainingJob

    edges, num_encoder_layers = architecture_of(plan)
    told = TrainingJob(
        plan.model, plan.layers_per_stage, plan.workload.sequence_length,
        OptimizerConfig(learning_rate=learning_rate, clip_norm=clip_norm(plan)), seed=seed, first_step=first_step,
        layer_edges=edges, num_encoder_layers=num_encoder_layers,
        **({} if data is None else {"data": os.fspath(data)}),
    )  # fmt: skip
    job = Job.of(program, iterations, training=told, dtype=plan.dtype, measures_memory=measures_memory)
    if job.num_ranks > MAX_RANKS:
        raise ExecutionError(
            f"the plan has {job.num_ranks} devices, each would be a process of this machine",
            allowed=f"up to {MAX_RANKS}",
            next="train a plan for `this computer`",
        )
    return job


def _pool(pool: Pool | None, num_ranks: int) -> Any:
    """The given pool, left open, or one of our own."""
    import contextlib

    from meshwright.executor.pool import Pool as Workers

    return contextlib.nullcontext(pool) if pool is not None else Workers(num_ranks)


def _require_torch() -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise ExecutionError(
            "PyTorch is not installed, and what trains or measures needs it",
            next="pip install 'meshwright[torch]'",
        )


def _require_proof(made: Subject) -> None:
    """A program that is not legal, not whole, or does not fit is refused before any process starts."""
    from meshwright.api.checking import check

    proof = check(made)
    if proof.error is not None:
        raise proof.error
