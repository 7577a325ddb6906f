"""Runs behind the claims: what is recommended on clusters with unequal links, simulated with all pipelines, beside baselines.

The paper's clusters are 16 nodes of 8 V100 with EDR and of 8 A100 with HDR Infiniband (its repository's README). What their
links attain is not published; here every ordered pair of nodes attains a share of the nominal rate that is drawn by a seed.
"""

from __future__ import annotations

import itertools
import random
from functools import cache

from meshwright.costs.pricing import pricing_of
from meshwright.ir.timing.wiring import wire
from meshwright.lowering.place import place
from meshwright.prediction.step_program import period_s, step_program
from meshwright.simulator.pricing import price
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import Link
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import OutOfMemoryError, UnknownNameError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.mesh import data_axes, device_order
from meshwright.systems.planning.pipette.mechanism import (
    Recommendation,
    amp_s,
    configurations,
    inner_reduction_s,
    order_cost,
    overflow,
    pipette,
    recommended,
)

SLOW_SHARE = 0.1  # of the rate between nodes of one island, that two nodes of different islands attain
ISLAND_OF_NODE = (0, 1, 1, 0, 1, 0, 0, 1)  # nobody numbers nodes by island
LEAST_SHARE = 0.25  # of the nominal rate, that a drawn link attains
DRAWN_SEED = 7
KINDS = ("islands", "drawn")
JOB = ("llama-2-70b", 128, 2048, "16x8xA100-80")  # of the speed-ups: model, batch, tokens, cluster
BASELINES = ("amp", "varuna", "megatron")


def shares(kind: str, num_nodes: int) -> dict[tuple[int, int], float]:
    """Of the nominal rate, what ordered pairs of nodes attain. Raises UnknownNameError."""
    pairs = list(itertools.permutations(range(num_nodes), 2))
    if kind == "islands":
        island = [ISLAND_OF_NODE[node % len(ISLAND_OF_NODE)] for node in range(num_nodes)]
        return {(a, b): 1.0 if island[a] == island[b] else SLOW_SHARE for a, b in pairs}
    if kind == "drawn":
        generator = random.Random(DRAWN_SEED)
        return {pair: generator.uniform(LEAST_SHARE, 1.0) for pair in pairs}
    raise UnknownNameError("kind of links", kind, KINDS)


