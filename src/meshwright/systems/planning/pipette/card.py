"""Chooses degrees and the nodes that run them by a latency model that pays messages once every p microbatches.

Paper:      Pipette: Automatic Fine-grained Large Language Model Training Configurator for Real-World Clusters,
            Jinkyu Yim, Jaeyong Song, Yerim Choi, Jaebeen Lee, Jaewon Jung, Hongsun Jang, Jinho Lee, 2024,
            arXiv 2405.18093
Problem:    Configurators assume equal links, count messages between stages once a step, and recommend what overflows.
Idea:       Under 1F1B a microbatch enters only when one comes back, so every p microbatches pay a round trip through the
            pipeline, the hidden critical path: T = m/p (p (f+w) + T_pp) + (p-1) (f+w) + T_dp, with p stages, m
            microbatches, f and w seconds of a stage forward and backward, and T_pp the sum of all hops both ways,
            2 (p-1) c where each takes c; AMP counts T_pp once. Every (p, tp, dp, microbatch size) that fits the memory
            is scored, and simulated annealing puts nodes where their measured links make T least.
Kind:       planner
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --planner pipette
Simulated:  1F1B with and without the latency of messages; steps of plans on unequal links, before and after
Executed:   no, because the nodes and links of a cluster are what it chooses
Differs:    1. Memory is bounded by the core's estimate at its worst, in place of the paper's learned estimator.
            2. f and w are the core's predicted kernels and tensor-parallel exchanges, in place of profiles.
            3. The latency is the paper's idea said of every run of n neighbouring stages instead of all p (pipeline_s): a run
            pays its own round trip every n microbatches, and the longest decides. Of equal stages and hops it is the
            paper's T and the round trip that fills and drains, which T leaves out: half of what messages add at m = p.
            By T as the paper has it stages with slack (no head) hide nothing and a slow hop is shared by p microbatches:
            of llama-3.1-70b on 8 nodes it says 4 to 16 times what placing saves, of one slow hop a third.
            4. Annealing ends after a number of proposals, not of seconds, so that a seed decides the result. It begins with
            the plan without a placement.
            5. T_dp looks at the gradients of all stages, each less what its stage is ahead of the first one; the paper's at
            the first one's (reduced="first"): that leaves other stages on slow links.
            6. Between nodes go the parts that a reduction within nodes leaves, and each device's share of an activation.
            7. The abstract has no number ("a significant speedup over the prior art"). Its link rates and profiles are not
            published, so the clusters are the paper's with rates that are drawn, or in two islands; what is claimed is the
            speed-up over its three baselines by the latency model against the simulated one.
            8. Baselines: AMP's ranking, nodes as numbered, the first that fits; Megatron-LM's rule, tensor parallelism over a
            node and the fewest stages that fit, the microbatch tried. Varuna's, without tensor parallelism, fits nowhere for
            the claimed job. The cluster of V100 is left out: no kernel of it was measured.
            9. Left out of what placing saves: llama-2-7b and llama-3.1-8b, 64 x 2048 on the islands (0.966 and 0.967 of what
            is simulated). Their first plans have two stages and sixteen copies; what is saved is of the rings of gradients,
            in which Pipette and AMP count alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.costs.pricing import pricing_of
from meshwright.ir.judge import metrics
from meshwright.ir.table import Work
from meshwright.lowering.textbook_pipeline import textbook_pipeline
from meshwright.prediction.step_program import step_program
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import UnknownNameError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.systems.planning.pipette.mechanism import (
    NodeOrderCost,
    amp_s,
    anneal,
    configurations,
    pipeline_s,
    pipette,
    pipette_s,
)
from meshwright.systems.planning.pipette.study import shares

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
        "source": "the paper's latency model",
        "cases": (
            ({"model": "pipette", "pp": 8, "num_microbatches": 24}, 4.2),
            ({"model": "amp", "pp": 8, "num_microbatches": 24}, 1.4),
        ),
    },
    {
        "claim": "the paper's increment over the simulated one, p={pp}, m={num_microbatches}, f+w=3, c=0.1",
        "kind": "identity",
        "unit": "x",
        "tolerance": 1e-9,
        "reason": "of equal stages and hops both are formulas: no c and no f+w is in their ratio",
        "how": "T's over simulated 1F1B's; paper_value is a / (a + 2 (p-2)) with a = 2 (p-1) m/p",
        "by": "increment_ratio",
        "source": "arithmetic on the paper's latency model",
        "cases": (
            ({"pp": 8, "num_microbatches": 24}, 0.7777777777777778),
            ({"pp": 8, "num_microbatches": 64}, 0.9032258064516129),
            ({"pp": 4, "num_microbatches": 64}, 0.96),
            ({"pp": 16, "num_microbatches": 128}, 0.8955223880597015),
        ),
    },
    {
        "claim": "the simulated increment over AMP's, which counts messages once, p={pp}, m={num_microbatches}",
        "kind": "identity",
        "unit": "x",
        "tolerance": 1e-9,
        "reason": "as above",
        "how": "as above; paper_value is (a + 2 (p-2)) / (2 (p-1))",
        "by": "increment_over_amp",
        "source": "arithmetic on 1F1B's order",
        "cases": (
            ({"pp": 8, "num_microbatches": 24}, 3.857142857142857),
            ({"pp": 8, "num_microbatches": 128}, 16.857142857142858),
        ),
    },
    {
        "claim": "what messages add to 1F1B with {stages}, {hops}, m={num_microbatches}: latency model over simulated",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.10,
        "reason": "the fill and drain are not told apart by hop",
        "how": "8 stages of f+w=3 but for the one named, hops of c=0.1 but for those named; simulated with and without "
        "messages; paper_value is a model that is right",
        "by": "unequal_ratio",
        "source": "1F1B simulated",
        "null": {"bytes over bandwidth": "unequal_ratio_of_amp"},
        "cases": (
            ({"stages": "equal stages", "hops": "equal hops", "num_microbatches": 8}, 1.0),
            ({"stages": "equal stages", "hops": "equal hops", "num_microbatches": 20}, 1.0),
            ({"stages": "equal stages", "hops": "a slow first hop", "num_microbatches": 64}, 1.0),
            ({"stages": "equal stages", "hops": "a slow middle hop", "num_microbatches": 64}, 1.0),
            ({"stages": "equal stages", "hops": "a slow last hop", "num_microbatches": 64}, 1.0),
            ({"stages": "a longer last stage", "hops": "equal hops", "num_microbatches": 64}, 1.0),
            ({"stages": "a longer last stage", "hops": "slow hops", "num_microbatches": 64}, 1.0),
            ({"stages": "a longer last stage", "hops": "a slow middle hop", "num_microbatches": 64}, 1.0),
            ({"stages": "a longer first stage", "hops": "slow hops", "num_microbatches": 64}, 1.0),
        ),
    },
    {
        "claim": "annealed over best order of 8 nodes in pipelines of {pp}, links {links}, seed {seed}",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 1e-9,
        "reason": "so few nodes that the best of all 40,320 orders is known and has to be found",
        "how": "seconds that links add, of the order that annealing finds over the least of all orders",
        "by": "annealed_over_best",
        "source": "all orders tried",
        "null": {"no effect": "numbered_over_best"},
        "cases": (
            ({"pp": 8, "links": "islands", "seed": 0}, 1.0),
            ({"pp": 4, "links": "islands", "seed": 1}, 1.0),
            ({"pp": 8, "links": "drawn", "seed": 0}, 1.0),
            ({"pp": 4, "links": "drawn", "seed": 1}, 1.0),
        ),
    },
    {
        "claim": "first plan for {model}, {batch} x {seq} on {cluster}, links {links}: what placing it saves, model over "
        "simulated",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "reductions by the slowest link where collectives are priced by more than that",
        "how": "what pipette() returns first, with its placement and without one, all pipelines simulated; paper_value is a "
        "model that is right. The nulls: placing saves nothing; AMP's term, a round trip counted once",
        "by": "study:saving_ratio",
        "source": "all pipelines simulated",
        "null": {"no effect": 0.0, "bytes over bandwidth": "study:saving_counted_once"},
        "cases": (
            (
                {
                    "model": "llama-2-70b",
                    "batch": 64,
                    "seq": 2048,
                    "cluster": "8x8xA100-80",
                    "links": "islands",
                },
                1.0,
            ),
            (
                {
                    "model": "llama-2-70b",
                    "batch": 256,
                    "seq": 4096,
                    "cluster": "8x8xA100-80",
                    "links": "islands",
                },
                1.0,
            ),
            (
                {
                    "model": "llama-2-13b",
                    "batch": 128,
                    "seq": 4096,
                    "cluster": "8x8xA100-80",
                    "links": "islands",
                },
                1.0,
            ),
            (
                {
                    "model": "llama-3.1-70b",
                    "batch": 64,
                    "seq": 2048,
                    "cluster": "8x8xA100-80",
                    "links": "islands",
                },
                1.0,
            ),
            (
                {
                    "model": "qwen3-32b",
                    "batch": 64,
                    "seq": 2048,
                    "cluster": "8x8xA100-80",
                    "links": "islands",
                },
                1.0,
            ),
            (
                {"model": "qwen3-32b", "batch": 64, "seq": 2048, "cluster": "8x8xA100-80", "links": "drawn"},
                1.0,
            ),
        ),
    },
    {
        "claim": "speed-up over {name} for llama-2-70b, 128 x 2048 on 16x8xA100-80, links {links}: model over simulated",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "steps of different degrees, whose exchanges inside stages differ",
        "how": "the baseline's plan as numbered and what pipette() returns first, placed; both simulated with all pipelines; "
        "paper_value is a model that is right, as the abstract has no number. The null: one is as fast as the other",
        "by": "study:speed_up_ratio",
        "source": "all pipelines simulated",
        "null": {"no effect": "study:same_speed"},
        "cases": (
            ({"name": "amp", "links": "drawn"}, 1.0),
            ({"name": "amp", "links": "islands"}, 1.0),
            ({"name": "megatron", "links": "drawn"}, 1.0),
        ),
    },
    {
        "claim": "recommended plans of {model} on {cluster} whose simulated step overflows",
        "kind": "predicted",
        "unit": "plans",
        "tolerance": 0.0,
        "reason": "one is too many: it cannot be run",
        "how": "peak of the program's own ledger of values, which the filter does not use, against the device's memory; the "
        "null: so many of all plans of the space",
        "by": "num_overflowing",
        "source": "abstract: existing methods recommend what cannot be executed",
        "null": {"no effect": "num_overflowing_unfiltered"},
        "cases": (({"model": "qwen3-8b", "cluster": "2x8xA100-40"}, 0.0),),
    },
)
# Of the claims: w = 2 f as everywhere, c small beside them; what is longer or slower than the others, and how much.
FORWARD_S, BACKWARD_S, HOP_S = 1.0, 2.0, 0.1
SHARES = {"F": FORWARD_S / (FORWARD_S + BACKWARD_S), "B": BACKWARD_S / (FORWARD_S + BACKWARD_S)}
LONG, SLOW = 1.05, 10.0
LONGER = {"equal stages": (), "a longer last stage": (7,), "a longer first stage": (0,)}
SLOWER = {
    "equal hops": (), "slow hops": range(7), "a slow first hop": (0,), "a slow middle hop": (3,), "a slow last hop": (6,),
}  # fmt: skip
# Of the orders: bytes of a message and of a stage's gradients, short stages that hide no message.
NUM_NODES, FAST_BYTES_PER_S, COMPUTE_S, NUM_MICROBATCHES = 8, 25e9, 1e-3, 8
MESSAGE_BYTES, GRADIENT_BYTES = 32e6, 256e6


def increment_s(model: str, pp: int, num_microbatches: int) -> float:
    """What messages add to a step by a model, "pipette" or "amp". Raises UnknownNameError."""
    models = {"pipette": pipette_s, "amp": amp_s}
    if model not in models:
        raise UnknownNameError("latency model", model, models)
    compute_s = FORWARD_S + BACKWARD_S
    with_messages = models[model](pp, num_microbatches, compute_s, 2 * (pp - 1) * HOP_S)
    return with_messages - models[model](pp, num_microbatches, compute_s, 0.0)


def simulated_s(stage_s: Sequence[float], hop_s: Sequence[float], num_microbatches: int) -> float:
    """Span of 1F1B on virtual time; `stage_s` is f + w of every stage, `hop_s` of every boundary there and back."""
    program = textbook_pipeline("1f1b", len(stage_s), num_microbatches)
    works = tuple(Work(f"{name} {stage}") for stage in range(len(stage_s)) for name in SHARES)
    effects = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    chosen = program.columns.stage * len(SHARES) + (effects == "B")
    seconds = {
        f"{name} {n}": share * stage_s[n] for n in range(len(stage_s)) for name, share in SHARES.items()
    }
    # a message of no seconds and some latency: links that nobody else uses
    costs = FixedCosts(
        seconds, exchange=lambda each: Cost(0.0, hop_s[min(each.ends or (0,))] / 2, compute_share=0.0)
    )
    made = program.with_tables(works=works).with_columns(work=chosen)
    return metrics.span_s(simulate_program(made, costs, costs))


@cache
def simulated_increment_s(pp: int, num_microbatches: int) -> float:
    """What messages of HOP_S add to the span of 1F1B with equal stages."""
    stages, hops = [FORWARD_S + BACKWARD_S] * pp, [2 * HOP_S] * (pp - 1)
    return _simulated_increment_s(stages, hops, num_microbatches)


def _simulated_increment_s(stages: Sequence[float], hops: Sequence[float], num_microbatches: int) -> float:
    without = simulated_s(stages, [0.0] * len(hops), num_microbatches)
    return simulated_s(stages, hops, num_microbatches) - without


def increment_ratio(pp: int, num_microbatches: int) -> float:
    """Pipette's increment over the simulated one."""
    return increment_s("pipette", pp, num_microbatches) / simulated_increment_s(pp, num_microbatches)


