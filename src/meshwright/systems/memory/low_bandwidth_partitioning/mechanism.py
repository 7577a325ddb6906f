"""Which devices share a copy of weights, gradients and optimizer states, and the training step that follows from it.

Axes from the outside in: nodes, packages of a node, GCDs of a package. A layer's flat tensor is cut by GCD first, then by
package, then by node, so that the part of a GCD in a package is made of the parts of its counterparts elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import (
    Effect,
    Exchange,
    Hop,
    Kind,
    Microbatch,
    ParameterGroup,
    Pattern,
    Size,
    ValueBytes,
    ValueKind,
    Work,
)
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.option import option
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.sharding import EVERYBODY, Sharding

GCDS_OF_PACKAGE, GCDS_OF_NODE = 2, 8  # of an MI250X, and of a Frontier node with four of them
NODE, PACKAGE, GCD = "node", "package", "gcd"
AXES = (NODE, PACKAGE, GCD)
# Bytes of a number: of weights and gradients in bfloat16; of master weight and two moments in float32; in the codes of
# 8 and 4 bits, whose scales are left out here.
WEIGHT_BYTES, STATE_BYTES = 2, 12
BITS_PER_BYTE = 8
LAYER_STATE = ValueKind("layer_state", index="stage", microbatch=False, carried=True)
LAYER_WEIGHT = ValueKind("layer_weight", index="stage", microbatch=False, carried=True)
WHOLE_WEIGHT = ValueKind("whole_weight", index="stage", microbatch=False)
SECOND_WEIGHT = ValueKind("second_weight", index="stage", microbatch=False)
WHOLE_GRADIENT = ValueKind("whole_gradient", index="stage")
NODE_PART = ValueKind("node_part", index="stage")
NODE_SUM = ValueKind("node_sum", index="stage", microbatch=False, accumulates=True)
OWN_SUM = ValueKind("own_sum", index="stage", microbatch=False, accumulates=True)
STEPPED = ValueKind("stepped_weight", index="stage", microbatch=False)
LOSS = ValueKind("summed_loss", index="none", microbatch=False, accumulates=True)
GATHER, SECOND_GATHER, GATHER_STEPPED = "GATHER_WEIGHTS", "GATHER_SECOND", "GATHER_STEPPED"
SCATTER, SCATTER_NODES = "SCATTER_GRADIENTS", "SCATTER_NODES"
FORWARD, BACKWARD, STEP = "LAYER_F", "LAYER_B", "LAYER_STEP"
STREAM = "compute"  # nothing runs beside an exchange, unless it is asked for


@dataclass(frozen=True)
class LowBandwidthPartitioning(Sharding):
    """Weights over the devices of a package, gradients over those of a node, optimizer states over all."""

    values: int = option(
        GCDS_OF_PACKAGE, least=1, help="devices, the innermost of dp, that share a copy of the weights"
    )
    gradients: int = option(GCDS_OF_NODE, least=1, help="those that share a copy of the gradients")
    state: int = EVERYBODY

    @classmethod
    def choices(cls, plan: Plan, cluster: ClusterSpec) -> tuple[LowBandwidthPartitioning, ...]:
        """Weights over a package, or over any part of a node that divides it, and gradients over what a node has of dp."""
        node = gcd(plan.dp * plan.cp, max(1, cluster.levels[0].num_devices // plan.tp))
        return tuple(cls(size, node) for size in range(2, node + 1) if node % size == 0)


def _at(kind: ValueKind) -> Pattern:
    return Pattern(kind.name, index="stage")


_GRADIENT = Pattern("gradient", when="not_last")
EFFECTS = {
    effect.name: effect
    for effect in (
        Effect(Kind.COLLECTIVE, GATHER, (_at(LAYER_WEIGHT),), (_at(WHOLE_WEIGHT),)),
        # forwards keep a second copy, cut over fewer devices, for the gathers of the backwards (ZeRO++)
        Effect(Kind.COLLECTIVE, SECOND_GATHER, (_at(SECOND_WEIGHT),), (_at(WHOLE_WEIGHT),)),
        Effect(
            Kind.COMPUTE,
            FORWARD,
            (Pattern("activation", when="not_first"), _at(WHOLE_WEIGHT)),
            (
                Pattern("activation", offset=1, when="not_last"),
                Pattern("saved"),
                Pattern(LOSS.name, index="none"),
            ),
        ),
        Effect(
            Kind.COMPUTE,
            BACKWARD,
            (Pattern("saved"), _GRADIENT, _at(WHOLE_WEIGHT)),
            (Pattern("gradient", offset=-1, when="not_first"), _at(WHOLE_GRADIENT)),
        ),
        Effect(Kind.COLLECTIVE, SCATTER, (_at(WHOLE_GRADIENT),), (_at(OWN_SUM),)),
        Effect(Kind.COLLECTIVE, SCATTER_NODES, (_at(NODE_SUM),), (_at(OWN_SUM),)),
        Effect(Kind.COMPUTE, STEP, (_at(OWN_SUM), _at(LAYER_STATE)), (_at(STEPPED), _at(LAYER_STATE))),
        Effect(Kind.COLLECTIVE, GATHER_STEPPED, (_at(STEPPED),), (_at(LAYER_WEIGHT),)),
    )
}
_PER = {FORWARD: "path", BACKWARD: "path", STEP: "stage"}
VOCABULARY = Vocabulary.of(
    *(LAYER_STATE, LAYER_WEIGHT, WHOLE_WEIGHT, SECOND_WEIGHT, WHOLE_GRADIENT, NODE_PART, NODE_SUM, OWN_SUM),
    *(STEPPED, LOSS),
    *(Name(effect, _PER.get(name, "")) for name, effect in EFFECTS.items()),
    owner="low_bandwidth_partitioning",
)


@dataclass(frozen=True)
class Partitioning:
    """Axes that a copy of each is cut over, from the outside in. `second`: those of the second copy that backwards gather
    from; empty: there is none. `gradients` stay cut like this over the microbatches, `states` are over everything.

    `weight_bits` and `gradient_bits` are what a number takes on the way; `second_bits` those of the second copy.
    """

    name: str
    weights: tuple[str, ...]
    second: tuple[str, ...] = ()
    gradients: tuple[str, ...] = AXES
    weight_bits: int = 16
    second_bits: int = 16
    gradient_bits: int = 16

    @property
    def has_two_hops(self) -> bool:
        """Are gradients reduced within nodes before they leave them?"""
        return self.gradients != AXES or bool(self.second)


ZERO_3 = Partitioning("ZeRO-3", AXES)
ZERO_PLUS_PLUS = Partitioning("ZeRO++", AXES, second=(PACKAGE, GCD), weight_bits=8, gradient_bits=4)
TOPOLOGY = Partitioning("topology", (GCD,), gradients=(PACKAGE, GCD), weight_bits=8, gradient_bits=4)
PARTITIONINGS = {one.name: one for one in (ZERO_3, ZERO_PLUS_PLUS, TOPOLOGY)}


@dataclass(frozen=True)
class Mesh:
    """Nodes of so many packages of so many GCDs."""

    nodes: int
    packages: int = 4
    gcds: int = 2

    @property
    def num_devices(self) -> int:
        """All GCDs."""
        return self.nodes * self.packages * self.gcds

    def size(self, axes: Sequence[str]) -> int:
        """Devices along some axes."""
        sizes, found = dict(zip(AXES, (self.nodes, self.packages, self.gcds), strict=True)), 1
        for axis in axes:
            found *= sizes[axis]
        return found


def held_bytes(partitioning: Partitioning, num_parameters: float, mesh: Mesh) -> dict[str, float]:
    """Bytes of a GCD between microbatches, by value kind."""
    weights, gradients = mesh.size(partitioning.weights), mesh.size(partitioning.gradients)
    found = {
        LAYER_WEIGHT.name: WEIGHT_BYTES * num_parameters / weights,
        (OWN_SUM if partitioning.gradients == AXES else NODE_SUM).name: WEIGHT_BYTES
        * num_parameters
        / gradients,
        LAYER_STATE.name: STATE_BYTES * num_parameters / mesh.num_devices,
    }
    if partitioning.second:
        found[SECOND_WEIGHT.name] = WEIGHT_BYTES * num_parameters / mesh.size(partitioning.second)
    return found


@dataclass(frozen=True)
class StepSize:
    """What a step works on: parameters and work (forward, backward) of a layer, tokens of a microbatch."""

    layer_parameters: tuple[float, ...]
    num_microbatches: int = 1
    tokens: int = 1
    forward: Work = Work(FORWARD)
    backward: Work = Work(BACKWARD)


def training_step(
    partitioning: Partitioning, mesh: Mesh, size: StepSize, is_overlapped: bool = False
) -> Program:
    """One step of data parallelism over the whole mesh: one list, the same for all GCDs.

    `is_overlapped`: gathers and reductions have streams of their own, and weights are gathered one layer ahead.
    """
    return _Builder(partitioning, mesh, size, is_overlapped).build()


class _Builder:
    """Writes the rows of one step."""

    def __init__(self, partitioning: Partitioning, mesh: Mesh, size: StepSize, is_overlapped: bool) -> None:
        self.partitioning, self.mesh, self.size = partitioning, mesh, size
        self.streams = ("gather", "reduce") if is_overlapped else (STREAM, STREAM)
        num_layers, num = len(size.layer_parameters), size.num_microbatches
        axes = [Axis(name, mesh.size((name,)), False) for name in AXES]
        held = held_bytes(partitioning, 1.0, mesh)
        whole = ValueBytes(WHOLE_WEIGHT.name, self._bytes(WEIGHT_BYTES))
        rings = (WHOLE_WEIGHT._replace(ring=2),) if is_overlapped else ()
        self.sizes: dict[str, Size] = {}
        self.builder = ProgramBuilder(
            (Axis("pp", 1), *axes),
            microbatches=(Microbatch(size.tokens, 1.0 / num),) * num,
            paths=(tuple(Hop(layer, 0) for layer in range(num_layers)),),
            groups=tuple(ParameterGroup(f"layer {layer}", (layer,)) for layer in range(num_layers)),
            vocabulary=VOCABULARY,
            value_kinds=rings,
            value_bytes=(whole, *(ValueBytes(kind, self._bytes(each)) for kind, each in held.items())),
        )

    def build(self) -> Program:
        """All microbatches, then the steps."""
        layers = range(len(self.size.layer_parameters))
        for microbatch in range(self.size.num_microbatches):
            for layer in layers:
                self._gather(layer, microbatch, is_backward=False)
                self._compute(FORWARD, layer, microbatch)
            for layer in reversed(layers):
                self._gather(layer, microbatch, is_backward=True)
                self._compute(BACKWARD, layer, microbatch)
                self._reduce(layer, microbatch)
        for layer in layers:
            self._step(layer)
        program = self.builder.build()
        return program.with_tables(sizes=tuple(self.sizes.values()))

    def _bytes(self, each: float) -> tuple[float, ...]:
        return tuple(each * count for count in self.size.layer_parameters)

    def _compute(self, name: str, layer: int, microbatch: int) -> None:
        effect = EFFECTS[name]
        if name == FORWARD and self.partitioning.second:
            effect = effect._replace(writes=(*effect.writes, _at(SECOND_WEIGHT)))
        work = self.size.forward if name == FORWARD else self.size.backward
        self.builder.add(0, effect, stage=layer, microbatch=microbatch, work=work)

    def _exchange(
        self, effect: Effect, layer: int, axes: tuple[str, ...], algorithm: str, bits: float, share: float = 1.0,
        stream: str = STREAM, microbatch: int = 0,
    ) -> None:  # fmt: skip
        """An exchange over `axes` of a `share` of the layer's numbers, so many bits each."""
        num_bytes = bits / BITS_PER_BYTE * share * self.size.layer_parameters[layer]
        name = f"{algorithm}_{num_bytes:.17g}"
        self.sizes[name] = Size(name, num_bytes, num_bytes)
        exchange = Exchange(axes, algorithm=algorithm, size=name)
        self.builder.add(0, effect, stage=layer, microbatch=microbatch, stream=stream, exchange=exchange)

    def _gather(self, layer: int, microbatch: int, is_backward: bool) -> None:
        one = self.partitioning
        effect, axes, bits = EFFECTS[GATHER], one.weights, one.weight_bits
        if is_backward and one.second:
            effect, axes, bits = EFFECTS[SECOND_GATHER], one.second, one.second_bits
        self._exchange(effect, layer, axes, "all_gather", bits, stream=self.streams[0], microbatch=microbatch)

    def _reduce(self, layer: int, microbatch: int) -> None:
        """Within the node and, where gradients are kept over everything, on between nodes."""
        one, stream = self.partitioning, self.streams[1]
        axes: tuple[str, ...] = AXES
        kept = OWN_SUM
        if one.has_two_hops:
            axes, kept = (PACKAGE, GCD), NODE_SUM if one.gradients != AXES else NODE_PART
        effect = EFFECTS[SCATTER]._replace(writes=(_at(kept),))
        self._exchange(
            effect, layer, axes, "reduce_scatter", one.gradient_bits, stream=stream, microbatch=microbatch
        )
        if kept is NODE_PART:
            self._between_nodes(layer, NODE_PART, stream, microbatch)

    def _between_nodes(self, layer: int, kept: ValueKind, stream: str, microbatch: int = 0) -> None:
        effect = EFFECTS[SCATTER_NODES]._replace(reads=(_at(kept),))
        share = 1.0 / self.mesh.size((PACKAGE, GCD))
        bits = self.partitioning.gradient_bits
        self._exchange(effect, layer, (NODE,), "reduce_scatter", bits, share, stream, microbatch)

    def _step(self, layer: int) -> None:
        """Gradients reach the states, and weights go back to where the next step gathers them."""
        one = self.partitioning
        if one.gradients != AXES:
            self._between_nodes(layer, NODE_SUM, self.streams[1])
        outside = tuple(axis for axis in AXES if axis not in one.weights)
        effect = EFFECTS[STEP]
        if not outside:  # what was stepped is the part that is gathered
            effect = effect._replace(writes=(_at(LAYER_WEIGHT), _at(LAYER_STATE)))
        self.builder.add(0, effect, stage=layer, work=Work(STEP))
        share = 1.0 / self.mesh.size(one.weights)
        if outside:
            self._exchange(
                EFFECTS[GATHER_STEPPED], layer, outside, "all_gather", one.weight_bits, share, self.streams[0]
            )
