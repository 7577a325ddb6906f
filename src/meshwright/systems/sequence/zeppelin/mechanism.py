"""Three zones of sequences: over nodes, over the ranks of a node, on one rank; packed, and dealt out evenly."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, gcd, inf, sqrt

from meshwright.specs.error import PlanError
from meshwright.specs.option import option
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGroup
from meshwright.systems.sequence.best_fit import packed


@dataclass(frozen=True)
class Zeppelin:
    """Groups of a step in zones (Chen et al. 2025, arXiv 2509.21841): first sequences over whole nodes, then those over the
    ranks of one node, then those of one rank; within each zone the longest first, to who has done the least.

    A sequence is of the inner of two zones unless it does not fit there, or its ring in the outer one hides behind attention.
    """

    node: int = option(8, "Ranks of a node; of fewer ranks all are one.", least=1)
    tokens: int = option(0, "Tokens of a rank; 0: what its memory holds.", least=0)

    def __call__(self, lengths: Sequence[int], num_ranks: int, costs: SequenceCosts) -> GroupedBatch:
        """Groups of all sequences, zone by zone. Raises PlanError where nodes do not divide ranks, or one does not fit."""
        node = min(self.node, num_ranks)
        if num_ranks % node:
            raise PlanError(
                f"{num_ranks} ranks in nodes of {node}",
                allowed="whole nodes",
                next=f"say the ranks of a node: zeppelin(node={gcd(num_ranks, node)})",
            )
        costs = costs.holding(self.tokens)
        zones = Zones.of(lengths, num_ranks, node, costs)
        done_s = [0.0] * num_ranks
        nodes = [zones.ranks_of(one) for one in range(zones.num_nodes)]
        groups = [
            *_over_nodes(lengths, zones, done_s, costs),
            *_dealt(zones.in_nodes, nodes, lengths, done_s, costs),
            *_dealt(zones.local, [(rank,) for rank in range(num_ranks)], lengths, done_s, costs),
        ]
        return GroupedBatch(tuple(lengths), num_ranks, tuple(groups))


@dataclass(frozen=True)
class Zones:
    """Sequences by numbers, the longest first: those of the inter-node zone, the intra-node zone, and the local one."""

    num_ranks: int
    node: int
    over_nodes: tuple[int, ...]
    in_nodes: tuple[int, ...]
    local: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        """Nodes of the ranks."""
        return self.num_ranks // self.node

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """Ranks of a node."""
        return tuple(range(node * self.node, (node + 1) * self.node))

    @classmethod
    def of(cls, lengths: Sequence[int], num_ranks: int, node: int, costs: SequenceCosts) -> Zones:
        """By two thresholds: what fits a rank and a node, or the least length whose ring is hidden, if that is less."""
        costs.least_degree(1)
        rank_tokens = costs.capacity_tokens + 1e-9
        of_rank = max(1.0, min(rank_tokens, hidden_from(node, costs) - 1))
        of_node = max(1.0, min(node * rank_tokens, hidden_from(min(2 * node, num_ranks), costs) - 1))
        if node == num_ranks:
            of_node = inf
        elif node == 1:
            of_node = of_rank
        order = sorted(range(len(lengths)), key=lambda one: (-lengths[one], one))
        zones = {
            zone: tuple(one for one in order if _zone(lengths[one], of_rank, of_node) == zone)
            for zone in range(3)
        }
        return cls(num_ranks, node, zones[2], zones[1], zones[0])


def _zone(length: int, of_rank: float, of_node: float) -> int:
    return (length > of_rank) + (length > of_node)


def hidden_from(degree: int, costs: SequenceCosts) -> float:
    """The least length whose exchanges among so many ranks hide behind its attention; no length where nothing runs beside it.

    a s^2 / d >= b s + c, with b and c the exchange's seconds of a token and what it takes in any case.
    """
    if degree == 1 or not costs.is_beside:
        return inf
    fixed_s = costs.exchange_seconds((), degree)
    token_s = costs.exchange_seconds((1,), degree) - fixed_s
    square_s = costs.square_s / degree
    if not square_s:
        return inf
    return ceil((token_s + sqrt(token_s**2 + 4 * square_s * fixed_s)) / (2 * square_s))


def _over_nodes(
    lengths: Sequence[int], zones: Zones, done_s: list[float], costs: SequenceCosts
) -> Iterator[SequenceGroup]:
    """Each over as many whole nodes as hold it, two at least: those that have done the least."""
    for number in zones.over_nodes:
        degree = costs.least_degree(lengths[number])
        num_nodes = max(2, ceil(degree / zones.node))
        while costs.degrees and num_nodes * zones.node not in costs.degrees and num_nodes < zones.num_nodes:
            num_nodes += 1
        if num_nodes > zones.num_nodes:
            raise PlanError(
                f"sequence {number} of {lengths[number]:,} tokens needs {degree} ranks of {zones.num_ranks}",
                allowed=f"up to {int(zones.num_ranks * costs.capacity_tokens):,} tokens",
                next="take more devices, or cut sequences at a shorter context",
            )
        nodes = sorted(range(zones.num_nodes), key=lambda one: (done_s[one * zones.node], one))[:num_nodes]
        ranks = tuple(rank for node in sorted(nodes) for rank in zones.ranks_of(node))
        yield _given(ranks, (number,), lengths, done_s, costs)


def _dealt(
    numbers: Sequence[int], teams: Sequence[tuple[int, ...]], lengths: Sequence[int], done_s: list[float],
    costs: SequenceCosts,
) -> Iterator[SequenceGroup]:  # fmt: skip
    """Each to the team that has done the least, packed up to what its ranks hold."""
    free = [(done_s[team[0]], place) for place, team in enumerate(teams)]
    heapq.heapify(free)
    own: list[list[int]] = [[] for _ in teams]
    for number in numbers:
        so_far_s, place = free[0]
        own[place].append(number)
        degree = len(teams[place])
        heapq.heapreplace(free, (so_far_s + costs.seconds((lengths[number],), degree) - costs.fixed_s, place))
    for team, mine in zip(teams, own, strict=True):
        for pack in packed(lengths, mine, int(len(team) * costs.capacity_tokens + 1e-9)):
            yield _given(team, pack, lengths, done_s, costs)


def _given(
    ranks: tuple[int, ...], numbers: tuple[int, ...], lengths: Sequence[int], done_s: list[float],
    costs: SequenceCosts,
) -> SequenceGroup:  # fmt: skip
    """A group, whose ranks are busy so much longer."""
    end_s = max(done_s[rank] for rank in ranks) + costs.seconds([lengths[one] for one in numbers], len(ranks))
    for rank in ranks:
        done_s[rank] = end_s
    return SequenceGroup(ranks, numbers)
