"""Partitioned states on this machine: four processes as two nodes of two, beside one process; quantised beside not.

Shapes: N numbers of a layer (with padding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from torch import Tensor

from meshwright.executor import run_program
from meshwright.executor.data.corpus import Corpus
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import DTYPES
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.models.one_process import mean_of_batches
from meshwright.executor.rank.handler import ValueName
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
