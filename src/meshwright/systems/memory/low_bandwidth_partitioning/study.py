"""Partitioned states here: four processes as two nodes of two, beside one process, quantised, and over slow links.

Shapes: N numbers of a layer (with padding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from meshwright.executor import run_program
from meshwright.executor.data.corpus import Corpus
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import DTYPES, Job
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.models.one_process import mean_of_batches
from meshwright.executor.rank.handler import ValueName
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.cluster.slowing import LinkLimit, Slowing
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.mesh import data_axes
from meshwright.systems.memory.low_bandwidth_partitioning.card import low_bandwidth_partitioning
from meshwright.systems.memory.low_bandwidth_partitioning.mechanism import (
    LAYER_STATE,
    LAYER_WEIGHT,
    LOSS,
    Mesh,
    StepSize,
)
from meshwright.systems.memory.low_bandwidth_partitioning.ops import (
    BETAS,
    EPSILON,
    PartitionedTraining,
    batch_of,
    run_layer,
)

MESH = Mesh(2, 1, 2)  # two nodes of one package of two
NUM_CHECKED, NUM_TRAINED, NUM_HELD_OUT = 3, 100, 64
INT8, INT4 = 8, 4
MEGA = 1e6
# Of plans, from the fewest bytes between two nodes of two processes to the most: weights and gradients stay in a node;
# weights do (ZeRO++'s second partition); all is divided among everybody.
SHARDINGS = (
    "low_bandwidth_partitioning(values=2, gradients=2)",
    "low_bandwidth_partitioning(values=2, gradients=4)",
    "zero3",
)
SLOW_MODEL = ModelSpec.decoder(2, 96, 4, max_sequence_length=32, name="slow link")
SLOW_STEPS = 6
BETWEEN_NODES = ((0, 2), (0, 3), (1, 2), (1, 3))


@dataclass(frozen=True, eq=False)
class TrainedWeights:
    """Whole weights of all layers, and the loss of the last step."""

    weights: tuple[Tensor, ...]
    loss: float


def train(
    training: PartitionedTraining, num_steps: int, pool: Pool, mesh: Mesh = MESH, dtype: str = "float64"
) -> TrainedWeights:
    """Steps on a process for every device of the mesh."""
    counts = [training.num_numbers(kind, mesh.num_devices) for kind in training.kinds]
    size = StepSize(tuple(map(float, counts)), training.num_microbatches)
    program = low_bandwidth_partitioning(mesh, size, bits=(training.weight_bits, training.gradient_bits))
    weights = [
        training.first(kind, layer, mesh.num_devices, DTYPES[dtype])
        for layer, kind in enumerate(training.kinds)
    ]
    values = [_values(weights, mesh, device) for device in range(mesh.num_devices)]
    result = run_program(
        program,
        initial_values=values,
        iterations=num_steps,
        keep=(LAYER_STATE.name, LOSS.name),
        pool=pool,
        dtype=dtype,
        options={"mesh": asdict(mesh), **asdict(training)},
    )
    loss = sum(float(rank[ValueName(LOSS.name)]) for rank in result.values)
    return TrainedWeights(_whole(result, mesh, len(counts)), loss)


def _cut(weight_N: Tensor, mesh: Mesh, device: int) -> tuple[Tensor, Tensor]:
    """(the package's part, this device's own part) of a flat tensor."""
    rest, gcd = divmod(device, mesh.gcds)
    node, package = divmod(rest, mesh.packages)
    cut = weight_N.view(mesh.gcds, mesh.packages, mesh.nodes, -1)
    return cut[gcd].flatten(), cut[gcd, package, node]


def _values(weights: list[Tensor], mesh: Mesh, device: int) -> dict[ValueName, Tensor]:
    found: dict[ValueName, Tensor] = {}
    for layer, weight_N in enumerate(weights):
        package, own = _cut(weight_N, mesh, device)
        found[ValueName(LAYER_WEIGHT.name, layer)] = package.clone()
        state = torch.stack([own, torch.zeros_like(own), torch.zeros_like(own)])
        found[ValueName(LAYER_STATE.name, layer)] = state
    return found


def _whole(result: JobResult, mesh: Mesh, num_layers: int) -> tuple[Tensor, ...]:
    """Master weights of all layers, from all devices."""
    found = []
    for layer in range(num_layers):
        parts = [rank[ValueName(LAYER_STATE.name, layer)][0] for rank in result.values]
        stacked = torch.stack(parts).view(mesh.nodes, mesh.packages, mesh.gcds, -1)
        found.append(stacked.permute(2, 1, 0, 3).flatten())
    return tuple(found)


def train_alone(
    training: PartitionedTraining, num_steps: int, num_devices: int, dtype: torch.dtype = torch.float64
) -> TrainedWeights:
    """The same steps in one process, by torch's own optimizer and autograd, over the samples of all devices."""
    weights = [
        training.first(kind, layer, num_devices, dtype).requires_grad_()
        for layer, kind in enumerate(training.kinds)
    ]
    optimizer = torch.optim.AdamW(
        weights, lr=training.rate, betas=BETAS, eps=EPSILON, weight_decay=training.decay
    )
    total = 0.0
    for step in range(num_steps):
        optimizer.zero_grad()
        total = 0.0
        for device in range(num_devices):
            for microbatch in range(training.num_microbatches):
                loss = model_loss(training, weights, *batch_of(training, step, device, microbatch))
                loss = loss / (num_devices * training.num_microbatches)
                torch.autograd.backward(loss)
                total += float(loss.detach())
        optimizer.step()
    return TrainedWeights(tuple(weight.detach() for weight in weights), total)


