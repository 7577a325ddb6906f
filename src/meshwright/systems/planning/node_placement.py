"""NodeOrderCost and `anneal`: which node runs which stage of which pipeline, by simulated annealing on link rates.

An order lists nodes pipeline by pipeline: ``order[k * pp + s]`` runs stage s of pipeline k.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from meshwright.specs.error import SpecError

Order = tuple[int, ...]
# Start, cooling of every proposal: yimjinkyu1/date2024_pipette, mh_simulated_annealing_opt.py. Cold after this many.
FIRST_TEMPERATURE, COOLING = 1.0, 0.999
NUM_PROPOSALS = 10_000


@dataclass(frozen=True)
class NodeOrderCost:
    """Seconds of a step's communication between nodes, as an order of them has it.

    Attributes:
        bandwidths: ``bandwidths[i][j]`` bytes per second from a device of node i to its counterpart on node j.
        pp: nodes of a pipeline.
        message_bytes: that one stage sends the next for one microbatch; its gradient, the way back, is as large.
        num_round_trips: of such messages through a pipeline that a step waits for.
        gradient_bytes: of a stage on one device, all-reduced in a ring over the nodes that run it.
        num_reduced: stages whose rings are looked at, from the first on; the slowest of them counts.

    Raises SpecError where the nodes do not fill pipelines, or a rate is none.
    """

    bandwidths: tuple[tuple[float, ...], ...]
    pp: int
    message_bytes: float
    num_round_trips: float = 1.0
    gradient_bytes: float = 0.0
    num_reduced: int = 1

    def __post_init__(self) -> None:
        n = len(self.bandwidths)
        if n == 0 or self.pp < 1 or n % self.pp or any(len(row) != n for row in self.bandwidths):
            raise SpecError(
                f"a matrix of {n} rows for pipelines of {self.pp} nodes",
                allowed="a square matrix of link rates whose size is a multiple of pp",
            )
        if any(not self.bandwidths[i][j] > 0 for i in range(n) for j in range(n) if i != j):
            raise SpecError("a link rate is not above 0", allowed="bytes per second between any two nodes")

    @property
    def num_nodes(self) -> int:
        """Nodes of the cluster."""
        return len(self.bandwidths)

    @property
    def is_even(self) -> bool:
        """Are all links alike, so that every order costs the same?"""
        rates = {rate for i, row in enumerate(self.bandwidths) for j, rate in enumerate(row) if i != j}
        return len(rates) <= 1

    @cached_property
    def hop_s(self) -> tuple[tuple[float, ...], ...]:
        """Seconds of an activation from node i to j and of its gradient back."""
        rates, numbers = self.bandwidths, range(self.num_nodes)
        return tuple(
            tuple(
                self.message_bytes / rates[i][j] + self.message_bytes / rates[j][i] if i != j else 0.0
                for j in numbers
            )
            for i in numbers
        )

    def round_trip_s(self, order: Sequence[int]) -> float:
        """T_pp: of the pipeline whose hops take longest."""
        pp, hop_s = self.pp, self.hop_s
        slowest = 0.0
        for first in range(0, len(order), pp):
            total = 0.0
            for place in range(first, first + pp - 1):
                total += hop_s[order[place]][order[place + 1]]
            slowest = max(slowest, total)
        return slowest

    def reduction_s(self, order: Sequence[int]) -> float:
        """Ring all-reduce over the k nodes of a stage: 2 (k - 1) / k bytes over its slowest link."""
        k = len(order) // self.pp
        if k < 2 or not self.gradient_bytes:
            return 0.0
        slowest = math.inf
        for stage in range(self.num_reduced):
            nodes = order[stage :: self.pp]
            for i in range(k):
                slowest = min(slowest, self.bandwidths[nodes[i - 1]][nodes[i]])
        return 2 * (k - 1) / k * self.gradient_bytes / slowest

    def __call__(self, order: Sequence[int]) -> float:
        """Seconds of a step that the links between nodes add."""
        return self.num_round_trips * self.round_trip_s(order) + self.reduction_s(order)


def anneal(cost: NodeOrderCost, *, seed: int = 0, num_proposals: int = NUM_PROPOSALS) -> Order:
    """The cheapest order that simulated annealing meets, starting from the nodes as they are numbered.

    A worse order is taken with probability exp(-d / T), d its extra cost in units of the first cost's decimal place; T
    falls with every proposal. Equal arguments give equal orders.
    """
    current = list(range(cost.num_nodes))
    current_s = cost(current)
    best, best_s = current, current_s
    if cost.num_nodes < 2 or cost.is_even or current_s <= 0:
        return tuple(best)
    unit = 10.0 ** math.floor(math.log10(current_s))
    generator, temperature = random.Random(seed), FIRST_TEMPERATURE
    for _ in range(num_proposals):
        proposed = generator.choice(MOVES)(current, generator)
        proposed_s = cost(proposed)
        extra = (proposed_s - current_s) / unit
        if extra <= 0 or generator.random() < math.exp(-extra / temperature):
            current, current_s = proposed, proposed_s
            if current_s < best_s:
                best, best_s = current, current_s
        temperature *= COOLING
    return tuple(best)


def _swapped(order: list[int], generator: random.Random) -> list[int]:
    """Two nodes change places."""
    i, j = generator.sample(range(len(order)), 2)
    result = list(order)
    result[i], result[j] = result[j], result[i]
    return result


def _inserted(order: list[int], generator: random.Random) -> list[int]:
    """One node goes elsewhere."""
    i = generator.randrange(len(order))
    rest = order[:i] + order[i + 1 :]
    place = generator.randrange(len(order))
    return [*rest[:place], order[i], *rest[place:]]


def _two_opt(order: list[int], generator: random.Random) -> list[int]:
    """A route is run backwards where it stands."""
    i, j = _route(order, generator)
    return order[:i] + order[i:j][::-1] + order[j:]


def _route_inserted(order: list[int], generator: random.Random) -> list[int]:
    """A route goes elsewhere."""
    i, j = _route(order, generator)
    return _put(order[:i] + order[j:], order[i:j], generator)


def _reversed_route_inserted(order: list[int], generator: random.Random) -> list[int]:
    """A route goes elsewhere, backwards."""
    i, j = _route(order, generator)
    return _put(order[:i] + order[j:], order[i:j][::-1], generator)


def _route(order: list[int], generator: random.Random) -> tuple[int, int]:
    """Begin and end of a route of at least two nodes."""
    i, j = sorted(generator.sample(range(len(order)), 2))
    return i, j + 1


def _put(rest: list[int], route: list[int], generator: random.Random) -> list[int]:
    place = generator.randint(0, len(rest))
    return rest[:place] + route + rest[place:]


MOVES: tuple[Callable[[list[int], random.Random], list[int]], ...] = (
    _two_opt, _inserted, _swapped, _route_inserted, _reversed_route_inserted,
)  # fmt: skip
