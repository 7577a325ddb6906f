"""A token ring here: gloo processes train as one does, and count what they send."""

from __future__ import annotations

from dataclasses import replace

from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.mesh import data_axes
from meshwright.systems.sequence.token_ring.card import NUM_DEVICES

NUM_STEPS = 3
MODEL = ModelSpec.decoder(
    2, 64, 8, num_kv_heads=4, vocabulary_size=96, max_sequence_length=64, name="token ring"
)
# Of the bytes: 256 tokens, 2 samples, 8 heads of 32 numbers.
COUNTED = ModelSpec.decoder(1, 256, 8, vocabulary_size=64, max_sequence_length=256, name="counted")
SAMPLES = 2


def trained(
    model: ModelSpec, num_devices: int, pool: Pool, num_steps: int, dtype: str, context: str = "token_ring"
) -> JobResult:
    """Of a plan whose sequences so many processes share."""
    workload = Workload(SAMPLES, model.max_sequence_length)
    plan = Plan.of(
        model, Cluster.detect(num_devices), workload, cp=num_devices, context=context, dtype=dtype, microbatch_size=SAMPLES
    )  # fmt: skip
    training = TrainingConfig(
        model, plan.layers_per_stage, workload.sequence_length, replace(OptimizerConfig(), clip_norm=None),
        source=RANDOM, layout=TensorLayout.of(plan), data_axes=data_axes(plan),
    )  # fmt: skip
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    return pool.run(Job.of(program, num_steps, training=training, dtype=dtype))


def parameter_difference(num_devices: int, pool: Pool | None = None) -> float:
    """Largest difference of any parameter to one process, after three steps in float64."""
    with opened_pool(pool, NUM_DEVICES) as workers:
        ours, alone = (trained(MODEL, number, workers, NUM_STEPS, "float64") for number in (num_devices, 1))
    pairs = ((ours.parameters[name], alone.parameters[name]) for name in alone.parameters)
    return max(float((one - other).abs().max()) for one, other in pairs)


def forward_units(pool: Pool | None = None) -> float:
    """What each process sends forward in one layer, in bytes of its queries."""
    with opened_pool(pool, NUM_DEVICES) as workers:
        sent = trained(COUNTED, NUM_DEVICES, workers, 1, "float32").sent_bytes
    query = SAMPLES * COUNTED.max_sequence_length // NUM_DEVICES * COUNTED.hidden_size * 4
    found = {sum(each[name] for name in ("SEND_QUERY", "SEND_PARTIAL")) for each in sent}
    (units,) = found
    return units / query
