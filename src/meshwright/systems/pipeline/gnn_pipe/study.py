"""GNNPipe on processes of this machine: an epoch a program, its messages counted, its accuracy beside the whole graph's."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
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
from meshwright.executor.models.one_process import one_thread
from meshwright.executor.ops.randomness import random_key
from meshwright.executor.rank.handler import ValueName
from meshwright.specs.training.job_report import JobReport, Said
from meshwright.specs.units import format_bytes, format_seconds
from meshwright.systems.pipeline.gnn_pipe.graph_file import named_graph, read_graph, save_chunked
from meshwright.systems.pipeline.gnn_pipe.job import GraphJob, lines_of_volumes, table_of_volumes
from meshwright.systems.pipeline.gnn_pipe.mechanism import (
    EMBEDDING,
    OBSERVED,
    UNLABELLED,
    ChunkedGraph,
    Chunks,
    Graph,
    GraphNetwork,
    ShuffledChunks,
    balanced_cuts,
    cut_graph,
    layer_costs,
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
from meshwright.systems.pipeline.gnn_pipe.volume import CHUNKS_A_DEVICE

DEEP = 16  # layers from which on a network does not learn without residuals
NUM_PROCESSES, NUM_CHUNKS = 2, 8  # four chunks a stage
NUM_EPOCHS, NUM_SEEDS = 100, 3
NUM_POOLS = 2  # a job keeps one core busy, its two processes wait for each other and for the next job
WIDTH = 16  # of the hidden layers, as Kipf and Welling have it on these graphs (arXiv 1609.02907)
KEPT = ("parameter", "optimizer_state", EMBEDDING.name, OBSERVED.name)
# A generated graph: communities on a ring, features around a mean of the class, with these numbers a node.
NUM_CLASSES, NUM_FEATURES, EDGES_A_NODE, NEAR = 4, 12, 3, 40
NUM_FROZEN_CHUNKS = 4
TRAIN_SHARE = 0.6  # of the labelled nodes of a graph that says nothing of a split
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
    done: Callable[[int, Mapping[str, float]], None] | None = None,
) -> Epochs:
    """Epochs of GNNPipe on `num_devices` processes of the pool: a job each, of the program that the controller chooses.

    `done` is told every epoch's number and what was observed in it.
    """
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
            if done is not None:
                done(epoch, reached.observations[-1])
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
    with one_thread():
        return _trained_whole(chunked, training, num_epochs)


def _trained_whole(
    chunked: ChunkedGraph, training: GraphTraining, num_epochs: int
) -> tuple[list[Tensor], list[float]]:
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
    """Layers for the features and classes of a graph; more than a few add what they read."""
    assert graph.features is not None, "only graphs with features are trained on"
    is_deep = num_layers >= DEEP
    return GraphNetwork(num_layers, width, graph.features.shape[1], graph.num_classes, is_deep)


def received_bytes(num_nodes: int, width: int, num_chunks: int, pool: Pool | None = None) -> float:
    """Bytes that arrived on all processes in the second epoch."""
    graph = generated_graph(num_nodes)
    training = GraphTraining(network_of(graph, NUM_PROCESSES, width))
    with opened_pool(pool, NUM_PROCESSES) as workers:
        reached = train_in_chunks(cut_graph(graph, num_chunks), training, 2, workers)
    return reached.observations[-1]["received_bytes"]


def received_bytes_of(graph: str, data: Path | None = None, pool: Pool | None = None) -> float:
    """The same of a real graph and a deep network."""
    found = named_graph(graph, data)
    with opened_pool(pool, NUM_PROCESSES) as workers:
        reached = train_in_chunks(
            cut_graph(found, NUM_CHUNKS), GraphTraining(network_of(found, DEEP)), 2, workers
        )
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
    weights = train_in_chunks(chunked, GraphTraining(network, seed), num_epochs, pool).weights()
    return accuracy(chunked, network, weights), whole_accuracy(graph, num_layers, seed, num_epochs)


@lru_cache(maxsize=NUM_SEEDS)
def whole_accuracy(graph: Graph, num_layers: int, seed: int, num_epochs: int) -> float:
    """Of training on the whole graph: a claim and its null compare with the same one."""
    chunked, network = cut_graph(graph, NUM_CHUNKS), network_of(graph, num_layers)
    weights, _ = train_whole(chunked, GraphTraining(network, seed), num_epochs)
    return accuracy(chunked, network, weights)


@lru_cache(maxsize=1)
def graph_of_claim(name: str, data: Path | None) -> Graph:
    """Read once for a claim and its null. Raises MissingDataError as `named_graph`."""
    return named_graph(name, data)


def accuracy_excess(graph: str, num_layers: int, data: Path | None = None) -> float:
    """By how many points the mean difference is beyond its standard error; 0 within. `data`: as of `named_graph`.

    An epoch is a short job, most of it waiting, so pools take seeds side by side.
    """
    found = graph_of_claim(graph, data)
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


def excess_without_edges(graph: str, num_layers: int, data: Path | None = None) -> float:
    """The same where chunks know nothing of each other: trained on the graph without the edges between them."""
    found = graph_of_claim(graph, data)
    chunked, network = cut_graph(found, NUM_CHUNKS), network_of(found, num_layers)
    ends = chunked.chunk_of(chunked.graph.edges)
    edges = chunked.graph.edges[ends[:, 0] == ends[:, 1]]
    parts = ChunkedGraph(replace(chunked.graph, edges=edges), chunked.offsets)
    pairs = []
    for seed in range(NUM_SEEDS):
        weights, _ = train_whole(parts, GraphTraining(network, seed), NUM_EPOCHS)
        whole = whole_accuracy(found, num_layers, seed, NUM_EPOCHS)
        pairs.append((accuracy(chunked, network, weights), whole))
    return excess_points(pairs)


def excess_points(pairs: list[tuple[float, float]]) -> float:
    """|mean difference| less its standard error, in points, 0 at least."""
    differences = np.array([chunks - whole for chunks, whole in pairs])
    error = differences.std(ddof=1) / len(differences) ** 0.5
    return float(max(0.0, abs(differences.mean()) - error) * POINTS)


def train_graph(job: GraphJob, seed: int, said: Said) -> JobReport:
    """Counts what an epoch on the job's graph moves, trains on processes, and beside them on the whole graph here."""
    graph = split_graph(read_graph(job.graph, job.nodes), seed)
    num_features = 0 if graph.features is None else graph.features.shape[1]
    network = GraphNetwork(job.layers, job.width, num_features, graph.num_classes, job.residual)
    found = table_of_volumes(graph, network)
    told: dict[str, Any] = {
        "graph": graph.name, "num_nodes": graph.num_nodes, "num_edges": len(graph.edges),
        "num_features": num_features, "num_classes": graph.num_classes, "volumes": [one._asdict() for one in found],
    }  # fmt: skip
    lines = [
        f"{graph.name}: {graph.num_nodes:,} nodes, {len(graph.edges):,} edges, {num_features:,} features, "
        f"{graph.num_classes} classes; {job.layers} layers of width {job.width}",
        *lines_of_volumes(found),
    ]
    if not job.epochs or graph.features is None:
        why = "" if graph.features is not None else ": there are no features (nodes=...)"
        return JobReport([*lines, f"nothing was trained{why}"], told)
    trained = _trained(graph, network, job, seed, said)
    return JobReport([*lines, *_lines_of_training(trained, job)], {**told, "training": trained})


