"""Why devices share sequences as they do: what every way that could be taken sends of a block, what of it passes beside
attention, and how often results are merged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshwright.planner.space.degrees import ContextKinds, way_of
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.plan.plan import Plan
from meshwright.specs.sequence.context_parallel import ASKED_FOR, CONTEXTS, ContextParallel
from meshwright.specs.units import format_bytes
from meshwright.stage.exchange.inner import inner_exchanges
from meshwright.stage.mesh import context_axes, num_members
from meshwright.stage.work import microbatch_shape

ONE_BLOCK = StageLayers(0, 1, has_embedding=False, has_head=False)


class SentWay(NamedTuple):
    """What a device sends of one block and microbatch, there and back, in this way."""

    way: ContextParallel
    sent_bytes: float
    beside_bytes: float

    @property
    def num_merges(self) -> int:
        """Of what is attended, in a forward."""
        return self.way.ring_degree - 1 if self.way.travels else 0

    def __str__(self) -> str:
        inside = f" with ulysses {self.way.ulysses}" if self.way.ulysses > 1 else ""
        laid_out = f" {self.way.layout}" if self.way.layout else ""
        beside = f", {format_bytes(self.beside_bytes)} of it beside attention" if self.beside_bytes else ""
        merges = f", {self.num_merges} merges" if self.num_merges else ""
        return f"{self.way.kind}{laid_out}{inside} {format_bytes(self.sent_bytes)}{beside}{merges}"


def sent_ways(plan: Plan, cluster: ClusterSpec) -> Iterator[SentWay]:
    """The plan's own way first, then the others that a search tries of its degrees."""
    kinds = [kind for kind in CONTEXTS if kind not in ASKED_FOR]
    node = cluster.levels[0].num_devices
    open_kinds = ContextKinds(plan.model, plan.workload.sequence_length, kinds, node=node)
    others = [way_of(plan.cp, each) for each in open_kinds.of(plan.tp, plan.cp)]
    for way in dict.fromkeys((plan.context_parallel, *others)):
        own = plan.changed(context=way.kind, token_layout=way.layout, ulysses=way.ulysses)
        yield SentWay(way, *_sent_bytes(own))


def _sent_bytes(plan: Plan) -> tuple[float, float]:
    shape, axes = microbatch_shape(plan), context_axes(plan)
    sent = beside = 0.0
    for name in ("F", "B"):
        for each in inner_exchanges(plan, ONE_BLOCK, name, shape):
            if not set(each.exchange.axes) <= set(axes):
                continue
            members = num_members(plan, each.exchange.axes)
            size = each.bytes * (members - 1) / members
            sent, beside = sent + size, beside + (size if each.beside else 0.0)
    return sent, beside


def context_line(plan: Plan, cluster: ClusterSpec) -> str:
    """In words."""
    own, *others = sent_ways(plan, cluster)
    attention = plan.model.attention
    heads = f"{attention.num_heads // plan.tp} query and {attention.num_kv_heads // plan.tp} key-value heads of a device"
    return f"what cp={plan.cp} sends of a block there and back, {heads}: {own}; instead: {'; '.join(map(str, others))}"