def parameter_difference(pool: Pool | None = None, num_microbatches: int = 1, mesh: Mesh = MESH) -> float:
    """Largest difference of any parameter after three steps, nothing quantised."""
    training = PartitionedTraining(num_microbatches=num_microbatches)
    with opened_pool(pool, MESH.num_devices) as workers:
        ours = train(training, NUM_CHECKED, workers, mesh)
    alone = train_alone(training, NUM_CHECKED, mesh.num_devices)
    return max(float((a - b).abs().max()) for a, b in zip(ours.weights, alone.weights, strict=True))


def model_loss(
    training: PartitionedTraining, weights: Sequence[Tensor], tokens_BS: Tensor, targets_BS: Tensor
) -> Tensor:
    """Mean nats a byte of a batch, by whole weights."""
    x = tokens_BS
    for kind, weight_N in zip(training.kinds, weights, strict=True):
        x = run_layer(training, kind, weight_N, x, targets_BS)
    return x


def held_out_loss(training: PartitionedTraining, weights: Sequence[Tensor]) -> float:
    """Nats a byte of held-out files."""
    batches = Corpus.standard_library().held_out_batches(
        NUM_HELD_OUT, training.sequence_length, training.batch
    )
    return mean_of_batches(partial(model_loss, training, weights), batches)


def trained_loss(training: PartitionedTraining, pool: Pool, num_steps: int = NUM_TRAINED) -> float:
    """Held-out loss behind the steps."""
    return held_out_loss(training, train(training, num_steps, pool, dtype="float32").weights)


def loss_ratio(pool: Pool | None = None, num_steps: int = NUM_TRAINED) -> float:
    """Quantised over not quantised."""
    training = PartitionedTraining()
    with opened_pool(pool, MESH.num_devices) as workers:
        plain = trained_loss(training, workers, num_steps)
        quantised = trained_loss(replace(training, weight_bits=INT8, gradient_bits=INT4), workers, num_steps)
    return quantised / plain


def slow_link_job(sharding: str, iterations: int) -> Job:
    """A plan of four replicas with four microbatches each, by the core's own lowering and handlers."""
    plan = Plan.of(
        SLOW_MODEL, Cluster.detect(4), Workload(16, 32), dp=4, microbatch_size=1, sharding=sharding
    )
    training = TrainingConfig(
        SLOW_MODEL, plan.layers_per_stage, plan.workload.sequence_length, source=RANDOM,
        layout=TensorLayout.of(plan), data_axes=data_axes(plan),
    )  # fmt: skip
    return Job.of(lower(plan, registered()[plan.schedule]), iterations, training=training)


def slow_link_s(sharding: str, pool: Pool, bytes_per_s: float) -> float:
    """Median seconds of a step where what passes between the nodes pays at a slow rate."""
    slowing = Slowing(tuple(LinkLimit(one, other, bytes_per_s) for one, other in BETWEEN_NODES))
    trace = pool.run(slow_link_job(sharding, SLOW_STEPS), slowing=slowing).trace
    assert trace is not None, "a job that is not interrupted has a trace"
    return float(np.median(np.diff(trace.end_s.max(axis=1))))


def num_ordered_on_slow_links(megabytes: float, pool: Pool | None = None) -> int:
    """Neighbours among the shardings of which the one with fewer bytes between nodes is faster, measured."""
    with opened_pool(pool, MESH.num_devices) as workers:
        seconds = [slow_link_s(sharding, workers, megabytes * MEGA) for sharding in SHARDINGS]
    return sum(a < b for a, b in zip(seconds, seconds[1:]))
