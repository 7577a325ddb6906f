"""Which node runs which stage of which pipeline, by annealing on link rates; and the plans that Pipette's latency ranks.

The latency is the paper's, said of every run of neighbouring stages instead of all of them (`pipeline_s`).

An order lists nodes pipeline by pipeline: ``order[k * pp + s]`` runs stage s of pipeline k. A node is the innermost level of
the cluster; a plan's tensor-parallel groups lie in nodes, its mesh has the usual order.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from meshwright.costs.pricing import pricing_of
from meshwright.ir.table import Exchange
from meshwright.planner.search.proposal import Proposal
from meshwright.planner.space.check import check_open
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import Rejection, out_of_memory
from meshwright.schedules import registered
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import AXES, Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.units import format_seconds
from meshwright.stage.group.value_size import num_local_parameters
from meshwright.stage.saved.saved import boundary_bytes_per_token
from meshwright.systems.planning.microbatch_seconds import stage_seconds

Order = tuple[int, ...]
BACKWARD_SHARE = 2 / 3  # of f + w: two products for one
# Start, cooling of every proposal: yimjinkyu1/date2024_pipette, mh_simulated_annealing_opt.py. Cold after this many.
FIRST_TEMPERATURE, COOLING = 1.0, 0.999
NUM_PROPOSALS = 10_000


def pipeline_s(stage_s: Sequence[float], hop_s: Sequence[float], num_microbatches: int) -> float:
    """Seconds of 1F1B through one pipeline.

    The first microbatch goes there and back, the others follow at a distance that n neighbouring stages set, whichever run of
    them sets the longest: under 1F1B a run takes a microbatch in for each that comes back out, so n microbatches wait for a
    round trip within it. The longest run, all p stages, is the paper's hidden critical path; a single stage its own pace.

    Args:
        stage_s: f + w of every stage.
        hop_s: of every boundary, an activation there and its gradient back.
    """
    distance_s = 0.0
    for first in range(len(stage_s)):
        run_s = stage_s[first]
        distance_s = max(distance_s, run_s)
        for last in range(first + 1, len(stage_s)):
            run_s += hop_s[last - 1] + stage_s[last]
            distance_s = max(distance_s, run_s / (last - first + 1))
    return sum(stage_s) + sum(hop_s) + (num_microbatches - 1) * distance_s


@dataclass(frozen=True)
class NodeOrderCost:
    """Seconds of a step's communication between nodes, as an order of them has it.

    Attributes:
        bandwidths: ``bandwidths[i][j]`` bytes per second from a device of node i to its counterpart on node j.
        stage_s: f + w of every stage, which runs on one node of each pipeline.
        num_microbatches: of a step, through every pipeline.
        message_bytes: that one stage sends the next for one microbatch; its gradient, the way back, is as large.
        gradient_bytes: of a stage on one device, all-reduced in a ring over the nodes that run it.
        num_reduced: stages whose rings are looked at, from the first on; the slowest of them counts.

    Raises SpecError where the nodes do not fill pipelines, or a rate is none.
    """

    bandwidths: tuple[tuple[float, ...], ...]
    stage_s: tuple[float, ...]
    num_microbatches: int
    message_bytes: float
    gradient_bytes: float = 0.0
    num_reduced: int = 1

    def __post_init__(self) -> None:
        n = len(self.bandwidths)
        if n == 0 or not self.stage_s or n % self.pp or any(len(row) != n for row in self.bandwidths):
            raise SpecError(
                f"a matrix of {n} rows for pipelines of {self.pp} nodes",
                allowed="a square matrix of link rates whose size is a multiple of pp",
            )
        if any(not self.bandwidths[i][j] > 0 for i in range(n) for j in range(n) if i != j):
            raise SpecError("a link rate is not above 0", allowed="bytes per second between any two nodes")

    @property
    def pp(self) -> int:
        """Nodes of a pipeline."""
        return len(self.stage_s)

    @property
    def num_nodes(self) -> int:
        """Nodes of the cluster."""
        return len(self.bandwidths)

    @property
    def numbered(self) -> Order:
        """The order of a plan without a placement: stage by stage, the nodes as they are numbered."""
        pipelines = self.num_nodes // self.pp
        return tuple(stage * pipelines + one for one in range(pipelines) for stage in range(self.pp))

    @property
    def is_even(self) -> bool:
        """Are all links alike, so that every order costs the same?"""
        rates = {rate for i, row in enumerate(self.bandwidths) for j, rate in enumerate(row) if i != j}
        return len(rates) <= 1

    @cached_property
    def compute_s(self) -> float:
        """Seconds of the pipelines where messages take none."""
        return pipeline_s(self.stage_s, (0.0,) * (self.pp - 1), self.num_microbatches)

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

    def hops_s(self, order: Sequence[int]) -> list[list[float]]:
        """Of every pipeline its boundaries' seconds there and back."""
        return [
            [self.hop_s[one][other] for one, other in pairwise(order[first : first + self.pp])]
            for first in range(0, len(order), self.pp)
        ]

    def round_trip_s(self, order: Sequence[int]) -> float:
        """T_pp: of the pipeline whose hops take longest."""
        return max(map(sum, self.hops_s(order)))

    def messages_s(self, order: Sequence[int]) -> float:
        """What messages between stages add to the pipeline that they delay most."""
        slowest = max(pipeline_s(self.stage_s, hops, self.num_microbatches) for hops in self.hops_s(order))
        return slowest - self.compute_s

    @cached_property
    def leads_s(self) -> tuple[float, ...]:
        """Seconds by which every stage is done with its last backward before the first one is."""
        backwards = [BACKWARD_SHARE * seconds for seconds in self.stage_s]
        return tuple(itertools.accumulate(backwards[:-1], initial=0.0))

    def reduction_s(self, order: Sequence[int]) -> float:
        """Ring all-reduces over the k nodes of a stage, each 2 (k - 1) / k bytes over its slowest link: what of the longest
        is left when the first stage has done its last backward."""
        k = len(order) // self.pp
        if k < 2 or not self.gradient_bytes:
            return 0.0
        longest = 0.0
        for lead_s, stage in zip(self.leads_s, range(self.num_reduced), strict=False):
            nodes = order[stage :: self.pp]
            slowest = min(self.bandwidths[nodes[i - 1]][nodes[i]] for i in range(k))
            longest = max(longest, 2 * (k - 1) / k * self.gradient_bytes / slowest - lead_s)
        return longest

    def __call__(self, order: Sequence[int]) -> float:
        """Seconds of a step that the links between nodes add."""
        return self.messages_s(order) + self.reduction_s(order)


