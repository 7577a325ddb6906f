"""Chunks of a layer's tokens on three resources: closed forms of their time, how many chunks are best, where gradients go.

One chunk of an expert layer is sent to the node of its experts (inter-node), gathered by the devices that share these
(intra-node), computed, reduced and scattered (intra-node), and sent back (inter-node). The three resources work beside each
other, so r chunks take what the busiest needs, and what nothing hides of the first and the last chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.specs.error import PlanError

MOST_CHUNKS = 16  # tried one by one; the paper rounds what a solver finds of a real number


class LinearCost(NamedTuple):
    """Seconds of a kernel or message of `units` bytes or operations: `startup_s` + `s_per_unit` x units."""

    startup_s: float
    s_per_unit: float
    units: float

    def seconds(self, chunks: int = 1) -> float:
        """Of one of so many equal chunks."""
        return self.startup_s + self.s_per_unit * self.units / chunks

    def scaled(self, factor: float) -> LinearCost:
        """So many kernels of this kind, one behind the other: a backward's experts are two of a forward's."""
        return LinearCost(factor * self.startup_s, factor * self.s_per_unit, self.units)


class ChunkSeconds(NamedTuple):
    """Seconds of one chunk's parts."""

    all_to_all: float
    all_gather: float
    expert: float
    reduce_scatter: float

    @property
    def within_node(self) -> float:
        """What a chunk holds the links inside a node."""
        return self.all_gather + self.reduce_scatter


class ExpertLayer(NamedTuple):
    """What an expert layer's parts cost in one pass; tokens go there and come back by one all-to-all each."""

    all_to_all: LinearCost
    all_gather: LinearCost
    expert: LinearCost
    reduce_scatter: LinearCost

    def backward(self) -> ExpertLayer:
        """The same exchanges in the other order, and experts that compute two gradients."""
        return self._replace(expert=self.expert.scaled(2.0))

    def chunk(self, chunks: int) -> ChunkSeconds:
        """One of so many chunks."""
        return ChunkSeconds(*(cost.seconds(chunks) for cost in self))


def case_seconds(
    chunk: ChunkSeconds, chunks: int, gradients_s: float = 0.0
) -> tuple[float, float, float, float]:
    """The paper's four cases: gradients and all-to-alls, experts, all-to-alls, or exchanges inside nodes bind."""
    sent, edge = 2 * chunk.all_to_all, chunk.within_node
    return (
        chunks * sent + gradients_s,
        sent + edge + chunks * chunk.expert,
        chunks * sent + edge,
        sent + chunks * edge,
    )


def binding_case(chunk: ChunkSeconds, chunks: int, gradients_s: float = 0.0) -> int:
    """Which of the four it is, 1 to 4, by the paper's questions."""
    computed, between = chunks * chunk.expert, 2 * (chunks - 1) * chunk.all_to_all
    within = (chunks - 1) * chunk.within_node
    binding = 2 if computed >= max(between, within) else 3 if between >= within else 4
    times = case_seconds(chunk, chunks, gradients_s)
    return 1 if gradients_s > 0 and times[0] > times[binding - 1] else binding


def layer_seconds(layer: ExpertLayer, chunks: int, gradients_s: float = 0.0) -> float:
    """Seconds of one pass in so many chunks, while other gradients are reduced between nodes. Raises PlanError."""
    if chunks < 1 or gradients_s < 0:
        raise PlanError(
            f"{chunks} chunks beside {gradients_s} s of gradients", allowed="1 chunk or more, seconds from 0"
        )
    chunk = layer.chunk(chunks)
    return case_seconds(chunk, chunks, gradients_s)[binding_case(chunk, chunks, gradients_s) - 1]


def best_chunks(layer: ExpertLayer, gradients_s: float = 0.0, most: int = MOST_CHUNKS) -> int:
    """How many chunks are the fastest, the fewest of those that are as fast."""
    return min(range(1, most + 1), key=lambda chunks: layer_seconds(layer, chunks, gradients_s))


def hole_seconds(layer: ExpertLayer, chunks: int) -> float:
    """How long links between nodes have nothing to send in a pass: what is reduced there meanwhile costs nothing."""
    return layer_seconds(layer, chunks) - 2 * chunks * layer.all_to_all.seconds(chunks)


def one_stream_seconds(layer: ExpertLayer, chunks: int) -> float:
    """Where all exchanges follow each other on one stream beside experts, as in Tutel and PipeMoE: of r chunks either the
    exchanges bind, or experts behind the first chunk's and before the last one's exchanges."""
    chunk = layer.chunk(chunks)
    sent = 2 * chunk.all_to_all + chunk.within_node
    return max(chunks * sent + (chunk.expert if chunks == 1 else 0.0), sent + chunks * chunk.expert)


class GradientSlots(NamedTuple):
    """Seconds of gradients that are reduced beside each layer's backward: in its dense part, and in its experts'."""

    dense: tuple[float, ...]
    experts: tuple[float, ...]
    rest_s: float


def partitioned(
    layers: Sequence[ExpertLayer], dense_s: Sequence[float], gradients_s: Sequence[float]
) -> GradientSlots:
    """Cut gradients so that reductions fill what the backward leaves of the links between nodes.

    Layers stand in the order of the backward. Gradients of a layer are there when its dense part has run, so they go into
    slots of the layers behind it: first where they cost nothing, the oldest first. What nothing hides is put beside the
    experts of the last layer, where, beyond its hole, a second costs a second in every case: the sum of all layers is the
    least there is, which the paper looks for by differential evolution.

    Args:
        dense_s: seconds of each layer's dense part, in which links between nodes are idle.
        gradients_s: seconds of reducing each layer's gradients.

    Raises:
        PlanError: lists of different lengths.
    """
    if not len(layers) == len(dense_s) == len(gradients_s) > 0:
        raise PlanError(
            f"{len(layers)} layers, {len(dense_s)} dense parts, {len(gradients_s)} gradients",
            allowed="as many of each, and one at least",
        )
    owed, dense, experts = 0.0, list[float](), list[float]()
    for layer, idle_s, own_s in zip(layers, dense_s, gradients_s, strict=True):
        chunks = best_chunks(layer)
        experts.append(min(owed, hole_seconds(layer, chunks)))  # experts go first in a backward
        owed -= experts[-1]
        dense.append(min(owed, idle_s))
        owed += own_s - dense[-1]
    return GradientSlots(tuple(dense), tuple(experts), owed)