@cache
def uneven_cluster(name: str, kind: str) -> ClusterSpec:
    """A cluster whose nodes attain unequal shares of their nominal rate: a device reaches its counterparts elsewhere so."""
    even = Cluster(name)
    size, level = even.levels[0].num_devices, even.levels[-1]
    links = tuple(
        Link(f"device {a * size + n}", f"device {b * size + n}", share * level.bandwidth_bytes_per_s, level.latency_s)
        for (a, b), share in shares(kind, even.num_devices // size).items() if share < 1
        for n in range(size)
    )  # fmt: skip
    return ClusterSpec(f"{name} {kind}", even.devices, even.levels, links, even.assumptions, costs=even.costs)


def simulated_step_s(plan: Plan, cluster: ClusterSpec) -> float:
    """Predicted seconds of a step with every pipeline on its own links: `predict` stands on the first one only."""
    pricing, program = pricing_of(plan, cluster), step_program(plan, cluster).wiring.program
    for axis in program.axes:
        if axis.name in data_axes(plan):
            program = program.expand(axis.name)
    wiring, placement = wire(program), place(program, cluster, device_order(plan))
    prices = price(wiring, pricing.costs, pricing.costs, placement)
    return period_s(wiring, prices) + pricing.step_s


@cache
def first_recommended(model: str, batch: int, seq: int, cluster: str, links: str) -> Recommendation:
    """What Pipette recommends first for a job."""
    return pipette(load_model(model), uneven_cluster(cluster, links), Workload(batch, seq))[0]


@cache
def saved_s(model: str, batch: int, seq: int, cluster: str, links: str) -> float:
    """Seconds of a step that placing its nodes saves, simulated."""
    found, made = first_recommended(model, batch, seq, cluster, links), uneven_cluster(cluster, links)
    numbered = found.plan.changed(device_order=())
    return simulated_step_s(numbered, made) - simulated_step_s(found.plan, made)


def saving_ratio(model: str, batch: int, seq: int, cluster: str, links: str) -> float:
    """Seconds that placing saves: by the latency model over simulated."""
    found = first_recommended(model, batch, seq, cluster, links)
    return (found.numbered_s - found.latency_s) / saved_s(model, batch, seq, cluster, links)


def saving_counted_once(model: str, batch: int, seq: int, cluster: str, links: str) -> float:
    """The same by AMP's term: a round trip through the pipeline counts once a step."""
    found = first_recommended(model, batch, seq, cluster, links)
    cost = order_cost(found.plan, uneven_cluster(cluster, links), found.plan.pp)
    nodes = cost.numbered
    trips_s = cost.round_trip_s(nodes) - cost.round_trip_s(found.nodes)
    rings_s = cost.reduction_s(nodes) - cost.reduction_s(found.nodes)
    return (trips_s + rings_s) / saved_s(model, batch, seq, cluster, links)


@cache
def baseline(name: str, model: str, batch: int, seq: int, cluster: str, links: str) -> Plan:
    """What others run, nodes as they are numbered.

    "amp": the first by AMP's latency, which counts messages once and knows no memory, that can be run. "varuna": the same
    without tensor parallelism. "megatron": tensor parallelism over a node, the fewest stages that fit, and the microbatch
    that is fastest when tried.

    Raises UnknownNameError, OutOfMemoryError where none fits.
    """
    if name not in BASELINES:
        raise UnknownNameError("baseline", name, BASELINES)
    made = uneven_cluster(cluster, links)
    fitting = [
        plan
        for plan in configurations(load_model(model), made, Workload(batch, seq))
        if _is_of(name, plan, made) and overflow(plan, made).excess_bytes <= 0
    ]
    if not fitting:
        raise OutOfMemoryError(f"no plan of {name} fits {model} on {cluster}")
    if name == "megatron":
        least = min(plan.pp for plan in fitting)
        return min(
            (plan for plan in fitting if plan.pp == least), key=lambda plan: simulated_step_s(plan, made)
        )
    return min(fitting, key=lambda plan: _amp_s(plan, made))


def _is_of(name: str, plan: Plan, cluster: ClusterSpec) -> bool:
    """Is it in the baseline's space?"""
    node = cluster.levels[0].num_devices
    return plan.tp == {"amp": plan.tp, "varuna": 1, "megatron": node}[name]


def _amp_s(plan: Plan, cluster: ClusterSpec) -> float:
    """AMP's latency of a plan as its nodes are numbered."""
    cost = order_cost(plan, cluster)
    trip_s, ring_s = cost.round_trip_s(cost.numbered), cost.reduction_s(cost.numbered)
    inner_s = inner_reduction_s(plan, cluster)
    return amp_s(plan.pp, plan.num_microbatches, max(cost.stage_s), trip_s, ring_s + inner_s)


@cache
def speed_up(name: str, links: str) -> float:
    """Simulated step of a baseline over that of what Pipette recommends first, placed, for `JOB`."""
    plan, found, cluster = _both(name, links)
    return simulated_step_s(plan, cluster) / simulated_step_s(found.plan, cluster)


def speed_up_ratio(name: str, links: str) -> float:
    """The speed-up over a baseline: by the latency model over simulated."""
    plan, found, cluster = _both(name, links)
    return recommended(plan, cluster).numbered_s / found.latency_s / speed_up(name, links)


def same_speed(name: str, links: str) -> float:
    """The same of who says that no planner is faster than another."""
    return 1 / speed_up(name, links)


def _both(name: str, links: str) -> tuple[Plan, Recommendation, ClusterSpec]:
    """A baseline's plan for `JOB`, Pipette's first one, and where they run."""
    return baseline(name, *JOB, links), first_recommended(*JOB, links), uneven_cluster(JOB[-1], links)
