"""Experts sharded in whole ones, each device's step with copies of those that are busy: where copies go, who computes what.

Shapes: L layers, X experts of a layer, D devices. Loads are tokens that were sent to an expert.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.error import SpecError

Loads = NDArray[np.float64]
Owners = NDArray[np.int64]  # [X]: the device that has an expert's parameters and its optimizer's state
Copies = NDArray[np.bool_]  # [X, D]: who has an expert's parameters in a step, its owner among them
MEAN_OF = 5  # iterations whose mean foretells the next one's loads


class Move(NamedTuple):
    """An expert's parameters from its owner to a copy; its gradient goes the other way."""

    expert: int
    owner: int
    target: int


def owned(owners_X: Owners, num_devices: int) -> Copies:
    """Nobody has a copy."""
    found: Copies = owners_X[:, None] == np.arange(num_devices)
    return found


def overlap_degree(other_s: float, bytes_per_s: float, expert_bytes: float, num_experts: int) -> int:
    """t: experts that come while what is not expert computes."""
    return min(int(other_s * bytes_per_s / expert_bytes), num_experts)


def materialized(
    loads_X: Loads, owners_X: Owners, overlap: int, memory: int, node_of_D: Sequence[int]
) -> Copies:
    """Copies of a step: of the `overlap` busiest experts, at most `memory` on a device.

    Where all of them fit, every device has each. Else all devices' places are divided among them in proportion to their
    loads, and an expert's copies go where most places are free: to the freest node, and within it to the freest device.
    """
    copies_XD, num_devices = owned(owners_X, len(node_of_D)), len(node_of_D)
    busiest = np.argsort(-loads_X, kind="stable")[:overlap]
    if overlap <= memory:
        copies_XD[busiest] = True
        return copies_XD
    total = float(loads_X[busiest].sum()) or 1.0
    free_D, nodes = np.full(num_devices, memory), np.asarray(node_of_D)
    for expert in busiest:
        wanted = round(memory * num_devices * float(loads_X[expert]) / total)
        for _ in range(wanted):
            free_nodes = np.bincount(nodes, weights=free_D)
            order = np.lexsort((-free_D, -free_nodes[nodes]))
            able = [device for device in order if free_D[device] and not copies_XD[expert, device]]
            if not able:
                break
            copies_XD[expert, able[0]] = True
            free_D[able[0]] -= 1
    return copies_XD


def sharded(loads_LX: Loads, overlap: int, node_of_D: Sequence[int]) -> NDArray[np.int64]:
    """Owners [L, X] of all layers together, as many experts on each device.

    A layer's busiest `overlap` experts are copied anyway, so they fill what is left. The others are placed first: layers with
    the largest load first, in each the busiest expert first, to the node, and there the device, with the least load of that
    layer; of equals to the one with fewer places left.
    """
    num_layers, num_experts = loads_LX.shape
    nodes, num_devices = np.asarray(node_of_D), len(node_of_D)
    places, rest = divmod(num_layers * num_experts, num_devices)
    if rest:
        raise SpecError(
            f"{num_layers} layers of {num_experts} experts on {num_devices} devices",
            allowed="as many on each device",
        )
    free_D, owners_LX = np.full(num_devices, places), np.full((num_layers, num_experts), -1)
    ranked_LX = np.argsort(-loads_LX, axis=1, kind="stable")
    for layer in np.argsort(-loads_LX.max(1), kind="stable"):
        busy_D = np.zeros(num_devices)
        for expert in ranked_LX[layer, overlap:]:
            busy_N, free_N = (np.bincount(nodes, weights=each)[nodes] for each in (busy_D, free_D))
            device = min(
                np.flatnonzero(free_D), key=lambda d: (busy_N[d], free_N[d], busy_D[d], free_D[d], d)
            )
            owners_LX[layer, expert] = device
            free_D[device] -= 1
            busy_D[device] += loads_LX[layer, expert]
    owners_LX[owners_LX < 0] = np.repeat(np.arange(num_devices), free_D)
    return owners_LX


def moves_of(owners_X: Owners, copies_XD: Copies) -> list[Move]:
    """What spAG sends, in one order for all: by expert, then by device."""
    return [
        Move(int(expert), int(owners_X[expert]), int(device))
        for expert, device in np.argwhere(copies_XD)
        if device != owners_X[expert]
    ]


def gathered_bytes(owners_X: Owners, copies_XD: Copies, expert_bytes: float) -> float:
    """That spAG sends, of all devices together; spRS sends as many back."""
    return len(moves_of(owners_X, copies_XD)) * expert_bytes


def most_received_share(owners_X: Owners, copies_XD: Copies) -> float:
    """Lambda: of the bytes of a layer, what the device receives that receives most."""
    return float((copies_XD & ~owned(owners_X, copies_XD.shape[1])).sum(0).max() / len(owners_X))


def dispatched(loads_DX: Loads, copies_XD: Copies, node_of_D: Sequence[int]) -> NDArray[np.float64]:
    """Tokens [D, X, D] from their device by expert to the one that computes: itself where it has a copy, else in equal parts
    the copies of its node, else in equal parts all copies."""
    nodes = np.asarray(node_of_D)
    near_DXD = copies_XD[None] & (nodes[:, None] == nodes[None])[:, None]
    here_DXD = copies_XD[None] & np.eye(len(nodes), dtype=bool)[:, None]
    choice = np.where(near_DXD.any(2, keepdims=True), near_DXD, copies_XD[None])
    choice = np.where(here_DXD.any(2, keepdims=True), here_DXD, choice)
    found: NDArray[np.float64] = loads_DX[:, :, None] * choice / choice.sum(2, keepdims=True)
    return found


def imbalance(sent_DXD: NDArray[np.float64]) -> float:
    """Of what devices compute, the largest over the mean."""
    computed_D = sent_DXD.sum((0, 1))
    return float(computed_D.max() / computed_D.mean())


def even_sources(loads_X: Loads, num_devices: int) -> Loads:
    """[D, X]: every device has as many tokens of each expert."""
    return np.repeat(loads_X[None] / num_devices, num_devices, 0)


def lognormal_loads(num_layers: int, num_experts: int, sigma: float, seed: int) -> Loads:
    """[L, X], of mean 1 in each layer."""
    found: Loads = np.random.default_rng(seed).lognormal(0.0, sigma, (num_layers, num_experts))
    found /= found.mean(1, keepdims=True)
    return found


@dataclass
class PlannedCopies:
    """Owners and copies over iterations: copies by the mean of the last five loads, owners anew every `every` iterations."""

    owners_LX: NDArray[np.int64]
    overlap: int
    memory: int
    node_of_D: Sequence[int]
    every: int = 100
    _last: deque[Loads] = field(default_factory=lambda: deque(maxlen=MEAN_OF))
    _iteration: int = 0

    def copies(self) -> Iterator[Copies]:
        """Of each layer in the next iteration; none before a load was seen."""
        for layer, owners_X in enumerate(self.owners_LX):
            if not self._last:
                yield owned(owners_X, len(self.node_of_D))
            else:
                mean_X = np.mean([loads[layer] for loads in self._last], 0)
                yield materialized(mean_X, owners_X, self.overlap, self.memory, self.node_of_D)

    def seen(self, loads_LX: Loads) -> int:
        """What an iteration's loads were; experts that change their owners behind it."""
        self._last.append(loads_LX)
        self._iteration += 1
        if self._iteration % self.every:
            return 0
        before, mean_LX = self.owners_LX, np.mean(self._last, 0)
        self.owners_LX = sharded(mean_LX, self.overlap, self.node_of_D)
        return int((before != self.owners_LX).sum())
