"""Graphs from text and archives: the same edges, what contradicts itself refused, chunks written and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshwright.specs.error import SpecError
from meshwright.systems.pipeline.gnn_pipe.graph_file import read_graph
from meshwright.systems.pipeline.gnn_pipe.mechanism import simple_edges

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
            "no matrix of numbers",
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
