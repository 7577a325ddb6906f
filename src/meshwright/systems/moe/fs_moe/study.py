"""Parts beside experts here: two gloo processes that hold half of the experts each train as one does, and overlap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.trace import Trace
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.mesh import data_axes

NUM_PROCESSES, NUM_STEPS, SAMPLES = 2, 3, 4  # samples of each process, one microbatch
MODEL = ModelSpec.decoder(2, 48, 4, vocabulary_size=96, max_sequence_length=32, name="four experts").changed(
    architecture="mixtral", num_experts=4, num_experts_per_token=2, expert_intermediate_size=40
)


def trained(
    model: ModelSpec, num_processes: int, token_parts: int, pool: Pool, num_steps: int = NUM_STEPS, dtype: str = "float64"
) -> JobResult:  # fmt: skip
    """Experts over all processes, microbatches in so many parts; the batch is the same for any number of processes."""
    workload = Workload(NUM_PROCESSES * SAMPLES, model.max_sequence_length)
    plan = Plan.of(
        model, Cluster.detect(num_processes), workload, ep=num_processes, token_parts=token_parts, dtype=dtype,
        microbatch_size=SAMPLES,
    )  # fmt: skip
    training = TrainingConfig(
        model, plan.layers_per_stage, workload.sequence_length, replace(OptimizerConfig(), clip_norm=None),
        source=RANDOM, layout=TensorLayout.of(plan), data_axes=data_axes(plan),
    )  # fmt: skip
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    return pool.run(Job.of(program, num_steps, training=training, dtype=dtype))


def parameter_difference(token_parts: int, pool: Pool | None = None) -> float:
    """Largest difference of any parameter to one process with whole microbatches, after three steps in float64."""
    with opened_pool(pool, NUM_PROCESSES) as workers:
        ours = trained(MODEL, NUM_PROCESSES, token_parts, workers)
        alone = trained(MODEL, 1, 1, workers)
    pairs = ((ours.parameters[name], alone.parameters[name]) for name in alone.parameters)
    return max(float((one - other).abs().max()) for one, other in pairs)


def overlapped_share(trace: Trace) -> float:
    """Of the seconds of all-to-alls of tokens, those in which their own process computes; of all iterations of a trace."""
    program = trace.program
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    streams = np.array(program.tables.streams)[program.columns.stream]
    sent, beside = 0.0, 0.0
    for rank in range(program.num_lists):
        own = program.list_of_row == rank
        for start, end in zip(trace.start_s, trace.end_s, strict=True):
            computes = list(
                zip(start[own & (streams == "compute")], end[own & (streams == "compute")], strict=True)
            )
            for begin, until in zip(
                start[own & (names == "ROUTE")], end[own & (names == "ROUTE")], strict=True
            ):
                sent += until - begin
                beside += sum(max(0.0, min(until, high) - max(begin, low)) for low, high in computes)
    return beside / sent if sent else 0.0
