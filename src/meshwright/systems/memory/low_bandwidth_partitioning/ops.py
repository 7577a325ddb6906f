"""Handlers of a step with partitioned states: gathers and reductions, quantised or not, layers of a byte model, AdamW.

`options` of the job: the fields of `PartitionedTraining`, and `mesh` (fields of `Mesh`).

Shapes: B samples, S tokens, E width, V vocabulary, N numbers of a layer (with padding), P bytes of a packed part, M members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.data.corpus import Corpus
from meshwright.executor.data.tokenization import NUM_BYTE_VALUES
from meshwright.executor.models.sublayer import SublayerSize, attention, first_weight, mlp
from meshwright.executor.ops.block_quantise import LARGEST, dequantise, quantise
from meshwright.executor.ops.functional_adamw import adamw
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.rank.exchange_handler import all_gather, exchange_counts, reduce_scatter
from meshwright.executor.rank.handler import Handlers, Pending, Row
from meshwright.specs.record import record
from meshwright.systems.memory.low_bandwidth_partitioning.mechanism import (
    BACKWARD,
    FORWARD,
    GATHER,
    GATHER_STEPPED,
    SCATTER,
    SCATTER_NODES,
    STEP,
    Mesh,
)

BETAS, EPSILON = (0.9, 0.95), 1e-8


@dataclass(frozen=True)
class PartitionedTraining:
    """A byte model of an embedding, blocks and a head, and how it is trained. Bits of 16 and more: not quantised."""

    size: SublayerSize = field(default_factory=lambda: SublayerSize(32, 4, 8, 128))
    num_blocks: int = 2
    sequence_length: int = 32
    batch: int = 4  # samples of a microbatch on one device
    num_microbatches: int = 1
    rate: float = 3e-3
    decay: float = 0.01
    weight_bits: int = 32
    gradient_bits: int = 32
    block: int = 64  # numbers that share a scale

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of all layers, in order."""
        return ("embedding", *["block"] * self.num_blocks, "head")

    def num_numbers(self, kind: str, num_devices: int) -> int:
        """Of a layer with its padding: every device's part is whole blocks."""
        e = self.size.width
        count = {
            "embedding": (NUM_BYTE_VALUES + self.sequence_length) * e,
            "block": sum(self.size.num_numbers(one) for one in ("attention", "mlp")),
            "head": e + NUM_BYTE_VALUES * e,
        }[kind]
        unit = num_devices * self.block
        return -(-count // unit) * unit

    def first(self, kind: str, layer: int, num_devices: int, dtype: torch.dtype) -> Tensor:
        """weight_N of a layer before the first step, zeros behind it."""
        e = self.size.width
        if kind == "block":
            depth = 2 * self.num_blocks
            parts = [
                first_weight(self.size, one, layer, depth=depth, dtype=dtype) for one in ("attention", "mlp")
            ]
        else:
            generator = keyed_generator(random_key("partitioned", kind))
            rows = NUM_BYTE_VALUES + (self.sequence_length if kind == "embedding" else 0)
            drawn = e**-0.5 * torch.randn(rows * e, generator=generator, dtype=torch.float64)
            parts = [*([torch.ones(e, dtype=dtype)] if kind == "head" else []), drawn.to(dtype)]
        weight = torch.cat(parts)
        return F.pad(weight, (0, self.num_numbers(kind, num_devices) - len(weight)))


def run_layer(
    training: PartitionedTraining, kind: str, weight_N: Tensor, x: Tensor, targets_BS: Tensor
) -> Tensor:
    """Output of a layer: x is tokens for the embedding; the head gives the mean loss in nats."""
    e = training.size.width
    if kind == "embedding":
        rows = NUM_BYTE_VALUES + training.sequence_length
        table = weight_N[: rows * e].view(rows, e)
        return table[x] + table[NUM_BYTE_VALUES:]
    if kind == "head":
        normed = F.rms_norm(x, (e,), weight_N[:e])
        logits = normed @ weight_N[e : e + NUM_BYTE_VALUES * e].view(NUM_BYTE_VALUES, e).T
        return F.cross_entropy(logits.flatten(0, 1), targets_BS.flatten())
    middle = training.size.num_numbers("attention")
    x = x + attention(training.size, x, weight_N[:middle])
    return x + mlp(training.size, x, weight_N[middle : middle + training.size.num_numbers("mlp")])


def batch_of(training: PartitionedTraining, step: int, device: int, microbatch: int) -> tuple[Tensor, Tensor]:
    """tokens_BS and targets_BS of one microbatch of a device."""
    first = (device * training.num_microbatches + microbatch) * training.batch
    return Corpus.standard_library().batch(
        0, step, range(first, first + training.batch), training.sequence_length
    )


class _Job:
    """What the handlers of one job share."""

    def __init__(self, context: Any) -> None:
        options = dict(context.options)
        self.mesh = Mesh(**options.pop("mesh"))
        self.training = record(PartitionedTraining, options, "options")


def _job(context: Any) -> _Job:
    found: _Job = context.state.setdefault("job", None) or _Job(context)
    context.state["job"] = found
    return found


def _behind(pending: Any, change: Callable[[Tensor], Tensor]) -> Pending:
    """The same exchange with its output changed."""
    return Pending(lambda: (change(pending.wait()[0]),))


def _gather(context: Any, row: Row, part_N: Tensor) -> Any:
    """The members' parts one behind the other [M, N]; packed on the way where weights are quantised."""
    training, num = _job(context).training, part_N.numel()
    if training.weight_bits not in LARGEST:
        return _behind(all_gather(context, row, (part_N,)), lambda whole: whole.view(-1, num))
    bits, block, dtype = training.weight_bits, training.block, part_N.dtype

    def unpack(packed: Tensor) -> Tensor:
        rows = packed.view(len(row.members), -1)
        return torch.stack([dequantise(one_P, num, bits, block, dtype) for one_P in rows])

    return _behind(all_gather(context, row, (quantise(part_N, bits, block),)), unpack)


def _scatter(context: Any, row: Row, parts_MN: Tensor) -> Any:
    """The sum of what all members have for this one [N]; quantised parts are sent as they are and summed here."""
    training = _job(context).training
    if training.gradient_bits not in LARGEST:
        return _behind(reduce_scatter(context, row, (parts_MN.flatten(),)), lambda own: own)
    bits, block, dtype = training.gradient_bits, training.block, parts_MN.dtype
    num = parts_MN.shape[1]
    packed_MP = torch.stack([quantise(part, bits, block) for part in parts_MN])

    def add(received_MP: Tensor) -> Tensor:
        return torch.stack([dequantise(one, num, bits, block, dtype) for one in received_MP]).sum(0)

    return _behind(exchange_counts(context, row, (packed_MP,)), add)


def gather_weights(context: Any, row: Row, inputs: Sequence[Any]) -> Any:
    """Whole weights from those of the package."""
    return _behind(_gather(context, row, inputs[0]), torch.flatten)


def scatter_gradients(context: Any, row: Row, inputs: Sequence[Any]) -> Any:
    """This device's part of the sum over the node: cut by GCD, then by package."""
    mesh = _job(context).mesh
    parts = inputs[0].view(mesh.gcds, mesh.packages, -1).transpose(0, 1)
    return _scatter(context, row, parts.reshape(mesh.gcds * mesh.packages, -1))


def scatter_nodes(context: Any, row: Row, inputs: Sequence[Any]) -> Any:
    """This device's part of the sum over all."""
    return _scatter(context, row, inputs[0].view(_job(context).mesh.nodes, -1))


def gather_stepped(context: Any, row: Row, inputs: Sequence[Any]) -> Any:
    """The package's part of the weights from those of the counterparts on all packages and nodes."""
    mesh = _job(context).mesh
    gathered = _gather(context, row, inputs[0])
    return _behind(
        gathered, lambda parts: parts.view(mesh.nodes, mesh.packages, -1).transpose(0, 1).reshape(-1)
    )


def _batch(context: Any, row: Row) -> tuple[Tensor, Tensor]:
    return batch_of(_job(context).training, context.iteration, context.rank, row.microbatch)


def forward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Output of a layer; only its input is kept."""
    training, (x, weight_N) = _job(context).training, inputs
    tokens_BS, targets_BS = _batch(context, row)
    x = tokens_BS if x is None else x
    with torch.no_grad():
        output = run_layer(training, training.kinds[row.stage], weight_N, x, targets_BS)
    share = context.num_ranks * training.num_microbatches
    loss = output / share if row.is_last else torch.zeros((), dtype=weight_N.dtype)
    return (None if row.is_last else output), x, loss


def backward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of the input and of all weights of the layer, computed again from the gathered weights."""
    training, (x, gradient, weight_N) = _job(context).training, inputs
    _, targets_BS = _batch(context, row)
    weight_N = weight_N.detach().requires_grad_()
    x = x if row.is_first else x.detach().requires_grad_()
    output = run_layer(training, training.kinds[row.stage], weight_N, x, targets_BS)
    if row.is_last:
        output = output / (context.num_ranks * training.num_microbatches)
    torch.autograd.backward(output, gradient)
    return (None if row.is_first else x.grad), weight_N.grad


def step(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """AdamW on this device's part of a layer; its state is master weights, first and second moment."""
    gradient_N, state_3N = inputs
    training = _job(context).training
    weight_N, moments_2N = adamw(
        state_3N[0],
        gradient_N,
        state_3N[1:],
        context.iteration + 1,
        training.rate,
        betas=BETAS,
        epsilon=EPSILON,
        decay=training.decay,
    )
    return weight_N, torch.cat([weight_N[None], moments_2N])


HANDLERS: Handlers = {
    GATHER: gather_weights,
    SCATTER: scatter_gradients,
    SCATTER_NODES: scatter_nodes,
    GATHER_STEPPED: gather_stepped,
    FORWARD: forward,
    BACKWARD: backward,
    STEP: step,
}
