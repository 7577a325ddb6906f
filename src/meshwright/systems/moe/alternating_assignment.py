"""Alternating assignment of experts to devices: all layers but one are held, and that one is placed at its best; and
the exact optimum of small cases.

Letters: L layers, E experts, G devices, C = E / G experts a device; M[l, a, b] moves from expert a of a layer to b of
the next. With every other layer held, putting expert e on device g keeps score[e, g] = sum of M over its neighbours
on g, and a layer is a linear assignment of E experts to E slots. Load is a second part of the objective:

    share of moves that stay  -  weight * mean over layers of the variance of devices' loads, in squares of the mean

which is no assignment problem, so experts swap places while that gains. Sweeps go forward and back until nothing changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from meshwright.specs.error import SpecError
from meshwright.specs.routing.expert_placement import GroupShape
from meshwright.specs.routing.routing_trace import RoutingTrace

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
RESTARTS = 32  # 8 are 2 to 4 % behind the optimum of 4 layers of 8 experts on 4 devices, 32 within 0.1 %
MOST_SWEEPS = 50  # a sweep that gains nothing ends it; this is for sums that round in a circle
LEAST_GAIN = 1e-12  # of the objective, which is a share: less is rounding
MOST_STATES = 5_000  # placements of one layer that the exact optimum goes through, in pairs


class PlacementObjective(NamedTuple):
    """What is made large: moves [L - 1, E, E], loads [L, E], devices, and how much their unevenness counts."""

    moves: Floats
    loads: Floats
    num_devices: int
    weight: float = 0.0

    @staticmethod
    def of(trace: RoutingTrace, num_devices: int, weight: float = 0.0) -> PlacementObjective:
        """Of what a trace counted."""
        return PlacementObjective(
            trace.transitions.astype(float), trace.counts.astype(float), num_devices, weight
        )

    def value(self, devices: Numbers) -> float:
        """Of a placement [L, E]."""
        return self.kept(devices) - self.weight * self.unevenness(devices)

    def kept(self, devices: Numbers) -> float:
        """Share of moves that stay on their device; 1 where there are none."""
        total = float(self.moves.sum())
        stays = devices[:-1, :, None] == devices[1:, None, :]
        return float((self.moves * stays).sum()) / total if total else 1.0

    def unevenness(self, devices: Numbers) -> float:
        """Mean over layers of the variance of devices' loads, in squares of their mean."""
        return float(((self.by_device(devices) / self.mean_loads[:, None] - 1) ** 2).mean())

    def by_device(self, devices: Numbers) -> Floats:
        """Loads [L, G]."""
        found = np.zeros((len(devices), self.num_devices))
        np.add.at(found, (np.arange(len(devices))[:, None], devices), self.loads)
        return found

    @property
    def mean_loads(self) -> Floats:
        """Of a device, [L]; one where a layer has none."""
        found: Floats = self.loads.sum(1) / self.num_devices
        return np.where(found > 0, found, 1.0)


def alternating(objective: PlacementObjective, restarts: int, seed: int) -> Numbers:
    """The best placement [L, E] of several starts: neighbouring experts together, then by turns one grown from a
    layer that is drawn, and one whose layers all are."""
    num_layers, num_experts = objective.loads.shape
    random = np.random.default_rng(seed)
    even = np.arange(num_experts) * objective.num_devices // num_experts
    starts = [np.tile(even, (num_layers, 1))]
    for number in range(1, restarts):
        if number % 2:
            first = int(random.integers(num_layers))
            starts.append(_grown(objective, random.permutation(even), first))
        else:
            starts.append(np.stack([random.permutation(even) for _ in range(num_layers)]))
    return max((improved(objective, start) for start in starts), key=objective.value)


def _grown(objective: PlacementObjective, seed_layer: Numbers, first: int) -> Numbers:
    """From one layer that was drawn outwards, each layer the best beside the one before it."""
    found = np.tile(seed_layer, (len(objective.loads), 1))
    slots, same = np.sort(seed_layer), np.eye(objective.num_devices)
    for layer in (*range(first + 1, len(found)), *range(first - 1, -1, -1)):
        is_behind = layer > first
        moves = objective.moves[layer - 1].T if is_behind else objective.moves[layer]
        score = moves @ same[found[layer - 1 if is_behind else layer + 1]]
        rows, columns = linear_sum_assignment(score[:, slots], maximize=True)
        found[layer, rows] = slots[columns]
    return found


def improved(objective: PlacementObjective, start: Numbers) -> Numbers:
    """Sweeps from a placement until one gains nothing."""
    found, best = start.copy(), objective.value(start)
    layers = range(len(start))
    for _ in range(MOST_SWEEPS):
        for layer in (*layers, *reversed(layers)):
            _place_layer(objective, found, layer)
        value = objective.value(found)
        if value <= best + LEAST_GAIN:
            return found
        best = value
    return found


