"""An optimizer with one tensor of state where Adam has two.

Paper:      Symbolic Discovery of Optimization Algorithms, Xiangning Chen, Chen Liang, Da Huang et al., 2023, arXiv 2302.06675
Problem:    Adam keeps two moments of every parameter, in more bytes than the parameters themselves.
Idea:       A program found by search: the sign of an interpolated momentum, with the decay of the weights beside it.
Kind:       optimizer
Use:        meshwright plan MODEL CLUSTER --global-batch N --seq N --fix optimizer=lion
Simulated:  any plan: state of one tensor, a step of five touches of every parameter
Executed:   any plan on gloo, equal to one process
Differs:    nothing of the update
"""

from __future__ import annotations

from meshwright.systems.memory.lion.mechanism import Lion

FILLS = {"optimizer": "mechanism:Lion"}
CLAIMS = (
    {
        "claim": "bytes of state of a parameter stepped in {dtype}",
        "kind": "identity",
        "unit": "bytes",
        "tolerance": 0.0,
        "reason": "one momentum, where Adam has two",
        "how": "state that the rule declares",
        "by": "state_bytes",
        "cases": (({"dtype": "float32"}, 4),),
    },
)


def state_bytes(dtype: str) -> int:
    """Of one parameter."""
    return Lion().kept_bytes(dtype)
