"""A graph cut into chunks of neighbouring nodes, and an epoch of a graph network over them as a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from meshwright.ir.core_vocabulary import STEP, B, F
from meshwright.ir.program import Program
from meshwright.ir.table import Duty, Effect, Microbatch, ParameterGroup, Pattern, ValueBytes, ValueKind, Work
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.lowering.order import program_of_orders, with_effects, with_works
from meshwright.lowering.sharding.reduction import OptimizerStep
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from meshwright.schedules.order import Compute
from meshwright.specs.error import SpecError

Ints = NDArray[np.int64]
UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph. ``edges`` [E, 2]: each once, the smaller node first, no loops.

    ``features`` [V, D] and ``labels`` [V] (-1: unknown) are there where the file has them; ``split``: nodes of ``train``,
    ``val`` and ``test``.
    """

    name: str
    num_nodes: int
    edges: Ints
    features: sparse.csr_array | None = None
    labels: Ints | None = None
    split: Mapping[str, Ints] = field(default_factory=dict)

    @property
    def adjacency(self) -> sparse.csr_array:
        """Both directions of every edge as ones, [V, V]."""
        row, column = np.concatenate([self.edges, self.edges[:, ::-1]]).T
        ones = np.ones(len(row), dtype=np.float64)
        return sparse.csr_array((ones, (row, column)), shape=(self.num_nodes, self.num_nodes))

    @property
    def num_classes(self) -> int:
        """One more than the largest label; 0 without labels."""
        return 0 if self.labels is None else int(self.labels.max(initial=UNLABELLED)) + 1


def simple_edges(pairs: Any) -> Ints:
    """Each edge once, the smaller node first, without loops, [E, 2]."""
    ordered = np.sort(np.asarray(pairs, dtype=np.int64).reshape(-1, 2), axis=1)
    return np.unique(ordered[ordered[:, 0] != ordered[:, 1]], axis=0)


@dataclass(frozen=True)
class GraphNetwork:
    """Layers of a graph network: ``num_features`` numbers a node come in, ``num_classes`` go out, ``width`` are between.

    ``has_residual``: layers between the first and the last add what they read, without which deep networks do not learn.
    ``cuts``: first layers of the stages behind the first; empty: as many layers on each as can be.
    """

    num_layers: int
    width: int
    num_features: int
    num_classes: int
    has_residual: bool = False
    cuts: tuple[int, ...] = ()

    @property
    def branch_share(self) -> float:
        """What a layer that adds its input makes counts so much, as all of them together would grow with the depth."""
        return 1.0 / self.num_layers

    def adds_input(self, layer: int) -> bool:
        """Does a layer add what it reads to what it makes?"""
        return self.has_residual and 0 < layer < self.num_layers - 1

    def shape(self, layer: int) -> tuple[int, int]:
        """Numbers a node that a layer takes and makes."""
        last = layer == self.num_layers - 1
        return self.num_features if layer == 0 else self.width, self.num_classes if last else self.width

    def layers(self, stage: int, num_stages: int) -> range:
        """Layers of a stage, as even as can be. Raises SpecError where a stage would have none."""
        if not 1 <= num_stages <= self.num_layers:
            raise SpecError(
                f"{self.num_layers} layers on {num_stages} devices", allowed="a layer or more on each"
            )
        if len(self.cuts) == num_stages - 1:
            ends = (0, *self.cuts, self.num_layers)
            return range(ends[stage], ends[stage + 1])
        first, behind = (self.num_layers * s // num_stages for s in (stage, stage + 1))
        return range(first, behind)

    def num_embeddings(self, stage: int, num_stages: int) -> int:
        """Layers of a stage that read embeddings: all but the one that reads features."""
        return sum(layer > 0 for layer in self.layers(stage, num_stages))

    def num_parameters(self, layer: int) -> int:
        """Weights and biases of a layer."""
        taken, made = self.shape(layer)
        return taken * made + made


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
        simple_edges(place[graph.edges]),
        None if graph.features is None else graph.features[order],
        None if graph.labels is None else graph.labels[order],
        split,
    )
    return ChunkedGraph(numbered, offsets)


def layer_costs(graph: Graph, network: GraphNetwork) -> list[float]:
    """Multiplications of every layer's forward: features (or embeddings) by weights, and what is made along the edges."""
    entries = 0 if graph.features is None else int(graph.features.nnz)
    found = []
    for layer in range(network.num_layers):
        taken, made = network.shape(layer)
        inputs = entries if layer == 0 else graph.num_nodes * taken
        found.append(float(made * (inputs + 2 * len(graph.edges) + graph.num_nodes)))
    return found


