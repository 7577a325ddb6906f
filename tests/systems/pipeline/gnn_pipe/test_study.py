"""GNNPipe executed: one chunk is the whole graph, old embeddings catch up, messages are counted, accuracy is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from meshwright.executor.job.pool import Pool
from meshwright.specs.error import ExecutionError, SpecError
from meshwright.systems.pipeline.gnn_pipe import study as gnn_pipe
from meshwright.systems.pipeline.gnn_pipe.mechanism import Graph, cut_graph, simple_edges
from meshwright.systems.pipeline.gnn_pipe.ops import GraphTraining
from meshwright.systems.pipeline.gnn_pipe.study import read_graph

pytest.importorskip("torch")

GRAPH = gnn_pipe.generated_graph(120)
ACCURACY = gnn_pipe.accuracy_difference


def test_one_chunk_trains_as_the_whole_graph(gloo_pool: Pool) -> None:
    training = GraphTraining(gnn_pipe.network_of(GRAPH, 4), seed=7, dtype="float64")
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
    monkeypatch.delenv(gnn_pipe.GRAPHS, raising=False)
    with pytest.raises(ExecutionError, match="'cora' is not here.*--data FOLDER"):
        gnn_pipe.named_graph("cora")
    with pytest.raises(ExecutionError, match=f"no cora.npz in {tmp_path}"):
        gnn_pipe.named_graph("cora", tmp_path)
    np.savez(tmp_path / "cora.npz", edges=np.array([[0, 1]]))
    assert gnn_pipe.named_graph("cora", tmp_path).num_nodes == 2
    monkeypatch.setenv(gnn_pipe.GRAPHS, str(tmp_path))
    assert gnn_pipe.named_graph("cora").num_nodes == 2


def test_generated_graphs_can_be_learned(gloo_pool: Pool) -> None:
    chunks, whole = gnn_pipe.accuracy_difference(GRAPH, 2, gloo_pool, num_epochs=30)
    assert chunks > 0.6 and whole > 0.6  # a guess is right in a quarter


@pytest.mark.slow
def test_seeds_side_by_side_are_those_one_by_one(
    gloo_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gnn_pipe, "NUM_SEEDS", 3)
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
    graph = gnn_pipe.named_graph(name, shared_data / "workloads" / "graphs")
    pairs = [gnn_pipe.accuracy_difference(graph, 2, gloo_pool, seed) for seed in range(2)]
    assert gnn_pipe.excess_points(pairs) <= 1.0 and min(chunks for chunks, _ in pairs) > 0.6


EDGES = [[0, 1], [0, 3], [1, 2]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "u,v,weight\n0,1,4\n3,0,5\n1,2,1\n"),
        ("a.csv", "0, 1\n1, 0\n0, 3\n2, 1\n2, 2\n"),
        ("a.tsv", "ann\tbob\nann\tdan\nbob\tcat\n"),
        ("a.txt", "# a comment\n% another\n\n10 20\n40 10\n20 30\n"),
        ("a.edges", "from to\n7,9\n7,100\n9,11\n"),
    ],
)
def test_text_of_any_kind_gives_the_same_edges(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    graph = read_graph(tmp_path / name)
    assert (graph.num_nodes, graph.edges.tolist(), graph.num_classes) == (4, EDGES, 0)
    assert graph.adjacency.toarray().tolist() == [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]


def test_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("9 10\n10 11\n")
    assert read_graph(tmp_path / "a.txt").edges.tolist() == [[0, 1], [1, 2]]


def test_edges_are_kept_once_without_loops() -> None:
    assert simple_edges([[1, 0], [0, 1], [2, 2], [2, 1]]).tolist() == [[0, 1], [1, 2]]


def test_an_archive_keeps_features_labels_and_split(tmp_path: Path) -> None:
    dense = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    np.savez(
        tmp_path / "a.npz", edges=np.array([[1, 0]]), x=dense, y=np.array([2, 0, -1]), train=np.array([1])
    )
    graph = read_graph(tmp_path / "a.npz")
    assert (graph.num_nodes, graph.num_classes) == (3, 3) and graph.split["train"].tolist() == [1]
    assert graph.features is not None and np.array_equal(graph.features.toarray(), dense)
    parts = {"x_indptr": [0, 1, 2, 2], "x_indices": [1, 0], "x_data": [1.0, 2.0], "x_shape": [3, 2]}
    np.savez(tmp_path / "b.npz", edges=np.array([[1, 0]]), **{k: np.array(v) for k, v in parts.items()})
    sparse = read_graph(tmp_path / "b.npz").features
    assert sparse is not None and np.array_equal(sparse.toarray(), dense)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "0,1\n2\n", "line 2.*fewer than two nodes"),
        ("a.csv", "0,1\n2,\n", "line 2.*fewer than two nodes"),
        ("a.txt", "# nothing\n", "has no edges"),
        ("a.npz", "no archive", "no archive of plain arrays"),
    ],
)
def test_what_is_no_graph_is_refused(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=said):
        read_graph(tmp_path / name)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.ones((2, 2))}, "edges of .*none"),
        ({"edges": np.ones((3, 2))}, "float64 of shape"),
        ({"edges": np.array([[0, -1]])}, "-1 to 0"),
        ({"edges": np.array([[0, 5]]), "x": np.ones((2, 2))}, "0 to 5"),
        ({"edges": np.array([[0, 1]]), "y": np.zeros(3)}, "labels of shape"),
        ({"edges": np.array([[0, 1]]), "test": np.array([7])}, "test names nodes"),
        (
            {
                "edges": np.array([[0, 1]]), "x_indptr": np.array([0]), "x_indices": np.array([0]),
                "x_data": np.array([1.0]), "x_shape": np.array([3, 3]),
            },
            "no sparse matrix",
        ),
    ],
)  # fmt: skip
def test_archives_that_contradict_themselves_are_refused(arrays: dict, said: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(SpecError, match=said):
        read_graph(tmp_path / "a.npz")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SpecError, match=r"no file nowhere\.csv"):
        read_graph("nowhere.csv")


def test_binary_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(SpecError, match="is no text"):
        read_graph(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("file", "counts"),
    [("cora.npz", (2708, 5278)), ("citeseer.npz", (3327, 4552)), ("karate.csv", (34, 78)), ("lesmis.csv", (77, 254))],
)  # fmt: skip
def test_public_graphs_have_their_nodes_and_edges(
    file: str, counts: tuple[int, int], shared_data: Path
) -> None:
    graph = read_graph(shared_data / "workloads" / "graphs" / file)
    assert (graph.num_nodes, len(graph.edges)) == counts
