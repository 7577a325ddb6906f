"""What a user runs on a graph of their own: from text with an edge and a node a line to bytes, and to a trained network."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
from meshwright.specs.error import PlanError, SpecError
from meshwright.systems.pipeline.gnn_pipe.graph_file import read_graph
from meshwright.systems.pipeline.gnn_pipe.job import lines_of_volumes, table_of_volumes
from meshwright.systems.pipeline.gnn_pipe.mechanism import Graph, GraphNetwork, balanced_cuts, simple_edges
from meshwright.systems.pipeline.gnn_pipe.volume import volumes

NUM_NODES = 12


@pytest.fixture
def path_of_nodes(tmp_path: Path) -> Path:
    """Nodes in a row, the left ones of one kind, half of them labelled."""
    edges = [f"v{k},v{k + 1}" for k in range(NUM_NODES - 1)]
    (tmp_path / "edges.csv").write_text("from,to\n" + "\n".join(edges))
    kinds = ["left" if k < NUM_NODES // 2 else "right" for k in range(NUM_NODES)]
    rows = [f"v{k},{kind if k % 2 else ''},{float(kind == 'left')},{k}" for k, kind in enumerate(kinds)]
    (tmp_path / "nodes.csv").write_text("node,kind,a,b\n" + "\n".join(rows))
    return tmp_path


def test_nodes_of_text_have_their_labels_and_numbers(path_of_nodes: Path) -> None:
    graph = read_graph(path_of_nodes / "edges.csv", path_of_nodes / "nodes.csv")
    assert graph.features is not None and graph.labels is not None
    names = sorted(f"v{k}" for k in range(NUM_NODES))
    assert graph.features.toarray()[names.index("v10")].tolist() == [0.0, 10.0]
    assert [int(graph.labels[names.index(name)]) for name in ("v1", "v11", "v2")] == [0, 1, -1]
    assert len(graph.edges) == NUM_NODES - 1


def test_nodes_that_are_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("2 10\n1 2\n")
    (tmp_path / "nodes.txt").write_text("10 a 0.5\n2 b 1\n1 a 2\n30 b 3\n")
    graph = read_graph(tmp_path / "edges.txt", tmp_path / "nodes.txt")
    assert graph.features is not None and graph.features.toarray()[:, 0].tolist() == [2.0, 1.0, 0.5, 3.0]
    assert graph.edges.tolist() == [[0, 1], [1, 2]] and graph.num_nodes == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v0,left,1", "says nothing of 11 nodes"),
        ("v0,left,1\nv1,left,1,2", "line 2: node 'v1' with 2 numbers"),
        ("v0,left,1\nv0,left,2", "node 'v0'"),
        ("v0,left,1\nv1,left,many", "words for numbers"),
        ("v0,left", "with 0 numbers"),
        ("", "names no nodes"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(path_of_nodes: Path, text: str, said: str) -> None:
    (path_of_nodes / "nodes.csv").write_text(text)
    with pytest.raises(SpecError, match=said):
        read_graph(path_of_nodes / "edges.csv", path_of_nodes / "nodes.csv")


def row_of_nodes(num_nodes: int) -> Graph:
    return Graph("row", num_nodes, simple_edges([(k, k + 1) for k in range(num_nodes - 1)]))


def test_bytes_of_a_row_of_nodes_are_counted_by_hand() -> None:
    """Between two halves one edge: each half reads one node of the other, in each of six layers, both ways."""
    found = volumes(row_of_nodes(12), GraphNetwork(6, 5, 1, 1), 2)
    assert found.graph_bytes == 2 * 6 * 2 * 5 * 4 and found.pipeline_bytes == 2 * 12 * 5 * 4
    assert found.least_layers == 7 and found.idle_share == 1 / 9 and found.num_groups == 0
    four = volumes(row_of_nodes(12), GraphNetwork(6, 5, 1, 1), 4)
    # two groups of two: one border of groups, and the halves' halos
    assert four.hybrid_bytes == found.pipeline_bytes + found.graph_bytes and four.num_groups == 2


def test_it_pays_from_as_many_layers_on_as_it_says() -> None:
    graph = row_of_nodes(40)
    least = volumes(graph, GraphNetwork(4, 3, 1, 1), 2).least_layers
    for layers in (least - 1, least):
        one = volumes(graph, GraphNetwork(layers, 3, 1, 1), 2)
        assert (one.graph_bytes > one.pipeline_bytes) == (layers == least)


def test_a_graph_without_edges_between_its_parts_has_no_such_number() -> None:
    graph = Graph("pairs", 4, simple_edges([(0, 1), (2, 3)]))
    found = table_of_volumes(graph, GraphNetwork(2, 3, 1, 1))
    assert [one.least_layers for one in found] == [0]
    assert "they move nothing" in lines_of_volumes(found)[-1]


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_cuts_make_the_costliest_stage_as_cheap_as_any_do(num_stages: int) -> None:
    costs = [9.0, 1.0, 2.0, 2.0, 3.0, 1.0, 4.0]

    def most(cuts: tuple[int, ...]) -> float:
        return max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *cuts, len(costs))))

    every = itertools.combinations(range(1, len(costs)), num_stages - 1)
    assert most(balanced_cuts(costs, num_stages)) == min(map(most, every))
    with pytest.raises(SpecError, match="7 layers on 8 devices"):
        balanced_cuts(costs, 8)


def test_a_graph_without_features_is_counted_and_not_trained(path_of_nodes: Path) -> None:
    pytest.importorskip("torch")
    report = mw.run_job(f'gnn_pipe(graph="{path_of_nodes / "edges.csv"}", layers=4)')
    assert report.data["num_nodes"] == NUM_NODES and "training" not in report.data
    assert [one["num_devices"] for one in report.data["volumes"]] == [2, 4]
    assert "there are no features" in report.lines[-1]
    with pytest.raises(PlanError, match="is given layer = 3"):
        mw.run_job('gnn_pipe(graph="edges.csv", layer=3)')
    with pytest.raises(PlanError, match="is not given graph"):
        mw.run_job("gnn_pipe")


@pytest.mark.slow
def test_a_users_graph_is_trained_by_one_command(tmp_path: Path) -> None:
    """A ring of four arcs, told by noisy numbers, sixteen layers on two processes: learned as on the whole graph."""
    pytest.importorskip("torch")
    draws, num = np.random.default_rng(0), 240
    edges = [f"{k} {(k + d) % num}" for k in range(num) for d in (1, 2)]
    (tmp_path / "edges.txt").write_text("\n".join(edges))
    arcs = np.arange(num) * 4 // num
    numbers = draws.normal(size=(num, 4)) + 2 * np.eye(4)[arcs]
    rows = [f"{k} c{arc} {' '.join(map(str, numbers[k]))}" for k, arc in enumerate(arcs)]
    (tmp_path / "nodes.txt").write_text("\n".join(rows))
    options = f'graph="{tmp_path / "edges.txt"}", nodes="{tmp_path / "nodes.txt"}", epochs=60, dropout=0.0'
    found = mw.run_job(f"gnn_pipe({options})", seed=1).data["training"]
    assert found["received_bytes"] == 2 * num * 16 * 4 and sum(found["layers_of_stages"]) == 16
    assert found["accuracy"] > 0.8 and abs(found["accuracy"] - found["whole_accuracy"]) < 0.1