def _place_layer(objective: PlacementObjective, devices: Numbers, layer: int) -> None:
    """The best of a layer while the others are held; with loads the assignment is only taken where it gains, then
    swaps are."""
    score = kept_scores(objective, devices, layer)
    slots = np.sort(devices[layer])
    rows, columns = linear_sum_assignment(score[:, slots], maximize=True)
    before, placed = devices[layer].copy(), np.empty_like(devices[layer])
    placed[rows] = slots[columns]
    if objective.weight == 0:
        devices[layer] = placed
        return
    value = objective.value(devices)
    devices[layer] = placed
    if objective.value(devices) < value:
        devices[layer] = before
    _swap(objective, devices, layer, score)


def kept_scores(objective: PlacementObjective, devices: Numbers, layer: int) -> Floats:
    """Moves that stay where expert e of a layer is on device g, [E, G]."""
    score = np.zeros((objective.loads.shape[1], objective.num_devices))
    sides = []
    if layer > 0:
        sides.append((objective.moves[layer - 1].T, devices[layer - 1]))
    if layer + 1 < len(devices):
        sides.append((objective.moves[layer], devices[layer + 1]))
    for moves, beside in sides:
        score += moves @ np.eye(objective.num_devices)[beside]
    return score


def _swap(objective: PlacementObjective, devices: Numbers, layer: int, score: Floats) -> None:
    """The two experts whose swap gains the most, until none does."""
    total = float(objective.moves.sum()) or 1.0
    scale = objective.weight / (len(devices) * objective.num_devices * objective.mean_loads[layer] ** 2)
    loads, here, everyone = objective.loads[layer], devices[layer], np.arange(objective.loads.shape[1])
    by_device = np.bincount(here, loads, objective.num_devices)
    for _ in range(len(everyone) ** 2):
        to_other = score[:, here]  # [e, f]: e where f is
        own = score[everyone, here]
        kept = (to_other + to_other.T - own[:, None] - own[None, :]) / total
        more = loads[None, :] - loads[:, None]  # what e's device has more when f stands there instead
        apart = by_device[here][:, None] - by_device[here][None, :]
        squares = 2 * more * apart + 2 * more**2
        gain = np.where(here[:, None] == here[None, :], 0.0, kept - scale * squares)
        first, second = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[first, second] <= LEAST_GAIN:
            return
        by_device[here[first]] += more[first, second]
        by_device[here[second]] -= more[first, second]
        here[first], here[second] = here[second], here[first]


def optimum(objective: PlacementObjective) -> Numbers:
    """The placement that is best of all, layer by layer over every placement of one (dynamic programming).

    E! / C!^G placements of a layer, in pairs: 20 of 6 experts on 2 devices, 2,520 of 8 on 4. Raises SpecError for more than
    MOST_STATES.
    """
    num_layers, num_experts = objective.loads.shape
    states = _states(num_experts, objective.num_devices)
    onehot = np.eye(objective.num_devices)[states]  # [states, E, G]
    total = float(objective.moves.sum()) or 1.0
    uneven = np.stack(
        [
            ((np.einsum("seg,e->sg", onehot, loads) / mean - 1) ** 2).mean(1) / num_layers
            for loads, mean in zip(objective.loads, objective.mean_loads, strict=True)
        ]
    )
    flat = onehot.reshape(len(states), -1)
    value, came = -objective.weight * uneven[0], []
    for layer in range(1, num_layers):
        reached = np.einsum("ab,sag->sbg", objective.moves[layer - 1], onehot).reshape(len(states), -1)
        kept = (reached @ flat.T) / total + value[:, None]
        came.append(kept.argmax(0))
        value = kept.max(0) - objective.weight * uneven[layer]
    chosen = [int(value.argmax())]
    for back in reversed(came):
        chosen.append(int(back[chosen[-1]]))
    return states[chosen[::-1]]


def _states(num_experts: int, num_devices: int) -> Numbers:
    """Every placement of one layer with as many experts on each device, [states, E]. Raises SpecError."""
    each = num_experts // num_devices
    found: list[list[int]] = [[-1] * num_experts]
    for device in range(num_devices):
        grown = []
        for state in found:
            free = [expert for expert in range(num_experts) if state[expert] < 0]
            for chosen in itertools.combinations(free, each):
                grown.append([device if e in chosen else at for e, at in enumerate(state)])
            if len(grown) > MOST_STATES:
                raise SpecError(
                    f"{num_experts} experts on {num_devices} devices, all placements of a layer",
                    allowed=f"up to {MOST_STATES:,} placements, such as 8 experts on 4 devices",
                )
        found = grown
    return np.array(found)


def staged(
    objective: PlacementObjective, shape: GroupShape, place: Callable[[PlacementObjective], Numbers]
) -> Numbers:
    """Experts to nodes, then those of each node to its devices, by the same way to place [L, E] (ExFlow's two stages)."""
    if shape.num_nodes == 1:
        return place(objective)
    nodes = place(objective._replace(num_devices=shape.num_nodes))
    each, found = shape.num_devices // shape.num_nodes, np.empty_like(nodes)
    layers = np.arange(len(nodes))[:, None]
    for node in range(shape.num_nodes):
        own = np.nonzero(nodes == node)[1].reshape(len(nodes), -1)
        moves = objective.moves[layers[:-1, :, None], own[:-1, :, None], own[1:, None, :]]
        inside = PlacementObjective(moves, objective.loads[layers, own], each, objective.weight)
        found[layers, own] = node * each + place(inside)
    return found
