"""Handlers of GRAPH_F, GRAPH_B and GRAPH_STEP: graph convolutions of a stage on one chunk of the graph at a time.

`options` of the job: `graph` (file that `graph_file.save_chunked` wrote), `epoch`, and the fields of `GraphTraining`.

Shapes: N own nodes, M own and halo nodes together, V nodes of the graph, D numbers a node, K layers that read embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.functional_adamw import adamw
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.executor.rank.handler import Handlers, Row
from meshwright.specs.error import SpecError
from meshwright.specs.record import record
from meshwright.systems.pipeline.gnn_pipe.graph_file import load_chunked
from meshwright.systems.pipeline.gnn_pipe.mechanism import (
    EMBEDDING,
    EMBEDDING_GRADIENT,
    ChunkedGraph,
    GraphNetwork,
)


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Own nodes and their halo. ``halo_rows``: for every other chunk that is read the rows of it.

    ``nodes`` [M]; ``propagation`` [N, M] and ``features`` [M, D] are sparse; ``numbers``: which of the graph's non-zero
    features each one is; ``train``: labelled nodes among the own ones, by row.
    """

    nodes: Tensor
    propagation: Tensor
    features: Tensor
    numbers: Tensor
    halo_rows: Mapping[int, Tensor]
    train: Tensor
    labels: Tensor


def part_of(chunked: ChunkedGraph, chunk: int | None, dtype: torch.dtype) -> GraphPart:
    """A chunk of the graph, or all of it (None).

    Raises:
        SpecError: the graph has no features, labels or training nodes.
    """
    graph = chunked.graph
    if graph.features is None or graph.labels is None or not len(graph.split.get("train", ())):
        raise SpecError(
            f"{graph.name} cannot be trained on",
            allowed="an archive with features, labels and training nodes",
        )
    low, high = (0, graph.num_nodes) if chunk is None else chunked.offsets[chunk : chunk + 2].tolist()
    halo = np.zeros(0, dtype=np.int64) if chunk is None else chunked.halos[chunk]
    nodes = np.concatenate([np.arange(low, high), halo])
    numbered = graph.features.copy()
    numbered.data = np.arange(numbered.nnz)
    train = graph.split["train"]
    train = train[(train >= low) & (train < high)]
    chunk_of_halo = chunked.chunk_of(halo)
    return GraphPart(
        torch.from_numpy(nodes),
        _sparse(chunked.propagation[low:high][:, nodes], dtype),
        _sparse(graph.features[nodes], dtype),
        torch.from_numpy(numbered[nodes].data),
        {
            c: torch.from_numpy(halo[chunk_of_halo == c] - chunked.offsets[c])
            for c in set(chunk_of_halo.tolist())
        },
        torch.from_numpy(train - low),
        torch.from_numpy(graph.labels[train]),
    )


def _sparse(matrix: Any, dtype: torch.dtype) -> Tensor:
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    indices = torch.from_numpy(np.stack([rows, matrix.indices]).astype(np.int64))
    values = torch.from_numpy(matrix.data).to(dtype)
    return torch.sparse_coo_tensor(indices, values, matrix.shape, check_invariants=True).coalesce()


class Dropout:
    """What is kept of the inputs of layers in one epoch: a function of seed, epoch, layer and node, whatever the chunks."""

    def __init__(self, chunked: ChunkedGraph, width: int, probability: float, seed: int, epoch: int) -> None:
        assert chunked.graph.features is not None, "part_of has refused graphs without features"
        self.shapes = ((chunked.graph.features.nnz,), (chunked.graph.num_nodes, width))
        self.probability, self.seed, self.epoch = probability, seed, epoch
        self._scales: dict[int, Tensor] = {}

    def scale(self, layer: int, places: Tensor) -> Tensor:
        """Zero or 1 / (1 - p) for non-zero features (layer 0) or for nodes (others) at these places of the graph."""
        if layer not in self._scales:
            generator = keyed_generator(random_key(self.seed, self.epoch, layer, "graph dropout"))
            kept = torch.rand(self.shapes[min(layer, 1)], generator=generator) >= self.probability
            self._scales[layer] = kept / (1.0 - self.probability)
        return self._scales[layer][places]


