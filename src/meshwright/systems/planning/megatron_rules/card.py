"""Degrees by Megatron-LM's rules of thumb: tensor parallelism within a node, then stages until it fits, the rest is data.

Paper:      Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, Deepak Narayanan,
            Mohammad Shoeybi, Jared Casper, Patrick LeGresley, Mostofa Patwary, Vijay Anand Korthikanti,
            Dmitri Vainbrand, Prethvi Kashinkunti, Julie Bernauer, Bryan Catanzaro, Amar Phanishayee, Matei Zaharia,
            2021, arXiv 2104.04473
Problem:    People choose degrees by hand, from a handful of rules that stand in papers and in a README.
Idea:       The least t p under which a device holds its part: t doubles up to the devices of a node, then p grows; d is
            what is left of the devices. The microbatch of b sequences is the one with the least (B'/b + (p - 1)/v) (t_f(b)
            + t_b(b)), B' being the sequences of a replica. Stages are cut into v chunks where p > 1 and p divides the
            microbatches; of the divisors of l/p layers v is the middle one. Optimizer states are sharded over d, the
            core of attention is recomputed, norms are split along t. Experts: no t, but as many expert-parallel devices
            of a node as divide them. Long sequences: context parallelism until a device keeps 8,192 tokens.
Kind:       planner
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --planner megatron_rules
Simulated:  t_f(b) + t_b(b), by predicted kernels and exchanges of the slowest stage; what fits, by the memory estimate
Executed:   no, because it chooses plans for GPUs; its plans for processes run here as any other
Differs:    1. Rules of three sources are one planner: degrees, interleaving and b of the paper; recompute of attention's
            core and split norms of arXiv 2205.05198; the optimizer's shards, experts, contexts and the middle v of
            Megatron-LM's README of mixture-of-experts.
            2. "Middle" is the lower of two middle divisors, but never 1. So the paper's 76B to 530B have their v; 1T, which
            the authors ran without chunks, gets 2: a miss. Their code of 2021 cut no fewer than three stages
            (megatron/arguments.py), so the claims cut none of 39B's two; today's does.
            3. What fits is decided at b = 1, as no rule says it, and at the upper end of our memory estimate: a job that
            fits if all goes well is no plan. Then only the b that fit are compared.
            4. The README wants contexts split from 8K tokens on, and names no degree; ours is the least that leaves
            8,192 tokens.
            5. Where selective recompute fits nowhere, all blocks are recomputed, and the ladder is climbed again.
            6. The claims take the paper's own set-up: float16, all blocks recomputed, nothing sharded, and what the
            authors' code kept beside that: a float32 copy of all gradients (megatron/optimizer/optimizer.py of May 2021,
            _copy_model_grads_to_main_grads; zero_grad leaves it in place), and where PyTorch's DistributedDataParallel
            reduces, its buckets (torch documents them at gradient_as_bucket_view). Without the copies, or at the expected
            peak alone, t p of most rows is half of the paper's. Users' plans count neither copy: Megatron-LM has none today.
            7. The paper writes b's rule for a pipeline without chunks, and (p - 1)/(v m) for the idle time of one with them.
            Both are taken together, as the plan has its chunks: without v 145.6B would get one sequence for the paper's two.
"""

from __future__ import annotations

import math
from functools import cache

from meshwright.prediction.memory_estimate import DeviceMemory
from meshwright.specs.plan.plan import Plan
from meshwright.systems import megatron_table
from meshwright.systems.planning.megatron_rules.mechanism import Beside, ladder, plan_of