def anneal(cost: NodeOrderCost, *, seed: int = 0, num_proposals: int = NUM_PROPOSALS) -> Order:
    """The cheapest order that simulated annealing meets, starting from the nodes as they are numbered.

    A worse order is taken with probability exp(-d / T), d its extra cost in units of the first cost's decimal place; T
    falls with every proposal. Equal arguments give equal orders.
    """
    current = list(cost.numbered)
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


def order_cost(plan: Plan, cluster: ClusterSpec, num_reduced: int = 1) -> NodeOrderCost:
    """What an order of the cluster's nodes costs the plan: its messages, and T_dp between nodes.

    Raises PlanError where nodes do not run whole groups of one stage.
    """
    size, num_nodes = cluster.levels[0].num_devices, cluster.num_devices // cluster.levels[0].num_devices
    if plan.mesh_order != AXES or size % (plan.cp * plan.tp) or num_nodes % plan.pp:
        raise PlanError(
            f"{plan.product_text()} on {num_nodes} nodes of {size} does not put whole nodes on stages",
            allowed=f"mesh order {', '.join(AXES)}, cp x tp that divides a node, pp that divides the nodes",
        )
    rates, stage_s = attained_rates(plan, cluster), stage_seconds(plan, cluster)
    part = first_gradient_bytes(plan) / copies_in_node(plan, cluster)
    return NodeOrderCost(rates, stage_s, plan.num_microbatches, message_bytes(plan), part, num_reduced)


def message_bytes(plan: Plan) -> float:
    """Activations of a microbatch that one device sends: each of a tensor-parallel group its share."""
    whole = boundary_bytes_per_token(plan.model, plan.dtype) * plan.tokens_per_microbatch
    return whole / (plan.cp * plan.tp)


