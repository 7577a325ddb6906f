"""GraphJob: what `meshwright run` trains and counts on a graph of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import ClassVar

from meshwright.specs.option import option
from meshwright.specs.units import format_bytes
from meshwright.systems.pipeline.gnn_pipe.mechanism import Graph, GraphNetwork
from meshwright.systems.pipeline.gnn_pipe.volume import Volumes, volumes

DEVICES = (2, 4, 8, 16)  # of the table


@dataclass(frozen=True)
class GraphJob:
    """Trains a deep graph network on your graph, layers over processes, and says where that moves less than graph parts."""

    graph: str = option(MISSING, "An .npz with edges, or text with an edge a line.")
    nodes: str = option("", "Of a graph in text: a line a node, its name, its label, its numbers.")
    layers: int = option(16, "Layers of the network.", least=2)
    width: int = option(16, "Numbers a node between layers.", least=1)
    devices: int = option(2, "Processes, each with some of the layers.", least=2)
    chunks: int = option(0, "Pieces of the graph that pass through; 0: four a device.", least=0)
    epochs: int = option(100, "Epochs; 0: nothing is trained, bytes are counted.", least=0)
    residual: bool = option(True, "Layers add what they read.")
    dropout: float = option(0.5, "Of what layers read.", least=0)
    rate: float = option(0.01, "Learning rate of Adam.", above=0)
    runs: ClassVar[str] = "study:train_graph"


def table_of_volumes(graph: Graph, network: GraphNetwork) -> list[Volumes]:
    """Of every number of devices that has a layer each."""
    return [
        volumes(graph, network, num) for num in DEVICES if num <= min(network.num_layers, graph.num_nodes)
    ]


def lines_of_volumes(found: Sequence[Volumes]) -> list[str]:
    """The table for people, and what follows from it."""
    lines = [
        "an epoch moves, forward and backward:",
        "devices   pipeline   parts of the graph   ratio   groups of both   idle",
    ]
    for one in found:
        ratio = one.graph_bytes / one.pipeline_bytes
        hybrid = f"{format_bytes(one.hybrid_bytes)} ({one.num_groups})" if one.num_groups else "-"
        lines.append(
            f"{one.num_devices:7d}   {format_bytes(one.pipeline_bytes):>8}   {format_bytes(one.graph_bytes):>18}   "
            f"{ratio:5.2f}   {hybrid:>14}   {one.idle_share:4.0%}"
        )
    for one in found:
        less = "less" if one.graph_bytes > one.pipeline_bytes else "more"
        lines.append(
            f"on {one.num_devices} devices the pipeline moves {less}: it pays from {one.least_layers} layers on"
            if one.graph_bytes
            else f"on {one.num_devices} devices parts of the graph have no edges between them: they move nothing"
        )
    return lines