class Pass(NamedTuple):
    """A forward: output [N, D], and what the layers behind the first read, each [N, D]."""

    output: Tensor
    inputs: list[Tensor]


def convolve(
    network: GraphNetwork,
    layers: range,
    part: GraphPart,
    weights: Sequence[Tensor],
    x_ND: Tensor | None,
    embeddings: Mapping[int, Tensor],
    dropout: Dropout,
) -> Pass:
    """Layers one behind the other: y = A (dropout(x) W) + b, relu between them, and x added where the network does.

    Args:
        weights: flat, one a layer: W, then b.
        x_ND: input of the own nodes; None where the first layer reads features.
        embeddings: of every other chunk that is read, [K, nodes of the chunk, D].
    """
    inputs: list[Tensor] = []
    for layer, flat in zip(layers, weights, strict=True):
        taken, made = network.shape(layer)
        weight_DD, bias_D = flat[:-made].view(taken, made), flat[-made:]
        if layer == 0:
            kept = part.features.values() * dropout.scale(0, part.numbers)
            features_MD = torch.sparse_coo_tensor(
                part.features.indices(), kept, part.features.shape, is_coalesced=True, check_invariants=False
            )
            z_MD = torch.sparse.mm(features_MD, weight_DD)
        else:
            assert x_ND is not None, "only the first layer reads features"
            pieces = [embeddings[c][len(inputs)][rows] for c, rows in sorted(part.halo_rows.items())]
            inputs.append(x_ND)
            z_MD = (torch.cat([x_ND, *pieces]) * dropout.scale(layer, part.nodes).to(x_ND.dtype)) @ weight_DD
        y_ND = torch.sparse.mm(part.propagation, z_MD) + bias_D
        y_ND = y_ND if layer == network.num_layers - 1 else torch.relu(y_ND)
        x_ND = x_ND + y_ND * network.branch_share if x_ND is not None and network.adds_input(layer) else y_ND
    assert x_ND is not None, "a stage has a layer or more"
    return Pass(x_ND, inputs)


def training_loss(part: GraphPart, output_ND: Tensor, num_labelled: int) -> Tensor:
    """The part's share of the mean cross-entropy over all labelled nodes of the graph."""
    return F.cross_entropy(output_ND[part.train], part.labels, reduction="sum") / num_labelled