def attained_rates(plan: Plan, cluster: ClusterSpec) -> tuple[tuple[float, ...], ...]:
    """Bytes per second that the plan's messages attain between the first devices of any two nodes."""
    costs, num_bytes, message = (
        pricing_of(plan, cluster).costs,
        message_bytes(plan),
        Exchange(("pp",), shift=1),
    )
    firsts = range(0, cluster.num_devices, cluster.levels[0].num_devices)
    return tuple(
        tuple(
            math.inf if a == b else num_bytes / costs.exchange_cost(message, num_bytes, (a, b)).seconds
            for b in firsts
        )
        for a in firsts
    )


def first_gradient_bytes(plan: Plan) -> float:
    """Gradients of the first stage on one device."""
    return sum(num_local_parameters(plan, plan.stages()[0])) * float(dtype_bytes(plan.gradient_dtype))


def inner_reduction_s(plan: Plan, cluster: ClusterSpec) -> float:
    """The part of T_dp between the copies within a node: 2 (k - 1) / k bytes over the node's links."""
    copies = copies_in_node(plan, cluster)
    rate = cluster.levels[0].group_bytes_per_s(copies)
    return 2 * (copies - 1) / copies * first_gradient_bytes(plan) / rate


def copies_in_node(plan: Plan, cluster: ClusterSpec) -> int:
    """Copies of one stage in a node; reducing between them first leaves each its part to reduce between nodes."""
    return cluster.levels[0].num_devices // plan.tp


def devices_of(plan: Plan, cluster: ClusterSpec, nodes: Sequence[int]) -> tuple[int, ...]:
    """Device numbers in mesh order (pp, dp, cp, tp): a node's devices are its copies of one stage, side by side."""
    size, num_pipelines = cluster.levels[0].num_devices, len(nodes) // plan.pp
    return tuple(
        nodes[pipeline * plan.pp + stage] * size + device
        for stage in range(plan.pp)
        for pipeline in range(num_pipelines)
        for device in range(size)
    )


MICROBATCH_SIZES = TENSOR_DEGREES = (1, 2, 4, 8)  # that the paper's code tries
# What is searched, or what T is of: 1F1B, one chunk a device, tensor parallelism inside.
DECIDED = (
    *("pp", "tp", "dp", "cp", "microbatch_size", "device_order", "mesh_order"),
    *("schedule", "num_chunks", "layers_per_stage"),
)
# Of Megatron-LM 2.5, on which the paper builds: gradients are reduced when all backwards are done.
DEFAULTS: dict[str, Any] = {"schedule": "1f1b", "dtype": "float16", "master_dtype": "float32", "overlap": ()}

Reduced = Literal["first", "all"]  # stages whose gradients T_dp looks at


@dataclass(frozen=True)
class Recommendation:
    """A plan that fits, by T; `device_order` of the plan is the placement.

    Attributes:
        latency_s: T of the plan.
        numbered_s: T of the same plan without a placement.
        nodes: that run the stages, pipeline by pipeline.
        needed_bytes: of the fullest device, at worst.
    """

    plan: Plan
    latency_s: float
    numbered_s: float
    nodes: Order
    needed_bytes: float


def pipette(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    seed: int = 0,
    reduced: Reduced = "all",
    **choices: Any,
) -> tuple[Recommendation, ...]:
    """Every configuration that fits, the fastest by T first, each with its nodes placed. Deterministic by `seed`.

    Args:
        cluster: its `links` are the measured rates between devices; the innermost level is the node.
        reduced: stages whose gradients T_dp looks at; the paper's are those of the "first".
        choices: further fields of Plan, such as recompute="full".

    Raises:
        PlanError: nothing divides, or `choices` name what is decided here.
        OutOfMemoryError: nothing fits; names the nearest misses.
    """
    found, rejected = [], []
    for plan in configurations(model, cluster, workload, **choices):
        missing = overflow(plan, cluster)
        if missing.excess_bytes > 0:
            rejected.append(missing)
        else:
            found.append(recommended(plan, cluster, missing.needed_bytes, seed, reduced))
    if not found and not rejected:
        raise PlanError(
            f"no configuration puts {model.num_layers} layers and a batch of {workload.global_batch} on {cluster.name}",
            allowed="stages that divide layers and nodes, tensor parallelism in a node, whole microbatches",
            next="change the batch or the number of nodes",
        )
    if not found:
        raise out_of_memory(rejected)
    return tuple(sorted(found, key=lambda each: (each.latency_s, each.needed_bytes)))