def balanced_cuts(costs: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """First layers of the stages behind the first, such that the costliest stage costs least; each has a layer.

    Raises SpecError where there are fewer layers than stages.
    """
    count = len(costs)
    if not 1 <= num_stages <= count:
        raise SpecError(f"{count} layers on {num_stages} devices", allowed="a layer or more on each")
    sums = np.concatenate([[0.0], np.cumsum(costs)])
    cuts: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {
        (1, behind): (float(sums[behind]), ()) for behind in range(1, count + 1)
    }
    for stages in range(2, num_stages + 1):
        for behind in range(stages, count + 1):
            options = (
                (
                    max(cuts[stages - 1, cut][0], float(sums[behind] - sums[cut])),
                    (*cuts[stages - 1, cut][1], cut),
                )
                for cut in range(stages - 1, behind)
            )
            cuts[stages, behind] = min(options)
    return cuts[num_stages, count][1]


# Inputs of the layers of a stage for the nodes of one chunk (its part). One that feeds the first layer of all is features.
EMBEDDING = ValueKind("embedding", index="stage", microbatch=False)
EMBEDDING_GRADIENT = ValueKind("embedding_gradient", index="stage", microbatch=False, accumulates=True)
# What a device saw in an epoch, for the controller: its loss and the bytes that it received.
OBSERVED = ValueKind("observed", index="none", microbatch=False, accumulates=True)
_SEEN = Pattern("observed", index="none")
GRAPH_F = F._replace(name="GRAPH_F", writes=(*F.writes, _SEEN))
GRAPH_B = B._replace(name="GRAPH_B", writes=(*B.writes, _SEEN))
GRAPH_STEP = STEP._replace(name="GRAPH_STEP")
VOCABULARY = Vocabulary.of(
    *(EMBEDDING, EMBEDDING_GRADIENT, OBSERVED),
    *(Name(GRAPH_F, "path"), Name(GRAPH_B, "path"), Name(GRAPH_STEP, "stage")),
    owner="gnn_pipe",
)


@dataclass(frozen=True)
class ReadChunks:
    """Let forwards and backwards of a chunk touch the embeddings of the chunks that it has edges to.

    A forward writes its own, reads those of chunks before it in ``order`` as they are and the others at age 1; a backward
    adds to the gradients of the former, and reads its own.
    """

    network: GraphNetwork
    chunks: Chunks
    order: tuple[int, ...]
    name: str = "read_chunks"

    def __call__(self, program: Program) -> Program:
        """The program of F, B and STEP with GRAPH_F, GRAPH_B and GRAPH_STEP in their places."""
        c, names = program.columns, [effect.name for effect in program.tables.effects]
        chosen: dict[tuple[str, int, int], Effect] = {}
        num_stages = program.tables.num_stages
        for stage in range(num_stages):
            has_embeddings = self.network.num_embeddings(stage, num_stages) > 0
            for chunk in self.order:
                chosen["F", stage, chunk] = self.forward(chunk) if has_embeddings else GRAPH_F
                chosen["B", stage, chunk] = self.backward(chunk) if has_embeddings else GRAPH_B
            chosen["STEP", stage, 0] = GRAPH_STEP
        effects = tuple(dict.fromkeys(chosen.values()))
        program, places = with_effects(program.with_vocabulary(VOCABULARY), *effects)
        place = dict(zip(effects, places, strict=True))
        column = c.effect.copy()
        for row in range(program.num_rows):
            key = (names[c.effect[row]], int(c.stage[row]), int(c.microbatch[row]))
            if key in chosen:
                column[row] = place[chosen[key]]
        duties = tuple(replace_name(duty) for duty in program.tables.duties)
        return program.with_tables(duties=duties).with_columns(effect=column)

    def forward(self, chunk: int) -> Effect:
        """Reads of other chunks in the order of their numbers, behind the input and the parameters."""
        reads = tuple(
            embedding(other, age=int(not self._is_earlier(other, chunk))) for other in self.read(chunk)
        )
        return GRAPH_F._replace(reads=(*GRAPH_F.reads, *reads), writes=(*GRAPH_F.writes, embedding(chunk)))

    def backward(self, chunk: int) -> Effect:
        """Adds to the gradients of the chunks that its forward read as they are."""
        gradient = EMBEDDING_GRADIENT.name
        own = (
            (embedding(chunk, gradient),)
            if any(self._is_earlier(chunk, c) for c in self.readers(chunk))
            else ()
        )
        added = tuple(embedding(c, gradient) for c in self.read(chunk) if self._is_earlier(c, chunk))
        return GRAPH_B._replace(reads=(*GRAPH_B.reads, *own), writes=(*GRAPH_B.writes, *added))

    def read(self, chunk: int) -> tuple[int, ...]:
        """The chunks that a chunk reads."""
        return self.chunks.neighbours[chunk]

    def readers(self, chunk: int) -> list[int]:
        """The chunks that read a chunk."""
        return [other for other, read in enumerate(self.chunks.neighbours) if chunk in read]

    def _is_earlier(self, chunk: int, other: int) -> bool:
        return self.order.index(chunk) < self.order.index(other)


def replace_name(duty: Duty) -> Duty:
    """The duty of the name that stands for F, B or STEP here."""
    return duty._replace(name=f"GRAPH_{duty.name}")


def embedding(chunk: int, kind: str = EMBEDDING.name, age: int = 0) -> Pattern:
    """Of a chunk, on the row's own stage."""
    return Pattern(kind, index="stage", part_offset=chunk, age=age)


NUMBER_BYTES = 4  # float32


@dataclass(frozen=True)
class ShuffledChunks:
    """The controller: which program an epoch runs. The order of the chunks is a function of seed and epoch only."""

    network: GraphNetwork
    chunks: Chunks
    num_devices: int
    seed: int = 0
    weights: tuple[float, ...] = ()

    def order(self, step: int) -> list[int]:
        """Of the chunks in epoch `step`: drawn from seed and epoch."""
        drawn = np.random.default_rng((self.seed, step)).permutation(len(self.chunks.sizes))
        return [int(chunk) for chunk in drawn]

    def next(self, step: int, observations: Mapping[str, float]) -> Program:
        """The program of epoch `step`; what was observed does not matter here."""
        return gnn_pipe(
            self.network, self.chunks, self.num_devices, order=self.order(step), weights=self.weights
        )


def gnn_pipe(
    network: GraphNetwork,
    chunks: Chunks,
    num_devices: int,
    *,
    order: Sequence[int] = (),
    weights: Sequence[float] = (),
) -> Program:
    """One epoch as a program: forwards in `order`, backwards in reverse, a step on every device.

    Args:
        order: of the chunks; by number without.
        weights: of the chunks in the loss, such as the share of labelled nodes; by nodes without.

    Raises:
        SpecError: `order` is no order of the chunks, or a device would have no layer.
    """
    num_chunks = len(chunks.sizes)
    order = list(order) or list(range(num_chunks))
    if sorted(order) != list(range(num_chunks)):
        raise SpecError(f"the order {order}", allowed=f"each of the chunks 0 to {num_chunks - 1} once")
    shares = weights or [size / sum(chunks.sizes) for size in chunks.sizes]
    groups = [
        ParameterGroup(f"layer {layer}", (stage,), NUMBER_BYTES * network.num_parameters(layer))
        for stage in range(num_devices)
        for layer in network.layers(stage, num_devices)
    ]
    orders = [
        [Compute(name, stage, order[place]) for name, stage, place in row]
        for row in registered()["gpipe"].orders(num_devices, num_chunks)
    ]
    microbatches = [Microbatch(size, share) for size, share in zip(chunks.sizes, shares, strict=True)]
    program = program_of_orders(orders, microbatches=microbatches, groups=groups)
    program = OptimizerStep()(Transfers()(program))
    program = ReadChunks(network, chunks, tuple(order))(program)
    works = {
        (name, stage): Work(name, share=1 / num_chunks)
        for name in ("GRAPH_F", "GRAPH_B")
        for stage in range(num_devices)
    }
    return with_works(program, works).with_tables(value_bytes=value_bytes(network, chunks, num_devices))


def value_bytes(network: GraphNetwork, chunks: Chunks, num_stages: int) -> tuple[ValueBytes, ...]:
    """Sizes of what an epoch holds; embeddings as large as those of the largest chunk."""
    boundary = NUMBER_BYTES * network.width
    held = [network.num_embeddings(stage, num_stages) for stage in range(num_stages)]
    largest = tuple(float(boundary * count * max(chunks.sizes)) for count in held)
    layers = [layer for stage in range(num_stages) for layer in network.layers(stage, num_stages)]
    parameters = tuple(float(NUMBER_BYTES * network.num_parameters(layer)) for layer in layers)
    return (
        ValueBytes("activation", (boundary,), per_token=True),
        ValueBytes("gradient", (boundary,), per_token=True),
        *(ValueBytes(kind.name, largest) for kind in (EMBEDDING, EMBEDDING_GRADIENT)),
        *(ValueBytes(kind, parameters) for kind in ("parameter", "weight_gradient")),
        ValueBytes("optimizer_state", tuple(2 * size for size in parameters)),  # two moments
    )
