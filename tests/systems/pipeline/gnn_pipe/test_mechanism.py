"""Chunks of a graph, layers of stages, and what forwards and backwards of a chunk read and write."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from meshwright.ir.table import Effect
from meshwright.specs.error import SpecError
from meshwright.systems.pipeline.gnn_pipe.mechanism import (
    EMBEDDING,
    EMBEDDING_GRADIENT,
    ChunkedGraph,
    Chunks,
    Graph,
    GraphNetwork,
    ReadChunks,
    cut_graph,
    simple_edges,
)

NETWORK = GraphNetwork(5, 8, 20, 3)


def test_shapes_and_parameters_by_hand() -> None:
    assert [NETWORK.shape(layer) for layer in (0, 1, 4)] == [(20, 8), (8, 8), (8, 3)]
    assert [NETWORK.num_parameters(layer) for layer in (0, 4)] == [168, 27]
    assert GraphNetwork(1, 8, 20, 3).shape(0) == (20, 3)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_every_layer_is_on_one_stage(num_stages: int) -> None:
    split = [NETWORK.layers(stage, num_stages) for stage in range(num_stages)]
    assert [layer for layers in split for layer in layers] == list(range(5)) and all(
        len(layers) for layers in split
    )
    assert sum(NETWORK.num_embeddings(stage, num_stages) for stage in range(num_stages)) == 4


def test_more_devices_than_layers_are_refused() -> None:
    with pytest.raises(SpecError, match="5 layers on 6 devices"):
        NETWORK.layers(0, 6)


PATH = Graph("path", 5, simple_edges([[0, 1], [1, 2], [2, 3], [3, 4]]))


def test_halos_of_a_path() -> None:
    chunked = ChunkedGraph(PATH, np.array([0, 2, 4, 5]))
    assert [halo.tolist() for halo in chunked.halos] == [[2], [1, 4], [3]]
    assert chunked.neighbours == ((1,), (0, 2), (1,))
    assert (chunked.num_halo_nodes, chunked.num_chunks, chunked.sizes) == (4, 3, (2, 2, 1))
    assert Chunks.of(chunked) == Chunks((2, 2, 1), ((1,), (0, 2), (1,)))


def test_propagation_averages_with_degrees() -> None:
    found = ChunkedGraph(PATH, np.array([0, 5])).propagation.toarray()
    # with its own loop an end has degree 2, an inner node 3
    assert found[0, :3] == pytest.approx([1 / 2, 1 / 6**0.5, 0]) and found[1, 1:3] == pytest.approx(
        [1 / 3, 1 / 3]
    )
    assert np.allclose(found, found.T)


def test_cutting_numbers_nodes_anew_and_loses_nothing() -> None:
    draws = np.random.default_rng(0)
    features, labels = np.arange(20.0).reshape(20, 1) + 1, np.arange(20)
    graph = Graph(
        "drawn", 20, simple_edges(draws.integers(0, 20, (40, 2))), None, labels, {"train": labels[:3]}
    )
    graph = Graph(graph.name, 20, graph.edges, sparse.csr_array(features), labels, graph.split)
    cut = cut_graph(graph, 3).graph
    assert cut.labels is not None and cut.features is not None
    assert np.array_equal(cut.features.toarray()[:, 0], cut.labels + 1)
    assert sorted(map(tuple, np.sort(cut.labels[cut.edges], axis=1).tolist())) == list(
        map(tuple, graph.edges.tolist())
    )
    assert sorted(cut.labels[cut.split["train"]].tolist()) == [0, 1, 2]


def test_neighbours_come_into_one_chunk() -> None:
    ring = np.random.default_rng(1).permutation(60)
    graph = Graph("ring", 60, simple_edges(np.stack([ring, np.roll(ring, 1)], axis=1)))
    # a numbering by chance has about 3/4 of 120 ends outside; a good one two or four nodes at each of the cuts
    assert cut_graph(graph, 4).num_halo_nodes <= 16


@pytest.mark.parametrize("num_chunks", [0, 6])
def test_empty_chunks_are_refused(num_chunks: int) -> None:
    with pytest.raises(SpecError, match="1 to 5 chunks"):
        cut_graph(PATH, num_chunks)


def test_even_chunks_read_all_others() -> None:
    assert Chunks.even(7, 3) == Chunks((2, 3, 2), ((1, 2), (0, 2), (0, 1)))


ORDER = (2, 0, 3, 1)
# a path of chunks 0 - 1 - 2 - 3
READS = ReadChunks(GraphNetwork(4, 8, 20, 3), Chunks((5,) * 4, ((1,), (0, 2), (1, 3), (2,))), ORDER)


def named(patterns: tuple, kind: str) -> dict[int, int]:
    """Chunk and age of the patterns of a kind."""
    return {p.part_offset: p.age for p in patterns if p.kind == kind}


def ages(effect: Effect) -> dict[int, int]:
    """Of the embeddings that a forward reads."""
    return named(effect.reads, EMBEDDING.name)


@pytest.mark.parametrize(("chunk", "read"), [(2, {1: 1, 3: 1}), (0, {1: 1}), (3, {2: 0}), (1, {0: 0, 2: 0})])
def test_a_forward_reads_chunks_before_it_as_they_are(chunk: int, read: dict[int, int]) -> None:
    effect = READS.forward(chunk)
    assert ages(effect) == read and named(effect.writes, EMBEDDING.name) == {chunk: 0}


@pytest.mark.parametrize(("chunk", "added"), [(2, set()), (0, set()), (3, {2}), (1, {0, 2})])
def test_a_backward_adds_to_what_its_forward_read_of_this_epoch(chunk: int, added: set[int]) -> None:
    effect = READS.backward(chunk)
    assert set(named(effect.writes, EMBEDDING_GRADIENT.name)) == added
    is_read = any(ages(READS.forward(other)).get(chunk) == 0 for other in range(4))
    assert set(named(effect.reads, EMBEDDING_GRADIENT.name)) == ({chunk} if is_read else set())