def planned(model: ModelSpec, cluster: ClusterSpec, workload: Workload, fix: Mapping[str, Any]) -> Proposal:
    """As a planner: every configuration that fits, its nodes placed, with what is fixed; and what placing is worth."""
    found = pipette(model, cluster, workload, **fix)
    return Proposal(tuple(each.plan for each in found), (_note(found[0]),))


def _note(best: Recommendation) -> str:
    """Where the best plan's pipelines are, and what that saves by the latency."""
    pp, saved_s = best.plan.pp, best.numbered_s - best.latency_s
    if saved_s <= 0:
        return (
            f"pipette's latency of its best plan is {format_seconds(best.latency_s)}, wherever its nodes are"
        )
    rows = (best.nodes[first : first + pp] for first in range(0, len(best.nodes), pp))
    pipelines = "; ".join("-".join(map(str, row)) for row in rows)
    return (
        f"pipette's latency of its best plan is {format_seconds(best.latency_s)}, {format_seconds(saved_s)} less than "
        f"without a placement; its pipelines run, first stage first, on nodes {pipelines}"
    )


def configurations(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, **choices: Any
) -> Iterator[Plan]:
    """The paper's space: stages divide layers and nodes, a tensor-parallel group lies in a node. Raises PlanError."""
    check_open(choices, DECIDED)
    size = cluster.levels[0].num_devices
    num_nodes = cluster.num_devices // size
    for pp, tp, microbatch in itertools.product(range(1, num_nodes + 1), TENSOR_DEGREES, MICROBATCH_SIZES):
        if num_nodes % pp or model.num_layers % pp or size % tp:
            continue
        if model.num_heads % tp or model.vocabulary_size % tp:
            continue
        dp = cluster.num_devices // (pp * tp)
        if workload.global_batch % (dp * microbatch) == 0:
            degrees = {"pp": pp, "tp": tp, "dp": dp, "microbatch_size": microbatch}
            yield Plan.of(model, cluster, workload, **{**_defaults(cluster), **choices, **degrees})


def _defaults(cluster: ClusterSpec) -> dict[str, Any]:
    """Megatron-LM's choices; without a dtype where the devices, such as processes of cores, do not compute in that one."""
    known = DEFAULTS["dtype"] in cluster.devices[0].flops_per_s
    return {name: value for name, value in DEFAULTS.items() if known or name != "dtype"}


def overflow(plan: Plan, cluster: ClusterSpec) -> Rejection:
    """What the fullest device needs at worst, driver and communicators included; `excess_bytes` above 0 overflows."""
    memory = estimate_memory(plan, cluster, registered()[plan.schedule])
    fullest = max(memory.devices, key=lambda device: device.upper_bytes + device.context_bytes)
    holders = tuple((what, int(size)) for what, size in fullest.holders)
    needed = fullest.upper_bytes + fullest.context_bytes
    return Rejection(plan, fullest.device, needed, cluster.memory_bytes, holders)


def recommended(
    plan: Plan, cluster: ClusterSpec, needed_bytes: float = 0.0, seed: int = 0, reduced: Reduced = "all"
) -> Recommendation:
    """A plan with its nodes placed by annealing, and T before and after."""
    cost = order_cost(plan, cluster, 1 if reduced == "first" else plan.pp)
    fixed_s, nodes = cost.compute_s + inner_reduction_s(plan, cluster), anneal(cost, seed=seed)
    latencies = [fixed_s + cost(order) for order in (nodes, cost.numbered)]
    placed = plan.changed(device_order=devices_of(plan, cluster, nodes))
    return Recommendation(placed, latencies[0], latencies[1], nodes, needed_bytes)


def pipette_s(
    pp: int, num_microbatches: int, compute_s: float, round_trip_s: float, reduction_s: float = 0.0
) -> float:
    """T as the paper writes it, of equal stages: `compute_s` is f + w, `round_trip_s` T_pp, `reduction_s` T_dp."""
    groups = num_microbatches / pp
    return groups * (pp * compute_s + round_trip_s) + (pp - 1) * compute_s + reduction_s


def amp_s(
    pp: int, num_microbatches: int, compute_s: float, round_trip_s: float, reduction_s: float = 0.0
) -> float:
    """Seconds of a step by AMP (arXiv 2210.07297), which the paper starts from: messages are paid once."""
    return (num_microbatches + pp - 1) * compute_s + round_trip_s + reduction_s