def initial_weights(network: GraphNetwork, layer: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Glorot's uniform weights and biases of zero, flat."""
    taken, made = network.shape(layer)
    bound = (6.0 / (taken + made)) ** 0.5
    generator = keyed_generator(random_key(seed, layer, "graph weights"))
    drawn = (2 * torch.rand(taken * made, generator=generator) - 1) * bound
    return torch.cat([drawn, torch.zeros(made)]).to(dtype)


def adam_step(
    weights: Tensor, gradient: Tensor, moments: Tensor, rate: float, decay: float, epoch: int
) -> tuple[Tensor, Tensor]:
    """New weights and moments [2, numbers] by Adam; `decay` is added to the gradient, as an L2 penalty is."""
    return adamw(weights, gradient + decay * weights, moments, epoch + 1, rate)


@dataclass(frozen=True)
class GraphTraining:
    """How a network is trained; `decay` is of the first layer only, as Kipf and Welling have it (arXiv 1609.02907)."""

    network: GraphNetwork
    seed: int = 0
    rate: float = 0.01
    decay: float = 5e-4
    dropout: float = 0.5
    dtype: str = "float32"

    def decay_of(self, layer: int) -> float:
        """The L2 penalty's factor of a layer."""
        return self.decay if layer == 0 else 0.0


class SavedChunk:
    """What a forward keeps for its backward: leaves and ends of its graph."""

    def __init__(
        self, x: Tensor | None, weights: list[Tensor], embeddings: dict[int, Tensor], made: Pass, end: Tensor
    ) -> None:
        self.x, self.weights, self.embeddings, self.made, self.end = x, weights, embeddings, made, end


@lru_cache(maxsize=128)
def load_part(path: str, chunk: int, dtype: torch.dtype) -> GraphPart:
    """A chunk of it."""
    return part_of(load_chunked(path), chunk, dtype)


class GraphStage:
    """What the handlers of one job share."""

    def __init__(self, context: Any, stage: int) -> None:
        options = context.options
        self.training = record(GraphTraining, options["training"], "options")
        self.path, self.epoch, self.dtype = options["graph"], options["epoch"], context.dtype
        self.layers = self.training.network.layers(stage, context.num_ranks)
        chunked = load_chunked(self.path)
        self.num_labelled = len(chunked.graph.split["train"])
        training = self.training
        self.dropout = Dropout(chunked, training.network.width, training.dropout, training.seed, self.epoch)

    def part(self, chunk: int) -> GraphPart:
        """The chunk that a microbatch is."""
        return load_part(self.path, chunk, self.dtype)


def stage_of(context: Any, row: Row) -> GraphStage:
    """The stage of a row's device."""
    state: GraphStage = context.state.setdefault("stage", None) or GraphStage(context, row.stage)
    context.state["stage"] = state
    return state


def parts_named(names: Sequence[Any], kind: str) -> list[int]:
    """The chunks whose values of a kind a row names, in its order."""
    return [one.part for pattern in names for one in pattern or () if one.kind == kind]


def observed(loss: float, *received: Tensor | None) -> Tensor:
    """Loss and bytes that arrived, for the controller."""
    return torch.tensor([loss, float(sum(x.nbytes for x in received if x is not None))], dtype=torch.float64)


def forward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Layers of the stage on a chunk. All that is read is a leaf; what older epochs made gets a gradient nobody reads."""
    stage = stage_of(context, row)
    received, parameters, *read = inputs
    part = stage.part(row.microbatch)
    x = None if received is None else received.detach().requires_grad_()
    weights = [flat.detach().requires_grad_() for flat in parameters]
    others = parts_named(row.reads, EMBEDDING.name)
    embeddings = {c: e.detach().requires_grad_() for c, e in zip(others, read, strict=True)}
    made = convolve(stage.training.network, stage.layers, part, weights, x, embeddings, stage.dropout)
    end = training_loss(part, made.output, stage.num_labelled) if row.is_last else made.output
    saved = SavedChunk(x, weights, embeddings, made, end)
    seen = observed(float(end.detach()) if row.is_last else 0.0, received)
    output = None if row.is_last else made.output.detach()
    own = [torch.stack(made.inputs).detach()] if parts_named(row.writes, EMBEDDING.name) else []
    return output, saved, seen, *own


def backward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of input, weights, and of this epoch's embeddings of other chunks."""
    saved: SavedChunk = inputs[0]
    received, _, *own = inputs[1:]
    ends, gradients = [saved.end], [received]
    if own:
        ends, gradients = [*ends, *saved.made.inputs], [*gradients, *own[0].unbind()]
    torch.autograd.backward(ends, gradients)
    others = parts_named(row.writes, EMBEDDING_GRADIENT.name)
    added = [saved.embeddings[c].grad for c in others]
    sums = tuple(flat.grad for flat in saved.weights)
    return None if saved.x is None else saved.x.grad, sums, observed(0.0, received), *added


def step(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Adam on the layers of the stage."""
    stage = stage_of(context, row)
    gradients, parameters, moments = inputs
    training = stage.training
    made = [
        adam_step(w, g, m, training.rate, training.decay_of(layer), stage.epoch)
        for layer, w, g, m in zip(stage.layers, parameters, gradients, moments, strict=True)
    ]
    return tuple(zip(*made, strict=True))


HANDLERS: Handlers = {
    "GRAPH_F": forward,
    "GRAPH_B": backward,
    "GRAPH_STEP": step,
}
