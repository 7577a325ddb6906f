"""run_traits: what a plan is, as numbers in which a doubling is a step of one: near ones are missed alike."""

from __future__ import annotations

import math

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import Plan

# The rest of what a stack does differently than expected goes with these (`reading.Reading.layout`).
TRAITS = (
    *("tp", "pp", "cp", "ep", "dp", "nodes", "num_microbatches", "microbatch_size", "parameters"),
    *("sequence_length", "num_chunks", "sharded", "recomputed", "float8"),
)
ALL = 2.0  # of what is sharded or recomputed; a part of it counts half
UNIT_PARAMETERS, UNIT_TOKENS = 1e9, 4096  # what is 0 on their axes; only differences count


def run_traits(plan: Plan, cluster: ClusterSpec) -> dict[str, float]:
    """The traits of a plan by name; binary logarithms of counts."""
    doublings = {
        "tp": plan.tp,
        "pp": plan.pp,
        "cp": plan.cp,
        "ep": plan.ep,
        "dp": plan.dp,
        "nodes": max(1.0, plan.num_devices / cluster.levels[0].num_devices),
        "num_microbatches": plan.num_microbatches,
        "microbatch_size": plan.microbatch_size,
        "parameters": plan.model.num_parameters / UNIT_PARAMETERS,
        "sequence_length": plan.workload.sequence_length / UNIT_TOKENS,
        "num_chunks": plan.num_chunks,
    }
    return {
        **{name: math.log2(count) for name, count in doublings.items()},
        "sharded": ALL if plan.shared.divides_values else ALL / 2 if plan.shared.divides_state else 0.0,
        "recomputed": {"none": 0.0, "full": ALL}.get(plan.recompute, ALL / 2),
        "float8": 1.0 if plan.float8 else 0.0,
    }
