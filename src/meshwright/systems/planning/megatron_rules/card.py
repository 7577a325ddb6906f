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

from collections.abc import Iterator
from functools import cache
from typing import Any

from meshwright.prediction.memory_limit import Rejection, checked_memory, out_of_memory
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.operator.layer import local_sizes
from meshwright.systems.pipeline.megatron_lm import card as megatron_lm
from meshwright.systems.planning.placed_step import microbatch_s

PAPER = {"recompute": "full", "sharding": "none", "sequence_parallel": False}  # what the rows of Table 1 had
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
        "by": "num_chunks",
        "cases": (
            ({"num_layers": 15}, 3),
            ({"num_layers": 10}, 2),
            ({"num_layers": 6}, 2),
            ({"num_layers": 3}, 3),
        ),
    },
)
MICROBATCH_SIZES = (1, 2, 4, 8, 16)  # sequences; the paper's figure on microbatches ends at 16
CONTEXT_TOKENS = (
    8192  # README of megatron/core/transformer/moe, guideline 5: contexts are split from 8K tokens on
)
RECOMPUTES = ("selective", "full")  # the cheaper one first
DECIDED = ("tp", "pp", "dp", "cp", "ep", "num_chunks", "microbatch_size", "schedule", "layers_per_stage")


def plan_of(model: ModelSpec, cluster: ClusterSpec, workload: Workload, **choices: Any) -> Plan:
    """The plan that the rules give. Deterministic.

    Args:
        cluster: GPUs; its innermost level is the node.
        choices: further fields of a plan, such as dtype; recompute and sharding, where given, replace the rule's.

    Raises:
        PlanError: nothing divides, or `choices` name what is decided here.
        OutOfMemoryError: nothing on the ladder fits; names the nearest misses.
    """
    taken = [name for name in choices if name in DECIDED]
    if taken:
        raise PlanError(f"{', '.join(taken)} is decided here", allowed="other fields of a plan")
    rejected: list[Rejection] = []
    for recompute in (choices["recompute"],) if "recompute" in choices else RECOMPUTES:
        for degrees in ladder(model, cluster, workload):
            plan = _rung(model, cluster, workload, degrees, {**choices, "recompute": recompute})
            missed = _missed(plan, cluster)
            if missed is None:
                return interleaved(with_microbatch(plan, cluster), cluster)
            rejected.append(missed)
    if not rejected:
        raise PlanError(
            f"no rung of the ladder divides {cluster.num_devices} devices and a batch of {workload.global_batch}",
            allowed="t that divides a node, p that divides the layers, d that divides the batch",
            next="change the batch or the number of devices",
        )
    raise out_of_memory(rejected)


def ladder(model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> Iterator[dict[str, int]]:
    """Degrees to try in their order: t up to the node, then p, first those that divide the layers."""
    node, devices = min(cluster.levels[0].num_devices, cluster.num_devices), cluster.num_devices
    cp = context_degree(workload.sequence_length, node)
    tensor = _tensor_degrees(model, node // cp)
    stages = [p for p in range(1, min(model.num_layers, devices) + 1) if devices % p == 0]
    ordered = [p for p in stages if model.num_layers % p == 0] + [p for p in stages if model.num_layers % p]
    for tp, pp in [(t, 1) for t in tensor[:-1]] + [(tensor[-1], p) for p in ordered]:
        dp, rest = divmod(devices, tp * pp * cp)
        if rest == 0 and workload.global_batch % dp == 0:
            yield {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": expert_degree(model, dp * cp, node)}


def context_degree(sequence_length: int, most: int) -> int:
    """The least power of two that leaves a device 8,192 tokens or fewer, within a node."""
    degree = 1
    while (
        sequence_length // degree > CONTEXT_TOKENS and sequence_length % (2 * degree) == 0 and degree < most
    ):
        degree *= 2
    return degree


def expert_degree(model: ModelSpec, num_copies: int, node: int) -> int:
    """As many devices of a node as divide the experts and the copies of a stage; 1 for a dense model."""
    if not model.num_experts:
        return 1
    return max(n for n in range(1, node + 1) if model.num_experts % n == 0 and num_copies % n == 0)


def num_chunks(num_layers: int) -> int:
    """Chunks of a stage of so many layers: the lower middle of their divisors, but more than 1 where there are more."""
    divisors = [n for n in range(1, num_layers + 1) if num_layers % n == 0]
    return divisors[max((len(divisors) - 1) // 2, min(1, len(divisors) - 1))]


def with_microbatch(plan: Plan, cluster: ClusterSpec) -> Plan:
    """The plan with the microbatch that the paper's closed form makes fastest, of those that fit."""
    share = plan.workload.global_batch // plan.dp
    tried = [plan.changed(microbatch_size=size) for size in MICROBATCH_SIZES if share % size == 0]
    fitting = [each for each in tried if each == plan or _missed(each, cluster) is None]
    return min(fitting, key=lambda each: closed_form_s(each, cluster))


def closed_form_s(plan: Plan, cluster: ClusterSpec) -> float:
    """(B'/b + p - 1) (t_f(b) + t_b(b)): seconds of the microbatches of a step, without gradients and optimizer."""
    return (plan.num_microbatches + plan.pp - 1) * microbatch_s(plan, cluster)


def interleaved(plan: Plan, cluster: ClusterSpec) -> Plan:
    """The plan with chunks where the schedule allows it (p divides the microbatches) and its memory fits."""
    if plan.pp == 1 or plan.num_microbatches % plan.pp or plan.model.num_layers % plan.pp:
        return plan
    layers = plan.model.num_layers // plan.pp
    chunks = num_chunks(layers)
    if chunks == 1:
        return plan
    stages = (layers // chunks,) * (plan.pp * chunks)
    made = plan.changed(schedule="interleaved_1f1b", num_chunks=chunks, layers_per_stage=stages)
    return plan if _missed(made, cluster) is not None else made


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
    published, cluster = megatron_lm.plan(size)
    kept = ("dtype", "master_dtype", "reduction_dtype", "attention", "software", "overlap")
    formats = {name: getattr(published, name) for name in kept}
    return plan_of(published.model, cluster, published.workload, **formats, **PAPER)


def _tensor_degrees(model: ModelSpec, most: int) -> list[int]:
    """Powers of two within a node that divide what is split; experts go without."""
    found, degree = [1], 2
    while not model.num_experts and degree <= most:
        try:
            local_sizes(model, degree)
        except PlanError:
            break
        found.append(degree)
        degree *= 2
    return found


def _rung(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    degrees: dict[str, int],
    choices: dict[str, Any],
) -> Plan:
    """A rung as a plan with microbatches of one sequence and no chunks."""
    usual = {
        "sharding": "zero1" if degrees["dp"] * degrees["cp"] > 1 else "none",
        "sequence_parallel": degrees["tp"] > 1,
    }
    return Plan.of(model, cluster, workload, schedule="1f1b", **{**usual, **choices, **degrees})


def _missed(plan: Plan, cluster: ClusterSpec) -> Rejection | None:
    """Why the plan does not fit, or None."""
    return checked_memory(plan, cluster, cluster.memory_bytes)[1]