PAPER = {"recompute": "full", "sharding": "none", "sequence_parallel": False}  # what the rows of Table 1 had
FILLS = {"planner": "mechanism:planned"}
CLAIMS = (
    {
        "claim": "devices t p of a replica of {size}",
        "kind": "predicted",
        "unit": "devices",
        "tolerance": 1e-9,
        "reason": "whole numbers are equal or not",
        "how": "the ladder climbed with the paper's formats, recompute, unsharded states, and its code's copies of gradients",
        "by": "replica_devices",
        "source": "Table 1",
        "null": {"nearest published row": "nearest_replica", "bytes over bandwidth": "states_alone"},
        "cases": (
            ({"size": "1.7B"}, 1),
            ({"size": "3.6B"}, 2),
            ({"size": "7.5B"}, 4),
            ({"size": "18.4B"}, 8),
            ({"size": "39.1B"}, 16),
            ({"size": "76.1B"}, 32),
            ({"size": "145.6B"}, 64),
            ({"size": "310.1B"}, 128),
            ({"size": "529.6B"}, 280),
            ({"size": "1008.0B"}, 512),
        ),
    },
    {
        "claim": "tensor-parallel degree of {size}: the least of t p and the devices of a node",
        "kind": "identity",
        "unit": "devices",
        "tolerance": 1e-9,
        "reason": "whole numbers are equal or not",
        "how": "t of the ladder's rung that has the paper's t p",
        "by": "tensor_degree",
        "source": "Table 1; the rule is takeaway 1 of section 3",
        "cases": (
            ({"size": "1.7B"}, 1),
            ({"size": "3.6B"}, 2),
            ({"size": "7.5B"}, 4),
            ({"size": "18.4B"}, 8),
            ({"size": "39.1B"}, 8),
            ({"size": "76.1B"}, 8),
            ({"size": "145.6B"}, 8),
            ({"size": "310.1B"}, 8),
            ({"size": "529.6B"}, 8),
            ({"size": "1008.0B"}, 8),
        ),
    },
    {
        "claim": "sequences of a microbatch of {size}",
        "kind": "predicted",
        "unit": "sequences",
        "tolerance": 1e-9,
        "reason": "powers of two are equal or not",
        "how": "the closed form over predicted passes, on the degrees of the rules and with their chunks, of those that fit",
        "by": "microbatch_size",
        "source": "run_table_1.sh of the authors' repository",
        "null": {"nearest published row": "nearest_microbatch"},
        "cases": (
            ({"size": "1.7B"}, 16),
            ({"size": "3.6B"}, 16),
            ({"size": "7.5B"}, 16),
            ({"size": "18.4B"}, 8),
            ({"size": "39.1B"}, 4),
            ({"size": "76.1B"}, 2),
            ({"size": "145.6B"}, 2),
            ({"size": "310.1B"}, 1),
            ({"size": "529.6B"}, 1),
            ({"size": "1008.0B"}, 1),
        ),
    },
    {
        "claim": "chunks of a device of {size}",
        "kind": "predicted",
        "unit": "chunks",
        "tolerance": 1e-9,
        "reason": "whole numbers are equal or not",
        "how": "the middle divisor of a stage's layers in the plan of the rules; rows with stages",
        "by": "num_chunks",
        "source": "run_table_1.sh of the authors' repository; the rule is of Megatron-LM's later README",
        "null": {"no effect": 1.0, "nearest published row": "nearest_chunks"},
        "cases": (
            ({"size": "39.1B"}, 1),
            ({"size": "76.1B"}, 3),
            ({"size": "145.6B"}, 2),
            ({"size": "310.1B"}, 2),
            ({"size": "529.6B"}, 3),
            ({"size": "1008.0B"}, 1),
        ),
    },
)
STATE_BYTES = 16  # of a parameter: float16 with its gradient, float32 copy, two moments
LEAST_STAGES = 3  # that the authors' code of 2021 cuts into chunks (megatron/arguments.py, March 2021)
MAIN_GRADIENTS = 2  # a float32 copy of float16 gradients, in bytes of those


def replica_devices(size: str) -> int:
    """t p that the rules give a row of the paper. Raises UnknownNameError."""
    plan = _paper_plan(size)
    return plan.tp * plan.pp


def tensor_degree(size: str) -> int:
    """t of the rung that has as many devices as the row's replica. Raises UnknownNameError."""
    this, (published, cluster) = megatron_table.row(size), megatron_table.plan(size)
    rungs = ladder(published.model, cluster, published.workload)
    return next(rung["tp"] for rung in rungs if rung["tp"] * rung["pp"] == this.tp * this.pp)


def microbatch_size(size: str) -> int:
    """b that the rules give a row of the paper. Raises UnknownNameError."""
    return _paper_plan(size).microbatch_size


def num_chunks(size: str) -> int:
    """v that the rules give a row of the paper. Raises UnknownNameError."""
    return _paper_plan(size).num_chunks


def nearest_replica(size: str) -> int:
    """t p of the paper's nearest other row: a null."""
    other = megatron_table.nearest(size)
    return other.tp * other.pp


def nearest_microbatch(size: str) -> int:
    """b of the paper's nearest other row: a null."""
    return megatron_table.nearest(size).microbatch_size


def nearest_chunks(size: str) -> int:
    """v of the paper's nearest other row: a null."""
    return megatron_table.nearest(size).num_chunks


def states_alone(size: str) -> int:
    """The least power of two whose memories hold the states of all parameters: a null."""
    published, cluster = megatron_table.plan(size)
    share = STATE_BYTES * published.model.num_parameters / cluster.memory_bytes
    return 1 << max(0, math.ceil(math.log2(share)))


@cache
def _paper_plan(size: str) -> Plan:
    """The rules on a row of Table 1, with the formats and the software of its run."""
    published, cluster = megatron_table.plan(size)
    kept = ("dtype", "master_dtype", "reduction_dtype", "attention", "software", "overlap")
    formats = {name: getattr(published, name) for name in kept}
    beside = copies_of_gradients(megatron_table.row(size).has_torch_ddp)
    return plan_of(
        published.model,
        cluster,
        published.workload,
        beside=beside,
        least_stages=LEAST_STAGES,
        **formats,
        **PAPER,
    )


def copies_of_gradients(has_torch_ddp: bool) -> Beside:
    """What the authors' code held beside the gradients: a float32 copy, and the buckets that torch reduces."""
    copies = MAIN_GRADIENTS + has_torch_ddp

    def beside(memory: DeviceMemory) -> float:
        return copies * dict(memory.holders).get("gradients", 0.0)

    return beside