def _trained(graph: Graph, network: GraphNetwork, job: GraphJob, seed: int, said: Said) -> dict[str, Any]:
    """Both trainings, of equal weights and dropout at first."""
    network = replace(network, cuts=balanced_cuts(layer_costs(graph, network), job.devices))
    chunked = cut_graph(graph, job.chunks or CHUNKS_A_DEVICE * job.devices)
    training = GraphTraining(network, seed, rate=job.rate, dropout=job.dropout)
    part_of(chunked, None, DTYPES[training.dtype])  # refuses what cannot be trained on before processes start
    began_s = time.perf_counter()
    with Pool(job.devices) as pool:
        pool.start()
        began_s = time.perf_counter()
        reached = train_in_chunks(
            chunked, training, job.epochs, pool, job.devices,
            lambda epoch, seen: said(f"training in chunks, epoch {epoch + 1} of {job.epochs}, loss {seen['loss']:.4f}"),
        )  # fmt: skip
        piped_s = time.perf_counter() - began_s
    said("training on the whole graph")
    began_s = time.perf_counter()
    weights, losses = train_whole(chunked, training, job.epochs)
    return {
        "layers_of_stages": [len(network.layers(stage, job.devices)) for stage in range(job.devices)],
        "num_chunks": chunked.num_chunks,
        "loss": reached.observations[-1]["loss"], "whole_loss": losses[-1],
        "accuracy": accuracy(chunked, network, reached.weights()),
        "whole_accuracy": accuracy(chunked, network, weights),
        "received_bytes": reached.observations[-1]["received_bytes"],
        "epoch_s": piped_s / job.epochs, "whole_epoch_s": (time.perf_counter() - began_s) / job.epochs,
    }  # fmt: skip


def _lines_of_training(found: Mapping[str, Any], job: GraphJob) -> list[str]:
    stages = "+".join(map(str, found["layers_of_stages"]))
    return [
        f"trained {job.epochs} epochs on {job.devices} processes, layers {stages}, {found['num_chunks']} chunks:",
        f"  in chunks        loss {found['loss']:.4f}   accuracy {found['accuracy']:.1%}   "
        f"{format_seconds(found['epoch_s'])} an epoch   {format_bytes(found['received_bytes'])} arrived in the last",
        f"  the whole graph  loss {found['whole_loss']:.4f}   accuracy {found['whole_accuracy']:.1%}   "
        f"{format_seconds(found['whole_epoch_s'])} an epoch, one process",
    ]


def split_graph(graph: Graph, seed: int) -> Graph:
    """The graph with training and test nodes: its own, or of the labelled ones three fifths and the rest, drawn."""
    if graph.labels is None or {"train", "test"} <= set(graph.split):
        return graph
    known = np.flatnonzero(graph.labels != UNLABELLED)
    drawn = np.random.default_rng(random_key(seed, "graph split") % 2**32).permutation(known)
    behind = int(len(drawn) * TRAIN_SHARE)
    return replace(graph, split={"train": np.sort(drawn[:behind]), "test": np.sort(drawn[behind:])})
