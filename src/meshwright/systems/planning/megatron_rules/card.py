"""Degrees by Megatron-LM's rules of thumb: tensor parallelism within a node, then stages until it fits, the rest is data.

Paper:      Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, Deepak Narayanan,
            Mohammad Shoeybi, Jared Casper, Patrick LeGresley, Mostofa Patwary, Vijay Anand Korthikanti,
            Dmitri Vainbrand, Prethvi Kashinkunti, Julie Bernauer, Bryan Catanzaro, Amar Phanishayee, Matei Zaharia,
            2021, arXiv 2104.04473
Problem:    People choose degrees by hand, from a handful of rules that stand in papers and in a README.
Idea:       The least t p under which a device holds its part: t doubles up to the devices of a node, then p grows; d is
            what is left of the devices. The microbatch of b sequences is the one with the least (B'/b + p - 1) (t_f(b) +
            t_b(b)), B' being the sequences of a replica. Stages are cut into v chunks where p > 1 and p divides the
            microbatches; of the divisors of l/p layers v is the middle one. Optimizer states are sharded over d, the
            core of attention is recomputed, norms are split along t. Experts: no t, but as many expert-parallel devices
            of a node as divide them. Long sequences: context parallelism until a device keeps 8,192 tokens.
Kind:       planner
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --planner megatron_rules
Simulated:  t_f(b) + t_b(b), by predicted kernels and exchanges of the slowest stage; what fits, by the memory estimate
Executed:   no, because it chooses plans for GPUs; a plan of pp and dp alone runs here as any other
Differs:    1. Rules of three sources are one planner: degrees, interleaving and b of the paper; recompute of attention's
            core and split norms of arXiv 2205.05198; the optimizer's shards, experts, contexts and the middle v of
            Megatron-LM's README of mixture-of-experts.
            2. "Middle" is the lower of two middle divisors, but never 1. So the paper's 76B to 530B have their v; 39B
            and 1T, which the authors ran without chunks, would have 4 and 2.
            3. What fits is decided at b = 1, as no rule says it; then only the b that fit are compared.
            4. The README wants contexts split from 8K tokens on, and names no degree; ours is the least that leaves
            8,192 tokens.
            5. Where selective recompute fits nowhere, all blocks are recomputed, and the ladder is climbed again.
            6. The claims take the paper's own set-up: float16, all blocks recomputed, nothing sharded. The authors left more
            room than our estimate asks for: often twice the t p. For 529.6B, which is not claimed, they had 280 devices
            a replica, and the ladder ends at fewer than half. Microbatches of some rows are half of theirs.
"""

from __future__ import annotations

from functools import cache

from meshwright.specs.plan.plan import Plan
from meshwright.systems import megatron_table
from meshwright.systems.planning.megatron_rules.mechanism import plan_of

PAPER = {"recompute": "full", "sharding": "none", "sequence_parallel": False}  # what the rows of Table 1 had
FILLS = {"planner": "mechanism:planned"}
CLAIMS = (
    {
        "claim": "devices t p of a replica of {size}",
        "kind": "predicted",
        "unit": "devices",
        "tolerance": 0.5,
        "reason": "half of the paper's is one rung lower; no rule says how much room to leave",
        "how": "the ladder climbed with the paper's formats, recompute and unsharded states; paper_value is t p of Table 1",
        "by": "replica_devices",
        "cases": (
            ({"size": "1.7B"}, 1),
            ({"size": "7.5B"}, 4),
            ({"size": "39.1B"}, 16),
            ({"size": "145.6B"}, 64),
        ),
    },
    {
        "claim": "tensor-parallel degree of {size}",
        "kind": "predicted",
        "unit": "devices",
        "tolerance": 0.5,
        "reason": "one rung of the ladder, as above",
        "how": "as above; from 39.1B on the degree is a whole node",
        "by": "tensor_degree",
        "cases": (
            ({"size": "1.7B"}, 1),
            ({"size": "7.5B"}, 4),
            ({"size": "39.1B"}, 8),
            ({"size": "145.6B"}, 8),
            ({"size": "529.6B"}, 8),
        ),
    },
    {
        "claim": "sequences of a microbatch of {size}",
        "kind": "predicted",
        "unit": "sequences",
        "tolerance": 0.5,
        "reason": "powers of two: half and the same pass, a quarter and twice do not",
        "how": "the closed form over predicted passes, on the degrees of the rules; paper_value is that of run_table_1.sh",
        "by": "microbatch_size",
        "cases": (
            ({"size": "1.7B"}, 16),
            ({"size": "7.5B"}, 16),
            ({"size": "39.1B"}, 4),
            ({"size": "145.6B"}, 2),
            ({"size": "529.6B"}, 1),
        ),
    },
    {
        "claim": "chunks of a device with {num_layers} layers a stage",
        "kind": "identity",
        "unit": "chunks",
        "tolerance": 1e-9,
        "reason": "whole numbers are equal or not",
        "how": "the middle divisor; paper_value is v of 76B, 145B, 310B and 530B in the paper's script run_table_1.sh",
        "by": "mechanism:num_chunks",
        "cases": (
            ({"num_layers": 15}, 3),
            ({"num_layers": 10}, 2),
            ({"num_layers": 6}, 2),
            ({"num_layers": 3}, 3),
        ),
    },
)


def replica_devices(size: str) -> int:
    """t p that the rules give a row of the paper. Raises UnknownNameError."""
    plan = _paper_plan(size)
    return plan.tp * plan.pp


def tensor_degree(size: str) -> int:
    """t that the rules give a row of the paper. Raises UnknownNameError."""
    return _paper_plan(size).tp


def microbatch_size(size: str) -> int:
    """b that the rules give a row of the paper. Raises UnknownNameError."""
    return _paper_plan(size).microbatch_size


@cache
def _paper_plan(size: str) -> Plan:
    """The rules on a row of Table 1, with the formats and the software of its run."""
    published, cluster = megatron_table.plan(size)
    kept = ("dtype", "master_dtype", "reduction_dtype", "attention", "software", "overlap")
    formats = {name: getattr(published, name) for name in kept}
    return plan_of(published.model, cluster, published.workload, **formats, **PAPER)
