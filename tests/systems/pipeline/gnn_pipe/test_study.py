"""GNNPipe executed: one chunk is the whole graph, old embeddings catch up, messages are counted, accuracy is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from meshwright.executor.job.pool import Pool
from meshwright.specs.error import ExecutionError
from meshwright.systems.pipeline.gnn_pipe import graph_file
from meshwright.systems.pipeline.gnn_pipe import study as gnn_pipe
from meshwright.systems.pipeline.gnn_pipe.mechanism import ChunkedGraph, Graph, cut_graph
from meshwright.systems.pipeline.gnn_pipe.ops import GraphTraining

pytest.importorskip("torch")

GRAPH = gnn_pipe.generated_graph(120)
ACCURACY = gnn_pipe.accuracy_difference


@pytest.mark.parametrize("deep", [{}, {"has_residual": True, "cuts": (1,)}], ids=["plain", "deep"])
def test_one_chunk_trains_as_the_whole_graph(deep: dict[str, Any], gloo_pool: Pool) -> None:
    network = replace(gnn_pipe.network_of(GRAPH, 4), **deep)
    training = GraphTraining(network, seed=7, dtype="float64")
    chunked = cut_graph(GRAPH, 1)
    reached = gnn_pipe.train_in_chunks(chunked, training, 4, gloo_pool)
    weights, losses = gnn_pipe.train_whole(chunked, training, 4)
    assert [seen["loss"] for seen in reached.observations] == pytest.approx(losses, abs=1e-10)
    assert all(torch.allclose(a, b, atol=1e-8) for a, b in zip(reached.weights(), weights, strict=True))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("num_chunks", [2, 5])
def test_messages_are_the_formulas(num_chunks: int, gloo_pool: Pool) -> None:
    # both directions over one border of two devices, 120 nodes, 8 numbers of 4 bytes
    assert gnn_pipe.received_bytes(120, 8, num_chunks, gloo_pool) == 2 * 120 * 8 * 4


def test_old_embeddings_catch_up_with_frozen_weights(gloo_pool: Pool) -> None:
    assert gnn_pipe.frozen_difference(4, 4, 200, gloo_pool) < 1e-12
    assert gnn_pipe.frozen_difference(4, 1, 200, gloo_pool) > 1e-3


def test_the_excess_is_beyond_the_standard_error() -> None:
    assert gnn_pipe.excess_points([(0.5, 0.5), (0.6, 0.5), (0.4, 0.5)]) == 0.0
    # differences 2 and 4 points: mean 3, standard error 1
    assert gnn_pipe.excess_points([(0.48, 0.5), (0.46, 0.5)]) == pytest.approx(2.0)


def test_a_graph_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(graph_file.GRAPHS, raising=False)
    with pytest.raises(ExecutionError, match="'cora' is not here.*--data FOLDER"):
        graph_file.named_graph("cora")
    with pytest.raises(ExecutionError, match=f"no cora.npz in {tmp_path}"):
        graph_file.named_graph("cora", tmp_path)
    np.savez(tmp_path / "cora.npz", edges=np.array([[0, 1]]))
    assert graph_file.named_graph("cora", tmp_path).num_nodes == 2
    monkeypatch.setenv(graph_file.GRAPHS, str(tmp_path))
    assert graph_file.named_graph("cora").num_nodes == 2


@pytest.mark.slow
def test_generated_graphs_can_be_learned(gloo_pool: Pool) -> None:
    chunks, whole = gnn_pipe.accuracy_difference(GRAPH, 2, gloo_pool, num_epochs=30)
    assert chunks > 0.6 and whole > 0.6  # a guess is right in a quarter


def test_a_claim_and_its_null_compare_with_one_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The null trains without the edges between chunks; on the whole graph the claim has trained already."""
    monkeypatch.setattr(gnn_pipe, "NUM_SEEDS", 2)
    monkeypatch.setattr(gnn_pipe, "NUM_EPOCHS", 2)
    monkeypatch.setattr(gnn_pipe, "named_graph", lambda name, data: GRAPH)
    for kept in (gnn_pipe.graph_of_claim, gnn_pipe.whole_accuracy):
        kept.cache_clear()
    trained, train = [], gnn_pipe.train_whole

    def counting(chunked: ChunkedGraph, *given: Any) -> Any:
        trained.append(chunked)
        return train(chunked, *given)

    monkeypatch.setattr(gnn_pipe, "train_whole", counting)
    graph = gnn_pipe.graph_of_claim("generated", None)
    for seed in range(2):
        gnn_pipe.whole_accuracy(graph, 2, seed, 2)
    gnn_pipe.excess_without_edges("generated", 2)
    assert len(trained) == 4, "two seeds on the whole graph, two without edges between chunks"


@pytest.mark.slow
def test_seeds_side_by_side_are_those_one_by_one(
    gloo_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gnn_pipe, "NUM_SEEDS", 3)
    gnn_pipe.graph_of_claim.cache_clear()
    seen = []

    def recorded(graph: Graph, num_layers: int, pool: Pool, seed: int) -> tuple[float, float]:
        pair = ACCURACY(graph, num_layers, pool, seed, num_epochs=2)
        seen.append((seed, pair))
        return pair

    monkeypatch.setattr(gnn_pipe, "accuracy_difference", recorded)
    monkeypatch.setattr(gnn_pipe, "named_graph", lambda name, data: GRAPH)
    found = gnn_pipe.accuracy_excess("generated", 2)
    alone = [ACCURACY(GRAPH, 2, gloo_pool, seed, num_epochs=2) for seed in range(gnn_pipe.NUM_SEEDS)]
    assert [pair for _, pair in sorted(seen)] == alone
    assert found == gnn_pipe.excess_points(alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_accuracy_is_that_of_the_whole_graph(name: str, gloo_pool: Pool, shared_data: Path) -> None:
    graph = graph_file.named_graph(name, shared_data / "workloads" / "graphs")
    pairs = [gnn_pipe.accuracy_difference(graph, 2, gloo_pool, seed) for seed in range(2)]
    assert gnn_pipe.excess_points(pairs) <= 1.0 and min(chunks for chunks, _ in pairs) > 0.6
