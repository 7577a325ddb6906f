"""Handlers of GRAPH_F, GRAPH_B and GRAPH_STEP: a stage of a graph network on one chunk of the graph at a time.

`options` of the job: `graph` (file that `save_chunked` wrote), `epoch`, and the fields of `GraphTraining`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from meshwright.executor.rank.handler import Row, handles
from meshwright.systems.pipeline.gnn_pipe.chunk_read import EMBEDDING, EMBEDDING_GRADIENT
from meshwright.systems.pipeline.gnn_pipe.edge_list import Graph
from meshwright.systems.pipeline.gnn_pipe.graph_chunk import ChunkedGraph
from meshwright.systems.pipeline.gnn_pipe.graph_convolution import (
    Dropout,
    GraphPart,
    Pass,
    adam_step,
    convolve,
    part_of,
    training_loss,
)
from meshwright.systems.pipeline.gnn_pipe.graph_network import GraphNetwork

DTYPES = {"float32": torch.float32, "float64": torch.float64}
FIELDS = ("edges", "offsets", "labels", "train", "indptr", "indices", "data", "shape")


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

    def to_dict(self) -> dict[str, Any]:
        """For a job's options."""
        return asdict(self)

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> GraphTraining:
        """What `to_dict` gave."""
        return GraphTraining(**{**fields, "network": GraphNetwork(**fields["network"])})


class Saved:
    """What a forward keeps for its backward: leaves and ends of its graph."""

    def __init__(
        self, x: Tensor | None, weights: list[Tensor], embeddings: dict[int, Tensor], made: Pass, end: Tensor
    ) -> None:
        self.x, self.weights, self.embeddings, self.made, self.end = x, weights, embeddings, made, end


def save_chunked(chunked: ChunkedGraph, path: Path) -> None:
    """Write what the handlers need of a graph that can be trained on."""
    graph = chunked.graph
    assert graph.features is not None and graph.labels is not None, "part_of has refused other graphs"
    x = graph.features
    arrays = (
        graph.edges,
        chunked.offsets,
        graph.labels,
        graph.split["train"],
        x.indptr,
        x.indices,
        x.data,
        x.shape,
    )
    np.savez(path, **dict(zip(FIELDS, map(np.asarray, arrays), strict=True)))  # type: ignore[arg-type]


@lru_cache(maxsize=2)
def load_chunked(path: str) -> ChunkedGraph:
    """Read it; once a process, because every epoch is a job."""
    with np.load(path, allow_pickle=False) as file:
        edges, offsets, labels, train, indptr, indices, data, shape = (file[name] for name in FIELDS)
    features = sparse.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
    return ChunkedGraph(
        Graph(Path(path).stem, len(labels), edges, features, labels, {"train": train}), offsets
    )


@lru_cache(maxsize=128)
def load_part(path: str, chunk: int, dtype: torch.dtype) -> GraphPart:
    """A chunk of it."""
    return part_of(load_chunked(path), chunk, dtype)


class Stage:
    """What the handlers of one job share."""

    def __init__(self, context: Any, stage: int) -> None:
        options = context.options
        self.training = GraphTraining.from_dict(options["training"])
        self.path, self.epoch, self.dtype = options["graph"], options["epoch"], context.dtype
        self.layers = self.training.network.layers(stage, context.num_ranks)
        chunked = load_chunked(self.path)
        self.num_labelled = len(chunked.graph.split["train"])
        training = self.training
        self.dropout = Dropout(chunked, training.network.width, training.dropout, training.seed, self.epoch)

    def part(self, chunk: int) -> GraphPart:
        """The chunk that a microbatch is."""
        return load_part(self.path, chunk, self.dtype)


def stage_of(context: Any, row: Row) -> Stage:
    """The stage of a row's device."""
    state: Stage = context.state.setdefault("stage", None) or Stage(context, row.stage)
    context.state["stage"] = state
    return state


def parts_named(names: Sequence[Any], kind: str) -> list[int]:
    """The chunks whose values of a kind a row names, in its order."""
    return [one.part for pattern in names for one in pattern or () if one.kind == kind]


def observed(loss: float, *received: Tensor | None) -> Tensor:
    """Loss and bytes that arrived, for the controller."""
    return torch.tensor([loss, float(sum(x.nbytes for x in received if x is not None))], dtype=torch.float64)


@handles("GRAPH_F")
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
    saved = Saved(x, weights, embeddings, made, end)
    seen = observed(float(end.detach()) if row.is_last else 0.0, received)
    output = None if row.is_last else made.output.detach()
    own = [torch.stack(made.inputs).detach()] if parts_named(row.writes, EMBEDDING.name) else []
    return output, saved, seen, *own


@handles("GRAPH_B")
def backward(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Gradients of input, weights, and of this epoch's embeddings of other chunks."""
    saved: Saved = inputs[0]
    received, _, *own = inputs[1:]
    ends, gradients = [saved.end], [received]
    if own:
        ends, gradients = [*ends, *saved.made.inputs], [*gradients, *own[0].unbind()]
    torch.autograd.backward(ends, gradients)
    others = parts_named(row.writes, EMBEDDING_GRADIENT.name)
    added = [saved.embeddings[c].grad for c in others]
    sums = tuple(flat.grad for flat in saved.weights)
    return None if saved.x is None else saved.x.grad, sums, observed(0.0, received), *added


@handles("GRAPH_STEP")
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
