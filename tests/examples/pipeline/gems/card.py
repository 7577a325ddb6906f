"""Two replicas of a pipeline in opposite directions, one microbatch at a time: the memory of one activation a device.

Paper:      GEMS: GPU-Enabled Memory-Aware Model-Parallelism System for Distributed DNN Training, Arpan Jain,
            Ammar Ahmad Awan, Asmaa M. Aljuhani et al., SC 2020, doi 10.1109/SC41405.2020.00049
Problem:    Large images (pathology slides) leave a device no memory for more than one sample's activations, and a pipeline
            of one sample idles all devices but one.
Idea:       Device d of p holds stage d of one replica and stage p - 1 - d of the other. The backward of a microbatch travels
            up to device 0, and right behind it the next one enters the other replica at device p - 1, so that its forward
            is hidden but for one stage. A pair of microbatches so takes 2 (F + p B), of which a device computes 2 (F + B):
            it idles for (p - 1) / (p + 1/2) of the time where B = 2 F, with one activation.
Kind:       schedule
Use:        meshwright plan MODEL CLUSTER --global-batch N --seq N --fix schedule=gems
Simulated:  any plan with pp
Executed:   any plan with pp on gloo, equal to one process
Differs:    1. Replicas take microbatches of one batch in turn, where the paper gives each replica a batch of its own.
            2. Its hybrid with data parallelism is dp of the plan.
            3. The idle share is derived from the order, not quoted: the paper measures throughput on a cluster.
"""

from __future__ import annotations

from meshwright.systems.pipeline.gems import mechanism as _registers  # noqa: F401

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.trace import Trace
from meshwright.lowering.order import program_of_orders, with_shares
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from meshwright.simulator.simulate import simulate_program

FILLS = {"schedule": "mechanism:gems"}
CLAIMS = (
    {
        "claim": "share of a device's time that is idle, {stages} stages",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.01,
        "reason": "derived for many microbatches; two hundred are simulated",
        "how": "simulated: backwards of twice a forward, no messages",
        "by": "bubble",
        "cases": (({"stages": 4}, 0.6666666666666666), ({"stages": 8}, 0.8235294117647058)),
    },
    {
        "claim": "activations that a device keeps, {stages} stages",
        "kind": "predicted",
        "unit": "activations",
        "tolerance": 0.0,
        "reason": "the memory that the paper is for",
        "how": "simulated, the most of any device",
        "by": "peak",
        "cases": (({"stages": 4}, 1), ({"stages": 8}, 1)),
    },
)
NUM_MICROBATCHES = 200  # beside so many the filling of the pipeline is none
FORWARD_S, HALF_BACKWARD_S = 1.0, 1.0


def step(stages: int) -> Trace:
    """A simulated step of many microbatches, backwards of twice a forward, free messages."""
    orders = registered()["gems"].orders(stages, NUM_MICROBATCHES)
    program = with_shares(Transfers()(program_of_orders(orders)), num_chunks=1)
    costs = FixedCosts.from_times(FORWARD_S, HALF_BACKWARD_S, HALF_BACKWARD_S, 0.0)
    return simulate_program(program, costs, costs)


def bubble(stages: int) -> float:
    """Idle share of the devices."""
    return metrics.bubble(step(stages))


def peak(stages: int) -> float:
    """Of the device that keeps the most."""
    return max(metrics.peak_alive(step(stages)))
