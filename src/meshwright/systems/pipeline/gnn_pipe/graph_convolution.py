"""Graph convolutions on a part of a graph: its own nodes, and of the nodes around them what was computed elsewhere.

Shapes: N own nodes, M own and halo nodes together, V nodes of the graph, D numbers a node, K layers that read embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.specs.error import SpecError
from meshwright.systems.pipeline.gnn_pipe.graph_chunk import ChunkedGraph
from meshwright.systems.pipeline.gnn_pipe.graph_network import GraphNetwork

# Adam's own decay rates and guard (Kingma and Ba, arXiv 1412.6980).
BETAS, EPSILON = (0.9, 0.999), 1e-8


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
    """Layers one behind the other: y = A (dropout(x) W) + b, and relu between them.

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
        x_ND = y_ND if layer == network.num_layers - 1 else torch.relu(y_ND)
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
    """New weights and moments [2, numbers]; `decay` is added to the gradient, as an L2 penalty is."""
    gradient = gradient + decay * weights
    first = BETAS[0] * moments[0] + (1 - BETAS[0]) * gradient
    second = BETAS[1] * moments[1] + (1 - BETAS[1]) * gradient**2
    mean, square = (
        moment / (1 - beta ** (epoch + 1)) for moment, beta in zip((first, second), BETAS, strict=True)
    )
    return weights - rate * mean / (square.sqrt() + EPSILON), torch.stack([first, second])
