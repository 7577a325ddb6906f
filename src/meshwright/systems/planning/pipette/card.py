"""Chooses degrees and the nodes that run them by a latency model that pays messages once every p microbatches.

Paper:      Pipette: Automatic Fine-grained Large Language Model Training Configurator for Real-World Clusters,
            Jinkyu Yim, Jaeyong Song, Yerim Choi, Jaebeen Lee, Jaewon Jung, Hongsun Jang, Jinho Lee, 2024,
            arXiv 2405.18093
Problem:    Configurators assume equal links, count messages between stages once a step, and recommend what overflows.
Idea:       Under 1F1B a microbatch enters only when one comes back, so every p microbatches pay a round trip through the
            pipeline, the hidden critical path: T = m/p (p (f+w) + T_pp) + (p-1) (f+w) + T_dp, with p stages, m
            microbatches, f and w seconds of a stage forward and backward, and T_pp the sum of all hops both ways,
            2 (p-1) c where each takes c; AMP counts T_pp once. Every (p, tp, dp, microbatch size) that fits the memory
            is scored, and simulated annealing puts nodes where their measured links make T_pp and T_dp least.
Kind:       planner
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --planner pipette
Simulated:  1F1B with and without the latency of messages; steps of plans on unequal links, before and after
Executed:   no, because the nodes and links of a cluster are what it chooses
Differs:    1. Memory is bounded by the core's estimate at its worst, in place of the paper's learned estimator.
            2. f and w are the core's predicted kernels and tensor-parallel exchanges, in place of profiles.
            3. m/p is not rounded down, which forgets a last group that is not full (so the authors' code).
            4. Annealing ends after a number of proposals, not of seconds, so that a seed decides the result. What it
            lowers is m/p T_pp + T_dp, as T has it.
            5. T_dp looks at the gradients of all stages, the paper's at the first one's (reduced="first"): among orders
            that are equal by that, some leave other stages on slow links.
            6. Between nodes go the parts that a reduction within nodes leaves, and each device's share of an activation.
            7. The paper's speed-ups are not claimed: its link rates and profiles are not published.
            8. Seen here: T leaves out the round trip that fills and drains the pipeline, half of what messages add at
            m = p; gives all stages the slowest's seconds, while the others' slack hides messages; and spreads a slow
            hop over p microbatches, though fewer share one near the last stage. With one pipeline on 8 nodes messages
            alone decide: llama-3.1-70b saves 0.02 s of T's 0.53 s, with equal stages 0.6 of it.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.costs.pricing import pricing_of
from meshwright.ir.judge import metrics
from meshwright.ir.timing.replay import wire
from meshwright.lowering.place import place
from meshwright.lowering.textbook_pipeline import textbook_pipeline
from meshwright.prediction.step_program import period_s, step_program
from meshwright.simulator.pricing import price
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import Link
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import UnknownNameError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.mesh import data_axes, device_order
from meshwright.systems.planning.pipette.mechanism import (
    DEFAULTS,
    NodeOrderCost,
    Recommendation,
    Reduced,
    amp_s,
    anneal,
    pipette,
    pipette_s,
    recommended,
)

# What a formula is compared with is the increment: the seconds that messages add to a step. Whole steps hide it.
FILLS = {"planner": "mechanism:planned"}
CLAIMS = (
    {
        "claim": "{model} adds to 1F1B with p={pp}, m={num_microbatches}, f+w=3, c=0.1",
        "kind": "identity",
        "unit": "s",
        "tolerance": 1e-9,
        "reason": "the formula's own arithmetic",
        "how": "T with messages less T without; paper_value is m/p 2 (p-1) c, and 2 (p-1) c for AMP",
        "by": "increment_s",
        "cases": (
            ({"model": "pipette", "pp": 8, "num_microbatches": 24}, 4.2),
            ({"model": "amp", "pp": 8, "num_microbatches": 24}, 1.4),
        ),
    },
    {
        "claim": "Pipette's increment over the simulated one, p={pp}, m={num_microbatches}, f+w=3, c=0.1",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "to first order: T leaves out one round trip of m/p + 1, a quarter of them at m = 3 p",
        "how": "1F1B simulated with and without messages of fixed latency; paper_value is a formula that is right",
        "by": "increment_ratio",
        "cases": (
            ({"pp": 8, "num_microbatches": 24}, 1.0),
            ({"pp": 8, "num_microbatches": 64}, 1.0),
            ({"pp": 4, "num_microbatches": 64}, 1.0),
            ({"pp": 16, "num_microbatches": 128}, 1.0),
        ),
    },
    {
        "claim": "the simulated increment over AMP's, which counts messages once, p={pp}, m={num_microbatches}",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "as above",
        "how": "as above; paper_value is m/p round trips of the hidden path and the one that AMP counts",
        "by": "increment_over_amp",
        "cases": (({"pp": 8, "num_microbatches": 24}, 4.0), ({"pp": 8, "num_microbatches": 128}, 17.0)),
    },
    {
        "claim": "annealed over best order of 8 nodes in pipelines of {pp}, links {links}, seed {seed}",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 1e-9,
        "reason": "so few nodes that the best of all 40,320 orders is known and has to be found",
        "how": "seconds that links add, of the order that annealing finds over the least of all orders",
        "by": "annealed_over_best",
        "cases": (
            ({"pp": 8, "links": "islands", "seed": 0}, 1.0),
            ({"pp": 4, "links": "islands", "seed": 1}, 1.0),
            ({"pp": 8, "links": "uneven", "seed": 0}, 1.0),
            ({"pp": 4, "links": "uneven", "seed": 1}, 1.0),
        ),
    },
    {
        "claim": "{model}, pp={pp}, tp={tp} on two islands: seconds that placing saves a step, simulated over T's",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "as for the increment",
        "how": "8x8 A100, a tenth of the rate between islands; nodes as numbered and as annealed, all pipelines "
        "simulated, of which there are several (one: see Differs); paper_value is a formula that is right",
        "by": "saving_ratio",
        "cases": (
            ({"model": "llama-3.1-70b", "pp": 4, "tp": 8}, 1.0),
            ({"model": "qwen3-32b", "pp": 4, "tp": 4}, 1.0),
            ({"model": "llama-3.1-8b", "pp": 2, "tp": 2}, 1.0),
        ),
    },
    {
        "claim": "recommended plans of {model} on {cluster} whose simulated step overflows",
        "kind": "predicted",
        "unit": "plans",
        "tolerance": 0.0,
        "reason": "one is too many: it cannot be run",
        "how": "peak of the program's own ledger of values, which the filter does not use, against the device's memory",
        "by": "num_overflowing",
        "cases": (({"model": "qwen3-8b", "cluster": "2x8xA100-40"}, 0.0),),
    },
)
# Of the claims: w = 2 f as everywhere, c small beside them; bytes of a message and of a stage's gradients.
FORWARD_S, BACKWARD_S, HOP_S = 1.0, 2.0, 0.1
MESSAGE_BYTES, GRADIENT_BYTES = 32e6, 256e6


def increment_s(model: str, pp: int, num_microbatches: int) -> float:
    """What messages add to a step by a model, "pipette" or "amp". Raises UnknownNameError."""
    models = {"pipette": pipette_s, "amp": amp_s}
    if model not in models:
        raise UnknownNameError("latency model", model, models)
    compute_s = FORWARD_S + BACKWARD_S
    with_messages = models[model](pp, num_microbatches, compute_s, 2 * (pp - 1) * HOP_S)
    return with_messages - models[model](pp, num_microbatches, compute_s, 0.0)


@cache
def simulated_increment_s(pp: int, num_microbatches: int) -> float:
    """What messages of HOP_S add to the span of 1F1B on virtual time."""
    program, spans = textbook_pipeline("1f1b", pp, num_microbatches), []
    for hop_s in (0.0, HOP_S):
        costs = FixedCosts.from_times(FORWARD_S, BACKWARD_S / 2, BACKWARD_S / 2, hop_s)
        spans.append(metrics.span_s(simulate_program(program, costs, costs)))
    return spans[1] - spans[0]


def increment_ratio(pp: int, num_microbatches: int) -> float:
    """Pipette's increment over the simulated one."""
    return increment_s("pipette", pp, num_microbatches) / simulated_increment_s(pp, num_microbatches)