def increment_over_amp(pp: int, num_microbatches: int) -> float:
    """The simulated increment over AMP's."""
    return simulated_increment_s(pp, num_microbatches) / increment_s("amp", pp, num_microbatches)


def unequal_pipeline(stages: str, hops: str) -> tuple[list[float], list[float]]:
    """f + w of eight stages, and of every boundary there and back, as the claims name them. Raises UnknownNameError."""
    if stages not in LONGER or hops not in SLOWER:
        raise UnknownNameError("pipeline", f"{stages}, {hops}", [*LONGER, *SLOWER])
    stage_s, hop_s = [FORWARD_S + BACKWARD_S] * 8, [2 * HOP_S] * 7
    for place in LONGER[stages]:
        stage_s[place] *= LONG
    for place in SLOWER[hops]:
        hop_s[place] *= SLOW
    return stage_s, hop_s


def unequal_ratio(stages: str, hops: str, num_microbatches: int) -> float:
    """What messages add by the latency model, over what they add when simulated."""
    stage_s, hop_s = unequal_pipeline(stages, hops)
    without = pipeline_s(stage_s, [0.0] * len(hop_s), num_microbatches)
    added = pipeline_s(stage_s, hop_s, num_microbatches) - without
    return added / _simulated_increment_s(stage_s, hop_s, num_microbatches)


