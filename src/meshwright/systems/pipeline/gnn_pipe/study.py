"""GNNPipe on processes of this machine: an epoch a program, its messages counted, its accuracy beside the whole graph's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from meshwright.executor import run_program
from meshwright.executor.job.job import DTYPES
from meshwright.executor.job.pool import Pool, opened_pool
from meshwright.executor.ops.randomness import random_key
from meshwright.executor.rank.handler import ValueName
from meshwright.specs.error import MissingDataError
from meshwright.systems.pipeline.gnn_pipe.graph_file import read_graph, save_chunked
from meshwright.systems.pipeline.gnn_pipe.mechanism import (
    EMBEDDING,
    OBSERVED,
    ChunkedGraph,
    Chunks,
    Graph,
    GraphNetwork,
    ShuffledChunks,
    cut_graph,
    simple_edges,
)
from meshwright.systems.pipeline.gnn_pipe.ops import (
    Dropout,
    GraphTraining,
    adam_step,
    convolve,
    initial_weights,
    part_of,
    training_loss,
)

NUM_PROCESSES, NUM_CHUNKS = 2, 8  # four chunks a stage
NUM_EPOCHS, NUM_SEEDS = 100, 5
NUM_POOLS = 2  # a job keeps one core busy, its two processes wait for each other and for the next job
WIDTH = 16  # of the hidden layers, as Kipf and Welling have it on these graphs (arXiv 1609.02907)
GRAPHS = (
    "MESHWRIGHT_GRAPHS"  # the environment variable that names the folder of graphs where no argument does
)
ARCHIVE = "NAME.npz with edges, features (x), labels (y), train and test"
KEPT = ("parameter", "optimizer_state", EMBEDDING.name, OBSERVED.name)
# A generated graph: communities on a ring, features around a mean of the class, with these numbers a node.
NUM_CLASSES, NUM_FEATURES, EDGES_A_NODE, NEAR = 4, 12, 3, 40
NUM_FROZEN_CHUNKS = 4
POINTS = 100.0
Values = list[Mapping[ValueName, Tensor]]


@dataclass
class Epochs:
    """What training in chunks gave: values of every rank behind the last epoch, and what the controller saw of each."""

    values: Values
    observations: list[dict[str, float]] = field(default_factory=list)

    def weights(self) -> list[Tensor]:
        """Of all layers, flat."""
        found = {n.index: v for rank in self.values for n, v in rank.items() if n.kind == "parameter"}
        return [found[layer] for layer in sorted(found)]


def train_in_chunks(
    chunked: ChunkedGraph,
    training: GraphTraining,
    num_epochs: int,
    pool: Pool,
    num_devices: int = NUM_PROCESSES,
) -> Epochs:
    """Epochs of GNNPipe on `num_devices` processes of the pool: a job each, of the program that the controller chooses."""
    num_labelled = len(chunked.graph.split["train"])
    sizes = [int(((low <= t) & (t < high)).sum()) for t, low, high in _bounds(chunked)]
    shares = tuple(size / num_labelled for size in sizes)
    controller = ShuffledChunks(training.network, Chunks.of(chunked), num_devices, training.seed, shares)
    reached = Epochs(_first_values(chunked, training, num_devices))
    with tempfile.TemporaryDirectory(prefix="meshwright-graph-") as folder:
        path = Path(folder) / f"{chunked.graph.name}.npz"
        save_chunked(chunked, path)
        for epoch in range(num_epochs):
            program = controller.next(epoch, reached.observations[-1] if reached.observations else {})
            result = run_program(
                program,
                initial_values=reached.values,
                keep=KEPT,
                pool=pool,
                dtype=training.dtype,
                options={"graph": str(path), "epoch": epoch, "training": asdict(training)},
            )
            seen = torch.stack([rank[ValueName(OBSERVED.name)] for rank in result.values]).sum(0).tolist()
            reached.observations.append(dict(zip(("loss", "received_bytes"), seen, strict=True)))
            reached.values = [
                {name: value for name, value in rank.items() if name.kind != OBSERVED.name}
                for rank in result.values
            ]
    return reached


def _bounds(chunked: ChunkedGraph) -> list[tuple[Any, int, int]]:
    """Training nodes of the graph, and the bounds of every chunk."""
    train, offsets = chunked.graph.split["train"], chunked.offsets.tolist()
    return [(train, low, high) for low, high in zip(offsets[:-1], offsets[1:], strict=True)]


def _first_values(chunked: ChunkedGraph, training: GraphTraining, num_devices: int) -> Values:
    """Before the first epoch: drawn weights, and zeros."""
    network, dtype = training.network, DTYPES[training.dtype]
    values: Values = []
    for stage in range(num_devices):
        found: dict[ValueName, Tensor] = {}
        for layer in network.layers(stage, num_devices):
            found[ValueName("parameter", layer)] = initial_weights(network, layer, training.seed, dtype)
            found[ValueName("optimizer_state", layer)] = torch.zeros(
                2, network.num_parameters(layer), dtype=dtype
            )
        count = network.num_embeddings(stage, num_devices)
        for chunk, size in enumerate(chunked.sizes):
            name = ValueName(EMBEDDING.name, stage, part=chunk)
            found[name] = torch.zeros(count, size, network.width, dtype=dtype)
        values.append(found)
    return values


def train_whole(
    chunked: ChunkedGraph, training: GraphTraining, num_epochs: int
) -> tuple[list[Tensor], list[float]]:
    """The same training on the whole graph in this process: weights of all layers, and the loss of every epoch."""
    network, dtype = training.network, DTYPES[training.dtype]
    layers, part = range(network.num_layers), part_of(chunked, None, dtype)
    weights = [initial_weights(network, layer, training.seed, dtype) for layer in layers]
    moments = [torch.zeros(2, len(flat), dtype=dtype) for flat in weights]
    losses = []
    for epoch in range(num_epochs):
        leaves = [flat.detach().requires_grad_() for flat in weights]
        dropout = Dropout(chunked, network.width, training.dropout, training.seed, epoch)
        output = convolve(network, layers, part, leaves, None, {}, dropout).output
        loss = training_loss(part, output, len(part.train))
        gradients = torch.autograd.grad(loss, leaves)
        made = [
            adam_step(w, g, m, training.rate, training.decay_of(layer), epoch)
            for layer, w, g, m in zip(layers, weights, gradients, moments, strict=True)
        ]
        weights, moments = [w for w, _ in made], [m for _, m in made]
        losses.append(float(loss.detach()))
    return weights, losses


def accuracy(
    chunked: ChunkedGraph, network: GraphNetwork, weights: list[Tensor], nodes: str = "test"
) -> float:
    """Share of right classes among the nodes of a split, every embedding computed from the whole graph."""
    graph, part = chunked.graph, part_of(chunked, None, weights[0].dtype)
    assert graph.labels is not None, "part_of has refused graphs without labels"
    dropout = Dropout(chunked, network.width, 0.0, 0, 0)
    output = convolve(network, range(network.num_layers), part, weights, None, {}, dropout).output
    chosen = graph.split[nodes]
    return float((output.argmax(1).numpy()[chosen] == graph.labels[chosen]).mean())


def named_graph(name: str, data: Path | None = None) -> Graph:
    """A graph from the folder `data`, or without one from that which the environment variable MESHWRIGHT_GRAPHS names.

    Raises:
        MissingDataError: no folder was named, or the graph is not in it; the package has no data of others.
    """
    folder = data or (Path(os.environ[GRAPHS]) if os.environ.get(GRAPHS) else None)
    if folder is None or not (folder / f"{name}.npz").is_file():
        raise MissingDataError(
            f"the graph {name!r} is not here" if folder is None else f"there is no {name}.npz in {folder}",
            allowed=f"{ARCHIVE}, for each graph of the claims",
            next=f"meshwright reproduce gnn_pipe --data FOLDER, with {name}.npz in it",
        )
    return read_graph(folder / f"{name}.npz")


def generated_graph(num_nodes: int, seed: int = 0) -> Graph:
    """Nodes on a ring with edges to near ones, classes as arcs of it, noisy features; every tenth node trains."""
    draws = np.random.default_rng(random_key(seed, num_nodes, "graph") % 2**32)
    nodes = np.arange(num_nodes)
    source = np.repeat(nodes, EDGES_A_NODE)
    target = (source + draws.integers(1, NEAR, len(source))) % num_nodes
    labels = (nodes * NUM_CLASSES // num_nodes).astype(np.int64)
    means = draws.normal(size=(NUM_CLASSES, NUM_FEATURES))
    features = means[labels] + draws.normal(size=(num_nodes, NUM_FEATURES))
    split = {"train": nodes[::10], "test": nodes[5::10]}
    edges = simple_edges(np.stack([source, target], axis=1))
    return Graph("generated", num_nodes, edges, sparse.csr_array(features), labels, split)


def network_of(graph: Graph, num_layers: int, width: int = WIDTH) -> GraphNetwork:
    """Layers for the features and classes of a graph."""
    assert graph.features is not None, "only graphs with features are trained on"
    return GraphNetwork(num_layers, width, graph.features.shape[1], graph.num_classes)


def received_bytes(num_nodes: int, width: int, num_chunks: int, pool: Pool | None = None) -> float:
    """Bytes that arrived on all processes in the second epoch."""
    graph = generated_graph(num_nodes)
    training = GraphTraining(network_of(graph, NUM_PROCESSES, width))
    with opened_pool(pool, NUM_PROCESSES) as workers:
        reached = train_in_chunks(cut_graph(graph, num_chunks), training, 2, workers)
    return reached.observations[-1]["received_bytes"]


def frozen_difference(
    num_layers: int, num_epochs: int = 0, num_nodes: int = 2000, pool: Pool | None = None
) -> float:
    """Largest difference of the embeddings that layers read from those of the whole graph, relative to each layer's
    largest, with frozen weights and behind as many epochs as layers."""
    graph = generated_graph(num_nodes)
    network, chunked = network_of(graph, num_layers), cut_graph(graph, NUM_FROZEN_CHUNKS)
    training = GraphTraining(network, rate=0.0, dropout=0.0, dtype="float64")
    with opened_pool(pool, NUM_PROCESSES) as workers:
        reached = train_in_chunks(chunked, training, num_epochs or num_layers, workers)
    part, dropout = part_of(chunked, None, torch.float64), Dropout(chunked, network.width, 0.0, 0, 0)
    whole = convolve(network, range(num_layers), part, reached.weights(), None, {}, dropout).inputs
    stages = [
        torch.cat([rank[ValueName(EMBEDDING.name, stage, part=c)] for c in range(NUM_FROZEN_CHUNKS)], dim=1)
        for stage, rank in enumerate(reached.values)
    ]
    found = torch.cat(stages)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, whole, strict=True))


def accuracy_difference(
    graph: Graph, num_layers: int, pool: Pool, seed: int = 0, num_epochs: int = NUM_EPOCHS
) -> tuple[float, float]:
    """The test accuracy of training in chunks, and of training on the whole graph."""
    chunked, network = cut_graph(graph, NUM_CHUNKS), network_of(graph, num_layers)
    training = GraphTraining(network, seed)
    weights = train_in_chunks(chunked, training, num_epochs, pool).weights()
    whole, _ = train_whole(chunked, training, num_epochs)
    return accuracy(chunked, network, weights), accuracy(chunked, network, whole)


def accuracy_excess(graph: str, num_layers: int, data: Path | None = None) -> float:
    """By how many points the mean difference is beyond its standard error; 0 within. `data`: as of `named_graph`.

    An epoch is a short job, most of it waiting, so pools take seeds side by side.
    """
    found = named_graph(graph, data)
    idle: SimpleQueue[Pool] = SimpleQueue()

    def trained(seed: int) -> tuple[float, float]:
        pool = idle.get()
        try:
            return accuracy_difference(found, num_layers, pool, seed)
        finally:
            idle.put(pool)

    threads = ThreadPoolExecutor(NUM_POOLS)
    try:
        with ExitStack() as pools:  # left first: workers that are gone end the threads that wait for them
            for _ in range(NUM_POOLS):
                idle.put(pools.enter_context(Pool(NUM_PROCESSES)))
            return excess_points(list(threads.map(trained, range(NUM_SEEDS))))
    finally:
        threads.shutdown(cancel_futures=True)


def excess_points(pairs: list[tuple[float, float]]) -> float:
    """|mean difference| less its standard error, in points, 0 at least."""
    differences = np.array([chunks - whole for chunks, whole in pairs])
    error = differences.std(ddof=1) / len(differences) ** 0.5
    return float(max(0.0, abs(differences.mean()) - error) * POINTS)
