"""Handlers of graph stages: gradients go back through this epoch's embeddings, and not through older ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from meshwright.executor.job.pool import Pool
from meshwright.executor.rank.handler import ValueName
from meshwright.systems.pipeline.gnn_pipe.card import ShuffledChunks
from meshwright.systems.pipeline.gnn_pipe.graph_chunk import Chunks, cut_graph
from meshwright.systems.pipeline.gnn_pipe.graph_stage import GraphTraining, load_chunked, save_chunked
from meshwright.systems.pipeline.gnn_pipe.study import generated_graph, network_of, train_in_chunks

GRAPH = generated_graph(80)
CHUNKED, NETWORK = cut_graph(GRAPH, 4), network_of(GRAPH, 4, 6)
FROZEN = GraphTraining(NETWORK, rate=0.0, decay=0.0, dropout=0.0, dtype="float64")


def cut_gradients(weights: list[torch.Tensor], order: list[int]) -> list[torch.Tensor]:
    """Of the whole graph, where a chunk's neighbours in chunks behind it are constants."""
    graph, labels = CHUNKED.graph, CHUNKED.graph.labels
    assert graph.features is not None and labels is not None
    place = np.argsort(order)[CHUNKED.chunk_of(np.arange(graph.num_nodes))]
    is_current = torch.from_numpy(place[None, :] <= place[:, None])
    a = torch.from_numpy(CHUNKED.propagation.toarray())
    x, leaves = torch.from_numpy(graph.features.toarray()), [w.clone().requires_grad_() for w in weights]
    for layer, flat in enumerate(leaves):
        taken, made = NETWORK.shape(layer)
        weight, bias = flat[: taken * made].view(taken, made), flat[taken * made :]
        x = (a * is_current) @ x @ weight + (a * ~is_current) @ x.detach() @ weight + bias
        x = x if layer == 3 else x.relu()
    train = graph.split["train"]
    torch.nn.functional.cross_entropy(x[train], torch.from_numpy(labels[train])).backward()
    return [leaf.grad for leaf in leaves]


def first_moments(num_epochs: int, pool: Pool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Weights, and Adam's means of gradients, of all layers."""
    reached = train_in_chunks(CHUNKED, FROZEN, num_epochs, pool)
    found = {n: v for rank in reached.values for n, v in rank.items()}
    return reached.weights(), [found[ValueName("optimizer_state", layer)][0] for layer in range(4)]


def test_gradients_are_the_whole_graphs_less_those_of_old_embeddings(gloo_pool: Pool) -> None:
    # with frozen weights embeddings are exact behind three epochs, so the fifth epoch's gradient is known
    weights, before = first_moments(4, gloo_pool)
    _, behind = first_moments(5, gloo_pool)
    found = [(b - 0.9 * a) / 0.1 for a, b in zip(before, behind, strict=True)]
    order = ShuffledChunks(NETWORK, Chunks.of(CHUNKED), 2, FROZEN.seed).order(4)
    wanted = cut_gradients(weights, order)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-12) and float(other.abs().max()) > 1e-3
    other_order = cut_gradients(weights, order[::-1])
    assert not torch.allclose(found[0], other_order[0], atol=1e-6)


def test_a_graph_is_written_and_read(tmp_path: Path) -> None:
    save_chunked(CHUNKED, tmp_path / "a.npz")
    read = load_chunked(str(tmp_path / "a.npz"))
    assert np.array_equal(read.graph.edges, CHUNKED.graph.edges) and read.sizes == CHUNKED.sizes
    assert read.graph.features is not None and CHUNKED.graph.features is not None
    assert (read.graph.features != CHUNKED.graph.features).nnz == 0
    assert np.array_equal(read.graph.split["train"], CHUNKED.graph.split["train"])


def test_a_training_travels_as_a_mapping() -> None:
    assert GraphTraining.from_dict(FROZEN.to_dict()) == FROZEN
    assert FROZEN.decay_of(0) == FROZEN.decay and GraphTraining(NETWORK).decay_of(1) == 0.0
