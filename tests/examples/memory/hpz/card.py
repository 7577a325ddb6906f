"""A copy of the weights in every node, so that only gradients and stepped weights pass between nodes.

Paper:      ZeRO++: Extremely Efficient Collective Communication for Giant Model Training, Guanhua Wang, Heyang Qin, Sam Ade
            Jacobs et al., 2023, arXiv 2306.10209
Problem:    ZeRO-3 sends a model of M bytes between nodes three times a microbatch: gathers for the forward and the backward,
            and the sum of gradients.
Idea:       hpZ keeps a second copy of the 2-byte weights within every node of g devices; the backward gathers from it: 2 M
            instead of 3 M between nodes, for 2 psi / g more bytes a device of psi parameters. Here the only copy is the one
            in the node: forward and backward gather from it, and it is refreshed from the divided state behind the step.
Kind:       placement
Use:        meshwright plan MODEL CLUSTER --global-batch N --seq N --fix "sharding=hpz(values=8)"
Simulated:  any plan: gathers over the innermost devices of dp x cp, sums over all
Executed:   any plan on gloo, equal to one process
Differs:    1. No first copy for the forward: its gather between nodes stands once behind the step, not in every forward. With
            one microbatch this is the paper's 2 M; with m it is (m + 1) M where the paper has 2 m M and ZeRO-3 3 m M.
            2. Forwards find weights in the node; the paper's forwards wait for links between nodes.
            3. qwZ and qgZ (8 and 4 bits on the way) are not here.
"""

from __future__ import annotations

from meshwright.prediction.predicted import predict
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

FILLS = {"sharding": "mechanism:Hpz"}
CLAIMS = (
    {
        "claim": "times that {sharding} sends all weights between {nodes} nodes, one microbatch",
        "kind": "predicted",
        "unit": "M",
        "tolerance": 0.02,
        "reason": "the last of 64 blocks is gathered once for its forward and backward",
        "how": "bytes of the exchanges of the plan's program that leave a node, over those of the parameters",
        "by": "sent_between_nodes",
        "cases": (({"sharding": "zero3", "nodes": 4}, 3.0), ({"sharding": "hpz(values=8)", "nodes": 4}, 2.0)),
    },
)
NODE = 8  # devices
OUTER = "dp"  # the axis of a program that leads out of a node: all of dp, or what is left of it by the values' own axis
NUM_LAYERS = 64


def sent_between_nodes(sharding: str, nodes: int) -> float:
    """Whole copies of the parameters that enter every node in a step; a collective that spans nodes brings in one."""
    model = ModelSpec.decoder(NUM_LAYERS, 128, 4, max_sequence_length=128)
    job, cluster = Workload(nodes * NODE, 128), Cluster(f"{nodes}x{NODE}xH100")
    plan = Plan.of(model, cluster, job, dtype="bfloat16", sharding=sharding)
    program = predict(plan, cluster).program
    bytes_of = [group.bytes for group in program.tables.groups]
    rows = [row for row in program.instructions(0) if row.exchange is not None and OUTER in row.exchange.axes]
    return sum(bytes_of[row.stage] for row in rows) / sum(bytes_of)
