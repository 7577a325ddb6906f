"""How many devices share an expert (r), in how many parts tokens go (d), by which all-to-all (a): as a planner, and as a
dictionary of what was found best by capacity.

Where parameters and tokens lie does not depend on r: it says how many times tokens are repeated before they are sent, and
over how many devices an expert's matrices are gathered. So r is `etp` with the experts' state divided over their replicas,
and 0 is data parallelism alone, whose experts are gathered as ZeRO-3 has it. An all-to-all in two levels (2DH) is `ep_near`:
those of a node collect what goes to each place in other nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any, NamedTuple

from meshwright.planner.search.proposal import Proposal
from meshwright.planner.space.check import check_open
from meshwright.planner.space.degrees import divisors
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

PART_DEGREES = (1, 2, 4, 8)
ALL_TO_ALLS = ("linear", "two_level")
CAPACITY_WINDOW = 128  # capacities of one key: R of the paper
DECIDED = ("ep", "etp", "ep_near", "token_parts", "sharding")


class Choice(NamedTuple):
    """r, d and a."""

    shared: int
    parts: int
    all_to_all: str


def shared_degrees(num_devices: int, num_experts: int) -> tuple[int, ...]:
    """r from 0: devices that may share an expert where there are more devices than experts. Raises PlanError."""
    if num_devices < 1 or num_experts < 1:
        raise PlanError(f"{num_experts} experts on {num_devices} devices", allowed="1 or more of both")
    return (0, *divisors(max(1, num_devices // num_experts)))


def repeats_tokens(num_tokens: int, shared: int, expert_parameters: int) -> bool:
    """Are tokens repeated for the devices that share an expert (and results added), rather than its matrices gathered? Where
    fewer numbers travel: 2 (r - 1) of the tokens' rows against the expert's parameters."""
    return 2 * num_tokens * (shared - 1) < expert_parameters


def planned(model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any]) -> Proposal:
    """As a planner: a plan of every r, d and a that this model and cluster allow, whole microbatches first; they are told
    apart by their simulated steps.

    Raises PlanError where `DECIDED` are fixed, or a plan of these degrees contradicts itself.
    """
    check_open(fix, DECIDED)
    usual = Plan.of(model, cluster, workload, **fix)
    if not model.num_experts:
        return Proposal((usual,), ("the model has no experts: r and d say nothing",))
    if "microbatch_size" not in fix:
        usual = usual.changed(microbatch_size=gcd(workload.global_batch // usual.dp, PART_DEGREES[-1]))
    inside = usual.dp * usual.cp * usual.tp
    ep = gcd(model.num_experts, inside)
    found = [_with_shared(usual, ep, shared) for shared in shared_degrees(inside, ep)]
    parts = [each for each in PART_DEGREES if usual.microbatch_size % each == 0]
    ways = [
        way
        for plan in found
        if plan is not None
        for way in (plan, _in_two_levels(plan, cluster))
        if way is not None
    ]
    plans = [plan.changed(token_parts=each) for each in parts for plan in ways]
    if not plans:
        raise PlanError(
            f"no r divides {model.name} on {inside} devices", allowed="a batch that its replicas divide"
        )
    words = ", ".join(str(0 if each.ep == 1 else each.expert_tp) for each in found if each is not None)
    levels = (
        "; all-to-alls between nodes in one level, and in two"
        if any(each.ep_near > 1 for each in ways)
        else ""
    )
    return Proposal(tuple(plans), (f"r of {words}; tokens in {', '.join(map(str, parts))} parts{levels}",))


def _with_shared(plan: Plan, ep: int, shared: int) -> Plan | None:
    """With so many devices for an expert; None where its matrices do not divide."""
    try:
        if shared == 0:
            return plan.changed(ep=1, etp=0, sharding="zero3" if plan.dp * plan.cp > 1 else "none")
        return plan.changed(ep=ep, etp=shared, sharding="zero1" if plan.dp * plan.cp > 1 else "none")
    except PlanError:
        return None


def _in_two_levels(plan: Plan, cluster: ClusterSpec) -> Plan | None:
    """The plan whose rows first go among devices of a node; None where all experts are in one, or each in another."""
    node = cluster.levels[-2].num_devices if len(cluster.levels) > 1 else cluster.num_devices
    near = node // plan.expert_tp
    if not 1 < near < plan.ep or plan.ep % near:
        return None
    try:
        return plan.changed(ep_near=near)
    except PlanError:
        return None


@dataclass
class BestByCapacity:
    """What is best for the capacities that were met, a key for each window of them; a new key costs a few trials.

    Attributes:
        degrees: of r, rising.
        seconds: of a layer with a capacity and a choice: measured, or predicted. Along r it falls, then rises.
    """

    degrees: tuple[int, ...]
    seconds: Callable[[int, Choice], float]
    window: int = CAPACITY_WINDOW
    num_trials: int = 0
    known: dict[int, Choice] = field(default_factory=dict)

    def best(self, capacity: int) -> Choice:
        """For so many tokens of an expert. Raises PlanError on a capacity that is none."""
        if capacity < 1:
            raise PlanError(f"a capacity of {capacity}", allowed="tokens of an expert, from 1")
        key = capacity // self.window
        if key not in self.known:
            found = [self._by_shared(capacity, parts, name) for parts in PART_DEGREES for name in ALL_TO_ALLS]
            self.known[key] = min(found)[1]
        return self.known[key]

    def _by_shared(self, capacity: int, parts: int, name: str) -> tuple[float, Choice]:
        """Ternary search along r."""
        tried: dict[int, float] = {}

        def seconds(place: int) -> float:
            if place not in tried:
                self.num_trials += 1
                tried[place] = self.seconds(capacity, Choice(self.degrees[place], parts, name))
            return tried[place]

        low, high = 0, len(self.degrees) - 1
        while high - low > 2:
            third = (high - low) // 3
            left, right = low + third, high - third
            low, high = (low, right - 1) if seconds(left) <= seconds(right) else (left + 1, high)
        best = min(range(low, high + 1), key=seconds)
        return tried[best], Choice(self.degrees[best], parts, name)


def most_trials(largest_shared: int) -> float:
    """Of a new key, as the paper counts: (log_{3/2} of the most devices that share an expert, and 2) of each d and a."""
    return (math.log(largest_shared, 1.5) + 2) * len(PART_DEGREES) * len(ALL_TO_ALLS)
