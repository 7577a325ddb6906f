"""Experts sharded whole, and in every step copies of the busy ones where memory and time allow: less waiting for the busiest.

Paper:      Hecate: Unlocking Efficient Sparse Model Training via Fully Sharded Sparse Data Parallelism, Yuhao Qing, Guichao
            Zhu, Fanxin Li, Lintian Lei, Zekai Sun, Xiuxian Guan, Shixiong Zhao, Xusheng Chen, Dong Huang, Sen Wang, Heming
            Cui, 2025, arXiv 2502.02581
Problem:    Tokens choose few experts, so devices that have busy ones compute while all others wait.
Idea:       Every expert has one owner, with its optimizer's state. Before a layer an all-gather of some experts (spAG)
            makes copies of the busiest t, by the mean load of five iterations; behind its backward a reduce-scatter (spRS)
            adds their gradients at the owners. t = (seconds that are not experts') x (bytes/s) / (bytes of an expert), so
            copies come for nothing. Every 100 iterations owners change: what is not copied is spread by load over nodes and
            devices. spAG and spRS each move sum over experts of (copies - 1) x bytes of one; a device receives at most
            lambda x S of a layer's S bytes, lambda the share of experts that are copied.
Kind:       placement
Use:        meshwright run 'hecate(routing="ROUTING", devices=4, overlap=4)'; ROUTING is what `train --record-routing` kept of
            your model; or loads="loads.csv", a line of tokens by expert for each layer: max over mean before and behind,
            bytes, and owners and copies by --json. Owners as a file: meshwright place ROUTING --devices 4 --by hecate -o
            placed.experts.json, then simulate PLAN --routing ROUTING, or train PLAN, with --expert-placement
            placed.experts.json; with copies, --by 'hecate(overlap=4)', simulate only
Simulated:  loads of devices by where copies are; seconds of a step by compute and by what nodes send (card.py), no contention
Executed:   owners, by training with a placement: gradients equal one process. Copies: steps of a layer on four gloo
            processes, float64: copies drawn anew in every step, tokens sent to those who have copies, gradients of all
            copies (also those without tokens) home to owners, Adam there; against one process. It is a layer of its own:
            `train` has no copies
Differs:    1. spAG and spRS are messages, expert by expert in one order on all ranks; the paper has NCCL groups of
            Broadcast and Reduce.
            2. Once a layer for forward and backward (the paper may free copies and gather again: -RM).
            3. Copies beyond memory: each expert's share of places is rounded; the paper says "by load".
            4. No calibration behind the gate: copies follow the mean of five loads only.
            5. Loads are drawn (lognormal, sigma 1, seeds below): the paper's routings were not published. Its speedups over
            the best baseline exceed those over expert parallelism, which is odd; all are claimed against the latter.
            6. In a placement a device owns as many experts in every layer (the paper: over all layers together), copies share
            their expert's rows evenly, and a place that an owner has left takes what evens loads most.
            7. Seconds: V100 at a share of its peak, exchanges of tokens by what the busiest node sends and receives over its
            100 Gb/s; kernels, latency and the optimizer are left out of both arms.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from meshwright.systems.moe.hecate.mechanism import (
    Copies,
    dispatched,
    even_sources,
    imbalance,
    lognormal_loads,
    materialized,
    owned,
    sharded,
)

FILLS = {"job": "job:ExpertCopies", "expert_placement": "placement:Hecate"}
CLAIMS = (
    {
        "claim": "busiest device over the mean, {experts} experts on {devices} devices, no copies",
        "kind": "identity",
        "unit": "x",
        "tolerance": 0.1,
        "reason": "other seeds",
        "how": "lognormal loads, sigma 1, mean of 58 layers, experts in a row",
        "by": "plain_imbalance",
        "source": "own: what the next claim starts from",
        "cases": (({"experts": 64, "devices": 8}, 1.7),),
    },
    {
        "claim": "up to: a step on {devices} V100s with copies, times quicker than with expert parallelism",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "drawn loads; kernels, latency and optimizer left out",
        "how": "compute of the busiest device, exchanges of the busiest node; four seeds of twelve layers, the best",
        "by": "times_quicker",
        "source": "section 5: 1.40 to 1.58 on 16 GPUs, 1.34 to 1.78 on 32 (cluster A)",
        "null": {"no effect": 1.0},
        "cases": (({"devices": 16}, 1.58), ({"devices": 32}, 1.78)),
    },
    {
        "claim": "least: a step on {devices} V100s with copies, times quicker than with expert parallelism",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "as above",
        "how": "as above, the least of the four seeds",
        "by": "least_times_quicker",
        "source": "section 5: 1.40 to 1.58 on 16 GPUs",
        "null": {"no effect": 1.0},
        "cases": (({"devices": 16}, 1.40),),
    },
    {
        "claim": "up to: a step with copies, times quicker",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "as above",
        "how": "as above, 32 devices",
        "by": "headline",
        "source": "abstract: 'up to 3.54x speedup over state-of-the-art MoE training systems'",
        "null": {"no effect": 1.0},
        "cases": (({}, 3.54),),
    },
    {
        "claim": "difference of losses, gradients, parameters and moments to one process, five steps, seed {seed}",
        "kind": "measured",
        "unit": "absolute",
        "tolerance": 1e-10,
        "reason": "float64 (docs/design.md)",
        "how": "four gloo processes, copies drawn anew in every step",
        "by": "study:trained_difference",
        "source": "the mechanism: where copies are changes nothing",
        "cases": (({"seed": 0}, 0.0), ({"seed": 1}, 0.0)),
    },
    {
        "claim": "bytes that spAG and spRS send over 2 x copies x bytes of an expert, seed {seed}",
        "kind": "measured",
        "unit": "x",
        "tolerance": 1e-12,
        "reason": "counts",
        "how": "as above, the executor's counters",
        "by": "study:bytes_over_formula",
        "source": "the mechanism: sum over experts of (copies - 1) x bytes, each",
        "cases": (({"seed": 0}, 1.0),),
    },
)  # fmt: skip
LAYERS, EXPERTS, TOP, OVERLAP, SIGMA = 12, 64, 2, 4, 1.0
SEEDS = range(4)
HIDDEN, SEQUENCE = 768, 2048  # GPT-MoE-S: experts of twice the width inside, GShard's two a token
V100_FLOPS, SHARE = 125e12, 0.4  # tensor cores by the data sheet; of it, what a large product reaches
NODE_BYTES_PER_S, NODE_DEVICES = 12.5e9, 8  # 100 Gb/s
TOKENS = 4 * SEQUENCE  # of a device in a step
HALF_BYTES, PASSES = 2, 3  # a number; a backward is two forwards


def _nodes(devices: int) -> list[int]:
    return [device // NODE_DEVICES for device in range(devices)]


def plain_imbalance(experts: int, devices: int) -> float:
    """Mean over layers, experts in a row."""
    owners = np.arange(experts) * devices // experts
    return float(
        np.mean([_imbalance(each, owned(owners, devices)) for each in lognormal_loads(58, experts, SIGMA, 0)])
    )


def copied_imbalance(experts: int, devices: int, overlap: int, layers: int = 58) -> float:
    """The same with owners by load and copies of the busiest."""
    loads_LX, nodes = lognormal_loads(layers, experts, SIGMA, 0), _nodes(devices)
    owners_LX = sharded(loads_LX, overlap, nodes)
    return float(np.mean([
        _imbalance(loads, materialized(loads, owners, overlap, overlap, nodes))
        for loads, owners in zip(loads_LX, owners_LX, strict=True)
    ]))  # fmt: skip


def _imbalance(loads_X: np.ndarray, copies_XD: Copies) -> float:
    devices = copies_XD.shape[1]
    return imbalance(dispatched(even_sources(loads_X, devices), copies_XD, _nodes(devices)))


def layer_s(loads_X: np.ndarray, copies_XD: Copies) -> float:
    """Of a layer, forward and backward: attention, the busiest device's experts, and its tokens out and back."""
    devices = copies_XD.shape[1]
    rows = even_sources(loads_X / loads_X.sum() * TOKENS * TOP * devices, devices)
    sent_DXD, nodes = dispatched(rows, copies_XD, _nodes(devices)), np.array(_nodes(devices))
    expert_flops = 2 * 2 * HIDDEN * 2 * HIDDEN
    attention_flops = TOKENS * (2 * 4 * HIDDEN**2 + 2 * SEQUENCE * HIDDEN)
    busiest = sent_DXD.sum((0, 1)).max()
    between_DD = sent_DXD.sum(1) * (nodes[:, None] != nodes[None])
    out_N, in_N = (np.bincount(nodes, weights=between_DD.sum(axis)) for axis in (1, 0))
    message_s = max(out_N.max(), in_N.max()) * HIDDEN * HALF_BYTES / NODE_BYTES_PER_S
    compute_s = (attention_flops + busiest * expert_flops) / (SHARE * V100_FLOPS)
    return float(PASSES * compute_s + 4 * message_s)


@cache
def _speedups(devices: int) -> tuple[float, ...]:
    """By seed."""
    found, nodes = [], _nodes(devices)
    plain = owned(np.arange(EXPERTS) * devices // EXPERTS, devices)
    for seed in SEEDS:
        loads_LX = lognormal_loads(LAYERS, EXPERTS, SIGMA, seed)
        owners_LX = sharded(loads_LX, OVERLAP, nodes)
        pairs = [
            (layer_s(loads, plain), layer_s(loads, materialized(loads, owners, OVERLAP, OVERLAP, nodes)))
            for loads, owners in zip(loads_LX, owners_LX, strict=True)
        ]
        found.append(sum(one for one, _ in pairs) / sum(two for _, two in pairs))
    return tuple(found)


def times_quicker(devices: int) -> float:
    """Of the seed for which it is most."""
    return max(_speedups(devices))


def least_times_quicker(devices: int) -> float:
    """Of the seed for which it is least."""
    return min(_speedups(devices))


def headline() -> float:
    """On 32 devices."""
    return times_quicker(32)
