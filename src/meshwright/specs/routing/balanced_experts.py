"""DeepSeek's load balancer of experts (EPLB): copies of busy experts, packed so that devices have even loads.

As its public code (deepseek-ai/EPLB) describes it: where nodes divide the groups of experts, groups are packed to nodes, then
on every node the expert with the most load a copy gets one more until its slots are filled, and copies are packed to its
devices; where they do not, all devices are one node. Packing takes items from the largest to the smallest, each to
the lightest pack with room. All layers are worked on at once. Ours differs in one thing: two copies of an expert
never stand on one device.

Letters: X rows (layers, or layers x nodes), N items, P packs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.error import SpecError
from meshwright.specs.option import option
from meshwright.specs.routing.expert_placement import ExpertPlacement, GroupShape
from meshwright.specs.routing.routing_trace import RoutingTrace

Loads = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class BalancedExperts:
    """Copies of busy experts, packed so that devices have even loads (EPLB, hierarchical where nodes divide groups).

    Args:
        copies: slots beyond one for each expert, of all devices together.
        groups: equal groups of experts that stay on one node (group-limited routing); 1: there are none.
    """

    copies: int = option(0, "Slots beyond one for each expert, of all devices together.", least=0)
    groups: int = option(1, "Equal groups of experts that stay on one node.", least=1)

    def __call__(self, trace: RoutingTrace, shape: GroupShape) -> ExpertPlacement:
        """Raises SpecError where slots or groups do not divide."""
        slots = trace.num_experts + self.copies
        found = balanced_slots(trace.counts.astype(float), slots, self.groups, shape)
        return ExpertPlacement(found, shape.num_devices, trace.layers)


def balanced_slots(loads: Loads, num_slots: int, num_groups: int, shape: GroupShape) -> Numbers:
    """Which expert is in every slot, [L, S], from loads [L, E]. Raises SpecError."""
    num_layers, num_experts = loads.shape
    num_devices, num_nodes = shape
    if num_experts % num_groups or num_slots % num_devices or num_slots < num_experts:
        raise SpecError(
            f"{num_slots} slots of {num_devices} devices for {num_experts} experts in {num_groups} groups",
            allowed="as many slots a device, one for each expert at least, and equal groups",
        )
    if num_slots > num_experts * num_devices:
        raise SpecError(
            f"{num_slots} slots for {num_experts} experts", allowed="a copy on every device at most"
        )
    if num_groups % num_nodes:
        num_groups, num_nodes = 1, 1
    size = num_experts // num_groups
    by_group = loads.reshape(num_layers, num_groups, size).sum(2)
    each = num_groups // num_nodes
    node, place = packed(by_group, num_nodes)
    order = np.argsort(node * each + place, axis=1, kind="stable")  # groups, node by node
    experts = (order[:, :, None] * size + np.arange(size)).reshape(num_layers * num_nodes, -1)
    rows = np.repeat(np.arange(num_layers), num_nodes)[:, None]
    own = loads[rows, experts]
    devices, slots = num_devices // num_nodes, num_slots // num_nodes
    copied, counts = replicated(own, slots, most=devices)
    each_load = np.take_along_axis(own / counts, copied, 1)
    pack, place = packed(each_load, devices, copied)
    order = np.argsort(pack * (slots // devices) + place, axis=1, kind="stable")
    found = np.take_along_axis(experts, np.take_along_axis(copied, order, 1), 1)
    return found.reshape(num_layers, num_slots)


def replicated(loads: Loads, num_slots: int, most: int) -> tuple[Numbers, Numbers]:
    """The item of every slot, [X, slots], each once and then who has the most load a copy; and copies of each, [X, N].

    ``most``: copies that one item may have. Ties go to the first.
    """
    num_rows, num_items = loads.shape
    rows, counts = np.arange(num_rows), np.ones((num_rows, num_items), np.int64)
    found = np.empty((num_rows, num_slots), np.int64)
    found[:, :num_items] = np.arange(num_items)
    for slot in range(num_items, num_slots):
        chosen = np.where(counts < most, loads / counts, -1.0).argmax(1)
        found[:, slot] = chosen
        counts[rows, chosen] += 1
    return found, counts


def packed(loads: Loads, num_packs: int, kinds: Numbers | None = None) -> tuple[Numbers, Numbers]:
    """The pack of every item and its place there, [X, N] each, as many items a pack.

    ``kinds``: of every item, [X, N]; two of one kind never share a pack.
    """
    num_rows, num_items = loads.shape
    room = num_items // num_packs
    if room == 1:
        return np.tile(np.arange(num_items), (num_rows, 1)), np.zeros((num_rows, num_items), np.int64)
    rows, order = np.arange(num_rows), np.argsort(-loads, axis=1, kind="stable")
    pack = np.full((num_rows, num_items), -1)
    weights, filled = np.zeros((num_rows, num_packs)), np.zeros((num_rows, num_packs), np.int64)
    num_kinds = 1 if kinds is None else int(kinds.max()) + 1
    has = np.zeros((num_rows, num_packs, num_kinds), bool)
    for item in order.T:
        kind = np.zeros(num_rows, np.int64) if kinds is None else kinds[rows, item]
        is_open = (filled < room) & ~has[rows, :, kind]
        for row in map(int, np.flatnonzero(~is_open.any(1))):  # the packs with room have one of its kind
            _make_room(row, int(kind[row]), room, pack, weights, filled, has, kinds, loads)
            is_open[row] = (filled[row] < room) & ~has[row, :, kind[row]]
        chosen = np.where(is_open, weights, np.inf).argmin(1)
        pack[rows, item] = chosen
        weights[rows, chosen] += loads[rows, item]
        filled[rows, chosen] += 1
        if kinds is not None:
            has[rows, chosen, kind] = True
    return pack, _places(pack, order)


def _make_room(
    row: int, kind: int, room: int, pack: Numbers, weights: Loads, filled: Numbers, has: NDArray[np.bool_],
    kinds: Numbers | None, loads: Loads,
) -> None:  # fmt: skip
    """Move one item from a full pack without this kind to one with room, where its own kind is not. Raises SpecError."""
    assert kinds is not None, "without kinds there is always room"
    for target in np.flatnonzero(filled[row] < room):
        for source in np.flatnonzero(~has[row, :, kind]):
            for item in np.flatnonzero(pack[row] == source):
                moved = int(kinds[row, item])
                if not has[row, target, moved]:
                    pack[row, item] = target
                    has[row, source, moved], has[row, target, moved] = False, True
                    weights[row, source] -= loads[row, item]
                    weights[row, target] += loads[row, item]
                    filled[row, source] -= 1
                    filled[row, target] += 1
                    return
    raise SpecError("copies of experts cannot be kept apart", allowed="fewer copies")


def _places(pack: Numbers, order: Numbers) -> Numbers:
    """Of every item how many were packed with it before, [X, N], in the order in which they were."""
    rows, places = np.arange(len(pack)), np.zeros_like(pack)
    filled = np.zeros((len(pack), int(pack.max()) + 1), np.int64)
    for item in order.T:
        here = pack[rows, item]
        places[rows, item] = filled[rows, here]
        filled[rows, here] += 1
    return places
