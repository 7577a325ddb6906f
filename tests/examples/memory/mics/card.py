"""Everything divided within a group of a few nodes, gradients summed over the groups once a step.

Paper:      MiCS: Near-linear Scaling for Training Gigantic Model on Public Cloud, Zhen Zhang, Shuai Zheng, Yida Wang et al.,
            2022, arXiv 2205.00119
Problem:    ZeRO-3 gathers and scatters over all devices, and the more these are, the slower every one of its collectives.
Idea:       Divide values, gradients and state within partition groups of p devices; hold N / p copies. A microbatch gathers
            and scatters within groups; sums go over the N / p copies of a part once a step (the paper's two hops).
Kind:       placement
Use:        meshwright plan MODEL CLUSTER --global-batch N --seq N --fix "sharding=mics(group=8)"
Simulated:  any plan: gathers and scatters along the innermost p devices of dp x cp, sums over the rest
Executed:   any plan on gloo, equal to one process
Differs:    1. Gathers within a group are one collective, not the paper's hierarchical one.
"""

from __future__ import annotations

from meshwright.systems.memory.mics.mechanism import Mics

FILLS = {"sharding": "mechanism:Mics"}
CLAIMS = (
    {
        "claim": "devices that share a copy of everything, groups of {group} of {everybody}",
        "kind": "identity",
        "unit": "devices",
        "tolerance": 0.0,
        "reason": "it is what is asked for",
        "how": "degrees of the sharding",
        "by": "group_of",
        "cases": (({"group": 8, "everybody": 64}, 8),),
    },
)


def group_of(group: int, everybody: int) -> int:
    """Devices that share state. Raises PlanError where groups do not divide all."""
    return Mics(group=group).degrees(everybody)[2]
