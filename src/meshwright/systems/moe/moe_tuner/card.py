"""Experts in clusters of even load, and clusters on devices so that tokens stay: two integer programs before a run.

Paper:      MoETuner: Optimized Mixture of Expert Serving with Balanced Expert Placement and Token Routing, Seokjin Go, Divya
            Mahajan, 2025, arXiv 2502.06643
Problem:    Some experts get more tokens than others, so devices wait for the busiest and for the link that carries the most.
Idea:       Of profiled loads P[e, l] and moves R[e1, e2, l], first, layer by layer, experts are put into G clusters: min sum
            over clusters |load - mean|. Then clusters are put on devices, one of each layer on each, so that moves between
            devices cost least.
Kind:       placement
Use:        meshwright place ROUTING --devices 4 --by moe_tuner -o placed.experts.json; ROUTING is what `train
            --record-routing` kept of your model; then simulate PLAN --routing ROUTING, or train PLAN, with --expert-placement
            placed.experts.json
Simulated:  the step with the load of the busiest device, as a trace has it on documents that were not fitted to
Executed:   by training with the placement: gradients equal one process, rows that cross devices are counted
Differs:    1. Clusters have as many experts each (the paper: one at least, and as many over all layers together).
            2. The second program makes the sum of moves small, not the largest of all pairs; by default alternating
            assignment finds it, `program_s` gives it to HiGHS (the paper: Gurobi, tolerance 0.025). Nodes first, then
            devices.
            3. The model is Mixtral-8x7B on eight H100, as in the paper; what its tokens do is not published. Loads are those
            of the recorded trace (8 layers of 16 experts, trained for minutes without a loss that balances), so uneven
            that the claims are of another router. Moves are not in the price: an all-to-all costs what the busiest
            device gets.
            4. The paper serves, prefill and decode; the step here is of a training.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.prediction.predicted import predict
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.routing.expert_placement import GroupShape
from meshwright.systems.moe.moe_tuner.mechanism import MoeTuner
from meshwright.systems.moe.published_routing import tried

FILLS = {"expert_placement": "mechanism:MoeTuner"}
BATCH, SEQUENCE = 64, 4096  # of a step
DEVICES_OF_EXPERTS = 4  # of a group: the paper's 4EP
CLUSTER_S = 1.0  # for the first program of a layer: 16 experts on 4 devices take a tenth of it

CLAIMS = (
    {
        "claim": "Mixtral-8x7B, {cluster}, experts on 4 devices: share of the step that placement saves",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off; the routing is another model's",
        "how": "a step with the busiest device's load, neighbouring experts and placed ones, on documents not fitted to",
        "by": "step_saved",
        "source": "abstract: 9.3 % on one node, 17.5 % on several",
        "null": {"no effect": 0.0},
        "cases": (({"cluster": "8xH100", "tp": 2}, 0.093), ({"cluster": "2x8xH200", "tp": 4}, 0.175)),
    },
)


def step_saved(cluster: str, tp: int) -> float:
    """1 - step with placed experts / step with neighbouring ones."""
    placed, before, others = tried(MoeTuner(cluster_s=CLUSTER_S), GroupShape(DEVICES_OF_EXPERTS))
    seconds = [_step_s(cluster, tp, float(each.imbalances(others).mean())) for each in (placed, before)]
    return 1 - seconds[0] / seconds[1]


def _step_s(cluster: str, tp: int, expert_load: float) -> float:
    """Seconds of a training step whose busiest device has so many times an even share."""
    where = Cluster(cluster)
    plan = Plan.of(
        load_model("mixtral-8x7b"), where, Workload(BATCH, SEQUENCE), tp=tp, ep=DEVICES_OF_EXPERTS, dtype="bfloat16",
        sequence_parallel=True, sharding="zero1", recompute="full",
    )  # fmt: skip
    return predict(plan.changed(workload=replace(plan.workload, expert_load=expert_load)), where).step.value
