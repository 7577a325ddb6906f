"""Ring self-attention here: gloo processes train as one does, what they send and hold; sparse attention around a ring.

Shapes: N ranks, B samples, s tokens of a rank, Z heads, A numbers of a head, r rows of a rank's projected keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.judge.metrics import peak_bytes
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.mesh import data_axes

NUM_STEPS, NUM_RANKS, SAMPLES = 3, 4, 2
MODEL = ModelSpec.decoder(
    2, 64, 8, num_kv_heads=4, vocabulary_size=96, max_sequence_length=64, name="ring self-attention"
)
COUNTED = ModelSpec.decoder(1, 256, 8, vocabulary_size=64, max_sequence_length=256, name="counted")
# Few parameters beside its activations; of these scores are most.
GROWING = ModelSpec.decoder(2, 32, 4, vocabulary_size=32, max_sequence_length=256, name="growing")
CONTEXT = "ring_self_attention"


def trained(
    model: ModelSpec, num_devices: int, pool: Pool, num_steps: int, dtype: str, kind: str = "sequence", samples: int = SAMPLES
) -> JobResult:  # fmt: skip
    """Of a plan whose sequences, or matrices, so many processes share."""
    workload = Workload(samples, model.max_sequence_length)
    cp, tp = (num_devices, 1) if kind == "sequence" else (1, num_devices)
    plan = Plan.of(
        model, Cluster.detect(num_devices), workload, dtype=dtype, microbatch_size=samples, cp=cp, tp=tp, context=CONTEXT
    )  # fmt: skip
    training = TrainingConfig(
        model, plan.layers_per_stage, workload.sequence_length, replace(OptimizerConfig(), clip_norm=None),
        source=RANDOM, layout=TensorLayout.of(plan), data_axes=data_axes(plan),
    )  # fmt: skip
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    return pool.run(Job.of(program, num_steps, training=training, dtype=dtype, measures_memory=True))


def parameter_difference(num_devices: int, pool: Pool | None = None) -> float:
    """Largest difference of any parameter to one process, after three steps in float64."""
    with opened_pool(pool, NUM_RANKS) as workers:
        ours, alone = (trained(MODEL, number, workers, NUM_STEPS, "float64") for number in (num_devices, 1))
    pairs = ((ours.parameters[name], alone.parameters[name]) for name in alone.parameters)
    return max(float((one - other).abs().max()) for one, other in pairs)


def sent_units(pool: Pool | None = None) -> float:
    """What each process sends for attention in one layer, in bytes of its queries."""
    with opened_pool(pool, NUM_RANKS) as workers:
        sent = trained(COUNTED, NUM_RANKS, workers, 1, "float32").sent_bytes
    query = SAMPLES * COUNTED.max_sequence_length // NUM_RANKS * COUNTED.hidden_size * 4
    (units,) = {
        sum(each[name] for name in ("SEND_KEYS", "SEND_VALUES", "REDUCE_SCATTER")) / query for each in sent
    }
    return units


def activation_bytes(kind: str, num_devices: int, pool: Pool) -> float:
    """Of the process with most: the peak of what lives, less what lives between two steps."""
    trace = trained(GROWING, num_devices, pool, 2, "float32", kind, samples=SAMPLES * num_devices).trace
    assert trace is not None, "a job that is not interrupted has a trace"
    return max(
        peak_bytes(trace, curve.device) - float(curve.bytes[-1])
        for curve in trace.memory
        if curve.tier == "device"
    )


def growth(kind: str, pool: Pool | None = None) -> float:
    """Activations of a process among four over those among two, with twice the samples."""
    with opened_pool(pool, NUM_RANKS) as workers:
        return activation_bytes(kind, 4, workers) / activation_bytes(kind, 2, workers)


Rows = Sequence[Tensor]  # of every rank


def sparse_attention(queries: Rows, keys: Rows, values: Rows, projections: Rows) -> list[Tensor]:
    """Outputs of all ranks, each [B, Z, s, A]: their keys and values [B, Z, s, A] are projected by [r, s] where they are, and
    go around the ring as r rows."""
    num = len(queries)
    small = [(own @ key, own @ value) for own, key, value in zip(projections, keys, values, strict=True)]
    found = []
    for rank, query in enumerate(queries):
        order = [(rank - step) % num for step in range(num)]  # whose rows come, step by step
        scores = torch.cat([query @ small[source][0].transpose(-2, -1) for source in order], -1)
        weights = torch.softmax(scores / query.shape[-1] ** 0.5, -1).chunk(num, -1)
        parts = [part @ small[source][1] for part, source in zip(weights, order, strict=True)]
        found.append(torch.stack(parts).sum(0))
    return found


def sparse_difference() -> float:
    """Largest difference of outputs and gradients to one rank with all tokens and one projection, block by block."""
    generator, tokens, rows = torch.Generator().manual_seed(0), 32, 4

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    query, key, value = inputs = [drawn(2, 3, tokens, 8).requires_grad_() for _ in range(3)]
    own = [drawn(rows, tokens // NUM_RANKS) for _ in range(NUM_RANKS)]
    whole = torch.zeros(NUM_RANKS * rows, tokens, dtype=torch.float64)
    for rank, each in enumerate(own):
        whole[rank * rows : (rank + 1) * rows].chunk(NUM_RANKS, 1)[rank].copy_(each)
    divided = [x.chunk(NUM_RANKS, 2) for x in inputs]
    ours = torch.cat(sparse_attention(divided[0], divided[1], divided[2], own), 2)
    (alone,) = sparse_attention([query], [key], [value], [whole])
    gradient = drawn(2, 3, tokens, 8)
    both = [(y, *torch.autograd.grad(y, inputs, gradient)) for y in (ours, alone)]
    return max(float((one - other).detach().abs().max()) for one, other in zip(*both, strict=True))