def increment_over_amp(pp: int, num_microbatches: int) -> float:
    """The simulated increment over AMP's."""
    return simulated_increment_s(pp, num_microbatches) / increment_s("amp", pp, num_microbatches)


def annealed_over_best(pp: int, links: str, seed: int) -> float:
    """Cost of the annealed order of the claims' nodes over the least of all orders."""
    cost = NodeOrderCost(link_rates(links), pp, MESSAGE_BYTES, gradient_bytes=GRADIENT_BYTES)
    best_s = min(map(cost, itertools.permutations(range(NUM_NODES))))
    return cost(anneal(cost, seed=seed)) / best_s


def island_plan(model: str, pp: int, tp: int, reduced: Reduced = "all", **choices: Any) -> Recommendation:
    """A model in pipelines of `pp` nodes on the two islands, placed."""
    cluster, degrees = island_cluster(), {"pp": pp, "tp": tp}
    plan = Plan.of(load_model(model), cluster, Workload(256, 2048), **{**DEFAULTS, **choices, **degrees})
    return recommended(plan, cluster, reduced=reduced)


def saving_ratio(model: str, pp: int, tp: int, reduced: Reduced = "all", **choices: Any) -> float:
    """Seconds of a step that the placement saves: simulated over T's."""
    found, cluster = island_plan(model, pp, tp, reduced, **choices), island_cluster()
    before_s = simulated_step_s(found.plan.changed(device_order=()), cluster)
    return (before_s - simulated_step_s(found.plan, cluster)) / (found.numbered_s - found.latency_s)


