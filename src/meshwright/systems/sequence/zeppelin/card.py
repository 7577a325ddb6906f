"""Long sequences over nodes, shorter ones in a node, the rest on one rank; hops over all NICs; even tokens for linear layers.

Paper:      Zeppelin: Balancing Variable-length Workloads in Data Parallel Large Model Training, Chang Chen, Tiancheng Chen,
            Jiangfei Duan, Qianchao Zhu, Zerui Wang, Qinghao Hu, Peng Sun, Xiuhong Li, Chao Yang, Torsten Hoefler, 2025,
            arXiv 2509.21841
Problem:    One ring over all ranks sends what short sequences need not send, over one NIC of each node; what balances
            attention, whose work is a square, leaves linear layers uneven.
Idea:       Two thresholds, what a rank and what a node holds, or the length from which attention hides a ring, put sequences
            into three zones, which run from the outer to the inner. A hop of V bytes between nodes is handed out to the m
            devices of its node, sent over m NICs and gathered: V / (m NIC) + 2 (m - 1) / m V / node seconds for V / NIC.
            Before linear layers ranks with e_i = t_i - mean(t) > 0 tokens too many send these to ranks that lack some, of
            their own node first: sum max(e_i, 0) tokens, the least that any scheme moves; behind them all go back.
Kind:       packing
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --lengths LENGTHS --sequence-groups zeppelin;
            meshwright train PLAN --data TEXT --iterations STEPS --sequence-groups "zeppelin(tokens=8192)"
Simulated:  the routed hop, as rows on links of two nodes; steps of zones with such rates and with remapped tokens
Executed:   its zones train on gloo as any groups; a linear layer between two remappings by point to point messages, four
            processes, outside of training: programs of groups leave linear layers where attention is, and route no hops
Differs:    1. Written from the abstract; thresholds, order, route and remapping are as remembered of the paper, and not
            checked with it.
            2. In one round of pieces a hop over 8 NICs is 4.5 times as fast where a node's links are 18 times a NIC; in 8
            rounds that follow each other 7.3 times. The paper's way is not known; the steps here have 8.
            3. A round of the paper is one pass over the inputs of all zones; here each group is a microbatch of its own, one
            behind the other, and hides only what its own ring sends.
            4. The headline's job is not known: a 7B model, 4K tokens a device, 8 microbatches, nodes of 8 A100 with 200 Gb/s
            each, context of all devices, published tails of two data sets, one ring over all as the state of the art. The
            more devices, the more one ring loses: 2.5 to 5.9.
            5. Of groups that have their own microbatches remapping gains 1 % at most: zones are dealt out evenly already.
"""

from __future__ import annotations

import random

from meshwright.specs.cluster.source import Cluster
from meshwright.systems.sequence.zeppelin.remap import least_moved, remapped, tokens_after
from meshwright.systems.sequence.zeppelin.routed_hop import hop_seconds

FILLS = {"sequence_groups": "mechanism:Zeppelin"}
CLAIMS = (
    {
        "claim": "one step of a 7B model on tails of two data sets, 16 to 64 devices: mean speed-up over one ring",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off; nothing of the job is known",
        "how": "mean of six pairs of data set and devices, ten drawn steps each; computes fitted to a plan's prices",
        "by": "step:mean_speed_up",
        "source": "abstract: an average of 2.80x over state-of-the-art methods",
        "null": {"no effect": 1.0},
        "cases": (({}, 2.80),),
    },
    {
        "claim": "a hop over {num_nics} NICs in {rounds} rounds, node links of 18 NICs: seconds of one NIC over those",
        "kind": "identity",
        "unit": "x",
        "tolerance": 0.1,
        "reason": "what a device keeps is not handed out, which the formula counts",
        "how": "simulated rows on two nodes; paper_value is 1 / (1/m + (m-1)/m / 9 / n) in n rounds",
        "by": "hop_ratio",
        "source": "arithmetic on the route",
        "cases": (
            ({"num_nics": 8, "rounds": 1}, 4.5),
            ({"num_nics": 8, "rounds": 8}, 7.29113924050633),
            ({"num_nics": 4, "rounds": 1}, 3.0),
        ),
    },
    {
        "claim": "here, 4 processes: outputs of a linear layer between two remappings, largest difference to own tokens",
        "kind": "measured",
        "unit": "absolute",
        "tolerance": 0.0,
        "reason": "the way back is the inverse: every token meets the same numbers",
        "how": "uneven tokens of two nodes of two; every process has its even share in the layer",
        "by": "study:restored_difference",
        "source": "the mechanism: linear layers work token by token",
        "cases": (({}, 0.0),),
    },
    {
        "claim": "uneven tokens of {ranks} ranks: {what}",
        "kind": "identity",
        "unit": "tokens",
        "tolerance": 1e-9,
        "reason": "a bound is met or not",
        "how": "the most of a thousand drawn loads",
        "by": "most_of_loads",
        "source": "the problem's own arithmetic",
        "cases": (
            ({"ranks": 64, "what": "moved beyond all surpluses"}, 0.0),
            ({"ranks": 64, "what": "spread behind it"}, 1.0),
        ),
    },
)


def hop_ratio(num_nics: int, rounds: int) -> float:
    """Seconds of a hop of 128 MB over one NIC over those of so many."""
    cluster = Cluster("2x8xH100", nic="200Gb/s")  # 450 GB/s in a node, 25 GB/s a NIC
    direct_s, routed_s = (hop_seconds(cluster, 1.28e8, *way) for way in ((1, 1), (num_nics, rounds)))
    return direct_s / routed_s


def most_of_loads(ranks: int, what: str) -> float:
    """Of drawn tokens of ranks in nodes of eight: the most that is moved beyond the bound, or that ranks differ by then."""
    rng, found = random.Random(0), 0
    for _ in range(1000):
        tokens = [rng.randrange(rng.choice((1, 100, 10_000))) for _ in range(ranks)]
        moves = remapped(tokens, 8)
        after = tokens_after(tokens, moves)
        moved = sum(move.num_tokens for move in moves) - least_moved(tokens)
        found = max(found, max(after) - min(after) if what.startswith("spread") else moved)
    return float(found)
