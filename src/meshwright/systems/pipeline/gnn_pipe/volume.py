"""What an epoch moves between devices: by a pipeline of layers, by parts of the graph, and by groups of both."""

from __future__ import annotations

from typing import NamedTuple

from meshwright.ir.program import Program
from meshwright.ir.table import Kind
from meshwright.ir.timing.matching import moved_codes
from meshwright.ir.value_space import value_space
from meshwright.systems.pipeline.gnn_pipe.mechanism import (
    NUMBER_BYTES,
    ChunkedGraph,
    Chunks,
    Graph,
    GraphNetwork,
    cut_graph,
    gnn_pipe,
)

CHUNKS_A_DEVICE = 4  # the idle share is then at most a fifth


def num_sent_bytes(program: Program) -> float:
    """Bytes that an epoch moves between devices: of what its SENDs send, without latencies or headers."""
    codes = moved_codes(program)[program.kinds == Kind.SEND]
    return float(value_space(program).bytes[codes].sum())


def num_pipeline_bytes(num_nodes: int, width: int, num_devices: int) -> float:
    """The formula of it: all nodes from stage to stage, forward and backward."""
    return 2.0 * (num_devices - 1) * num_nodes * width * NUMBER_BYTES


def num_halo_bytes(chunked: ChunkedGraph, network: GraphNetwork) -> float:
    """Bytes that an epoch of graph parallelism moves with a chunk a device: all halos, both ways, in every layer."""
    return 2.0 * network.num_layers * chunked.num_halo_nodes * network.width * NUMBER_BYTES


def num_hybrid_bytes(chunked: ChunkedGraph, network: GraphNetwork, num_groups: int) -> float:
    """Bytes that an epoch of the paper's hybrid moves: halos within groups, a chunk a device, and all nodes between groups.

    A group of one device has no halos; one group of all devices is graph parallelism.
    """
    between = num_sent_bytes(gnn_pipe(network, Chunks.of(chunked), num_groups))
    return between + num_halo_bytes(chunked, network)


class Volumes(NamedTuple):
    """Bytes of an epoch on so many devices, and the share of it in which a device of the pipeline waits for its first chunk
    or behind its last one. ``hybrid_bytes``: the least of any groups of more than one device, in ``num_groups`` of them.

    ``least_layers``: from so many layers on the pipeline moves less than graph parallelism.
    """

    num_devices: int
    pipeline_bytes: float
    graph_bytes: float
    hybrid_bytes: float
    num_groups: int
    idle_share: float
    least_layers: int


def volumes(graph: Graph, network: GraphNetwork, num_devices: int, num_chunks: int = 0) -> Volumes:
    """Halos are counted in the graph as `cut_graph` cuts it. Raises SpecError where devices have no layers or no nodes."""
    network.layers(0, num_devices)
    chunks = num_chunks or CHUNKS_A_DEVICE * num_devices
    piped = num_pipeline_bytes(graph.num_nodes, network.width, num_devices)
    halos = {size: num_halo_bytes(cut_graph(graph, size), network) for size in divisors(num_devices)}
    hybrid = {
        num_devices // size: bytes_ + num_pipeline_bytes(graph.num_nodes, network.width, num_devices // size)
        for size, bytes_ in halos.items()
        if 1 < size < num_devices
    }
    groups = min(hybrid, key=lambda each: hybrid[each], default=0)
    a_layer = halos[num_devices] / network.num_layers
    return Volumes(
        num_devices, piped, halos[num_devices], hybrid.get(groups, 0.0), groups,
        (num_devices - 1) / (chunks + num_devices - 1), int(piped // a_layer) + 1 if a_layer else 0,
    )  # fmt: skip


def divisors(number: int) -> list[int]:
    """Of a number, from 2 on, itself too."""
    return [each for each in range(2, number + 1) if number % each == 0]