def num_overflowing(model: str, cluster: str) -> float:
    """Recommended plans whose program, simulated, holds more than a device has."""
    made = Cluster(cluster)
    found = pipette(load_model(model), made, Workload(32, 2048))
    return float(sum(ledger_bytes(each.plan, made) > made.memory_bytes for each in found))


def ledger_bytes(plan: Plan, cluster: ClusterSpec) -> float:
    """Peak of the simulated program's values on its fullest device."""
    made, costs = step_program(plan, cluster), pricing_of(plan, cluster).costs
    return metrics.peak_bytes(simulate_program(made.wiring, costs, costs, placement=made.placement))


LINKS = ("islands", "uneven")
FAST_BYTES_PER_S, SLOW_BYTES_PER_S = 25e9, 2.5e9  # 200 Gb/s, and between islands a tenth
NUM_NODES, ISLAND_OF_NODE = 8, (0, 1, 1, 0, 1, 0, 0, 1)  # nobody numbers nodes by island
UNEVEN_SEED, UNEVEN_SPREAD = 7, 4.0  # rates of single links, from the fast one down to a quarter


def link_rates(links: str) -> tuple[tuple[float, ...], ...]:
    """Rates between the claims' nodes: two "islands", or "uneven" ones of any rate. Raises UnknownNameError."""
    if links not in LINKS:
        raise UnknownNameError("matrix of link rates", links, LINKS)
    slowdowns = UNEVEN_SPREAD ** np.random.default_rng(UNEVEN_SEED).random((NUM_NODES, NUM_NODES))
    rates = np.full((NUM_NODES, NUM_NODES), FAST_BYTES_PER_S)
    if links == "uneven":
        rates = rates / slowdowns
    else:
        island = np.array(ISLAND_OF_NODE)
        rates[island[:, None] != island] = SLOW_BYTES_PER_S
    np.fill_diagonal(rates, math.inf)
    return tuple(tuple(row) for row in rates.tolist())


@cache
def island_cluster() -> ClusterSpec:
    """Nodes of 8 A100 in two islands: a device reaches its counterparts in the other one at the slow rate."""
    even = Cluster(f"{NUM_NODES}x8xA100-80", nic=FAST_BYTES_PER_S)
    size, rates, latency_s = even.levels[0].num_devices, link_rates("islands"), even.levels[-1].latency_s
    links = tuple(
        Link(f"device {a * size + device}", f"device {b * size + device}", SLOW_BYTES_PER_S, latency_s)
        for a, b in itertools.permutations(range(NUM_NODES), 2)
        for device in range(size)
        if rates[a][b] == SLOW_BYTES_PER_S
    )
    return ClusterSpec("two islands", even.devices, even.levels, links, even.assumptions)


def simulated_step_s(plan: Plan, cluster: ClusterSpec) -> float:
    """Predicted seconds of a step with every pipeline on its own links: `predict` stands on the first one only."""
    pricing, program = pricing_of(plan, cluster), step_program(plan, cluster).wiring.program
    for axis in program.axes:
        if axis.name in data_axes(plan):
            program = program.expand(axis.name)
    wiring, placement = wire(program), place(program, cluster, device_order(plan))
    prices = price(wiring, pricing.costs, pricing.costs, placement)
    return period_s(wiring, prices) + pricing.step_s