def unequal_ratio_of_amp(stages: str, hops: str, num_microbatches: int) -> float:
    """The same by AMP: one round trip."""
    stage_s, hop_s = unequal_pipeline(stages, hops)
    return sum(hop_s) / _simulated_increment_s(stage_s, hop_s, num_microbatches)


def order_costs(pp: int, links: str) -> NodeOrderCost:
    """The claims' eight nodes, as pipelines of so many."""
    drawn, numbers = shares(links, NUM_NODES), range(NUM_NODES)
    rates = tuple(
        tuple(drawn[a, b] * FAST_BYTES_PER_S if a != b else math.inf for b in numbers) for a in numbers
    )
    return NodeOrderCost(rates, (COMPUTE_S,) * pp, NUM_MICROBATCHES, MESSAGE_BYTES, GRADIENT_BYTES)


@cache
def best_of_orders_s(pp: int, links: str) -> float:
    """Of all orders of the nodes the least cost."""
    return min(map(order_costs(pp, links), itertools.permutations(range(NUM_NODES))))


def annealed_over_best(pp: int, links: str, seed: int) -> float:
    """Cost of the annealed order of the claims' nodes over the least of all orders."""
    cost = order_costs(pp, links)
    return cost(anneal(cost, seed=seed)) / best_of_orders_s(pp, links)


def numbered_over_best(pp: int, links: str, seed: int) -> float:
    """The same of nodes as they are numbered."""
    cost = order_costs(pp, links)
    return cost(cost.numbered) / best_of_orders_s(pp, links)


def num_overflowing(model: str, cluster: str) -> float:
    """Recommended plans whose program, simulated, holds more than a device has."""
    made = Cluster(cluster)
    found = pipette(load_model(model), made, Workload(32, 2048))
    return float(sum(ledger_bytes(each.plan, made) > made.memory_bytes for each in found))


def num_overflowing_unfiltered(model: str, cluster: str) -> float:
    """Plans of the space whose program holds more than a device has."""
    made = Cluster(cluster)
    plans = configurations(load_model(model), made, Workload(32, 2048))
    return float(sum(ledger_bytes(each, made) > made.memory_bytes for each in plans))


def ledger_bytes(plan: Plan, cluster: ClusterSpec) -> float:
    """Peak of the simulated program's values on its fullest device."""
    made, costs = step_program(plan, cluster), pricing_of(plan, cluster).costs
    return metrics.peak_bytes(simulate_program(made.wiring, costs, costs, placement=made.placement))
