"""A graph cut into chunks of neighbouring nodes: which chunks a chunk reads, and what of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from meshwright.specs.error import SpecError
from meshwright.systems.pipeline.gnn_pipe.edge_list import Graph, Ints


@dataclass(frozen=True, eq=False)
class ChunkedGraph:
    """A graph whose nodes are numbered chunk by chunk: chunk c has the nodes ``offsets[c]`` to ``offsets[c+1]``."""

    graph: Graph
    offsets: Ints

    @property
    def num_chunks(self) -> int:
        """How many chunks there are."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Nodes in each chunk."""
        return tuple(np.diff(self.offsets).tolist())

    @cached_property
    def propagation(self) -> sparse.csr_array:
        """D^-1/2 (A + 1) D^-1/2 with D the degrees of A + 1, [V, V]: what a layer averages with."""
        adjacency = self.graph.adjacency + sparse.eye_array(self.graph.num_nodes, format="csr")
        scale = sparse.diags_array(adjacency.sum(axis=1) ** -0.5)
        return sparse.csr_array(scale @ adjacency @ scale)

    @cached_property
    def halos(self) -> tuple[Ints, ...]:
        """For every chunk the nodes outside of it that it has edges to, in order."""
        found = []
        for low, high in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            read = np.unique(self.propagation[low:high].indices).astype(np.int64)
            found.append(read[(read < low) | (read >= high)])
        return tuple(found)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For every chunk the other chunks that it has edges to, in order."""
        return tuple(tuple(np.unique(self.chunk_of(halo)).tolist()) for halo in self.halos)

    @property
    def num_halo_nodes(self) -> int:
        """Nodes of all halos together: what graph parallelism moves once a layer."""
        return sum(len(halo) for halo in self.halos)

    def chunk_of(self, nodes: Ints) -> Ints:
        """The chunk of every node."""
        return np.searchsorted(self.offsets, nodes, side="right").astype(np.int64) - 1


@dataclass(frozen=True)
class Chunks:
    """Chunks without a graph, for schedules: nodes in each, and for each the chunks that it reads (None: all others)."""

    sizes: tuple[int, ...]
    neighbours: tuple[tuple[int, ...], ...] = field(default=())

    @staticmethod
    def even(num_nodes: int, num_chunks: int) -> Chunks:
        """As even as can be, each with edges to all others."""
        sizes = tuple(np.diff(even_offsets(num_nodes, num_chunks)).tolist())
        others = tuple(tuple(d for d in range(num_chunks) if d != c) for c in range(num_chunks))
        return Chunks(sizes, others)

    @staticmethod
    def of(chunked: ChunkedGraph) -> Chunks:
        """What a schedule has to know of a graph."""
        return Chunks(chunked.sizes, chunked.neighbours)


def even_offsets(num_nodes: int, num_chunks: int) -> Ints:
    """First node of every chunk, and behind them the number of nodes. Raises SpecError where a chunk would be empty."""
    if not 1 <= num_chunks <= num_nodes:
        raise SpecError(f"{num_chunks} chunks of {num_nodes} nodes", allowed=f"1 to {num_nodes} chunks")
    return np.linspace(0, num_nodes, num_chunks + 1).round().astype(np.int64)


def cut_graph(graph: Graph, num_chunks: int) -> ChunkedGraph:
    """Cut a graph into chunks of equally many nodes.

    Nodes are numbered by reverse Cuthill-McKee first, which puts neighbours near each other: few edges leave a chunk.

    Raises:
        SpecError: fewer nodes than chunks.
    """
    offsets = even_offsets(graph.num_nodes, num_chunks)
    order = np.asarray(reverse_cuthill_mckee(sparse.csr_matrix(graph.adjacency), symmetric_mode=True))
    place = np.empty(graph.num_nodes, dtype=np.int64)
    place[order] = np.arange(graph.num_nodes)
    split: Mapping[str, Ints] = {name: np.sort(place[nodes]) for name, nodes in graph.split.items()}
    numbered = Graph(
        graph.name,
        graph.num_nodes,
        np.sort(place[graph.edges], axis=1),
        None if graph.features is None else graph.features[order],
        None if graph.labels is None else graph.labels[order],
        split,
    )
    return ChunkedGraph(numbered, offsets)
