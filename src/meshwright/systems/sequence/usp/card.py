"""Neighbours exchange heads, groups of them are a ring: two ways to share a sequence on a mesh of two dimensions.

Paper:      USP: A Unified Sequence Parallelism Approach for Long Context Generative AI, Jiarui Fang, Shangchun Zhao, 2024,
            arXiv 2405.07719
Problem:    Ulysses divides heads, of which there may be fewer than devices; a ring sends more the more devices it has, and
            computes in pieces.
Idea:       P = U x R devices. U neighbours exchange queries, keys and values for heads, (2 + 2 rho) (U - 1) / U q bytes of
            q a device's queries (rho key-value heads per query head), and R such groups are a ring of 2 (R - 1) q rho
            bytes, with R - 1 merges in place of P - 1. A long ring of merges is short, and heads suffice for U.
Kind:       op
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --fix cp=4,ulysses=2,context=ring; train
Simulated:  one layer's exchanges of heads, steps, messages and merges as rows, forward
Executed:   forward and backward on gloo in every layout of tokens, against one process
Differs:    1. Measured rows are of the authors' repository (feifeibear/long-context-attention, media/benchmark_results.png
            and pcie_machine.jpg, commit 56118e0d8fe3): forward only, 131,072 tokens, 128 numbers a head, queries, keys and
            values apart; of A100 two sequences, 8 query and key-value heads. What is claimed is iterations over those of
            Ulysses alone: of another library's kernels only the ratio can be known. Rows with heads of 32 numbers are left
            out: no kernel table has such.
            2. Of L20 behind PCIe nothing is known but the data sheet's 32 GB/s each way. There an exchange of heads among
            eight reached about 1.4 GB/s (and 4 GB/s among four), where neighbours of a ring reached over 10: what the host's
            bridges and copies through its memory take is in no data sheet. So Ulysses alone is predicted best, and the
            published best, two neighbours in a ring of four, is a miss; between these two and the ring alone the ratio is
            right (merges).
"""

from __future__ import annotations

from functools import cache

from meshwright.specs.cluster.source import Cluster
from meshwright.systems.sequence.attention_time import Heads, attention_seconds

NUM_DEVICES, NUM_TOKENS = 8, 131072
SHAPES = {"A100-80": (Heads(8, 8, 128), 2), "L20": (Heads(32, 8, 128), 1)}

CLAIMS = (
    {
        "claim": "iterations over those of Ulysses alone, Ulysses {ulysses} in a {layout} ring on 8 A100",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off; kernels of another library",
        "how": "a layer's attention, forward, both as rows of a program",
        "by": "over_ulysses",
        "source": "feifeibear/long-context-attention, media/benchmark_results.png",
        "null": {"bytes over bandwidth": "by_work"},
        "cases": (
            ({"gpu": "A100-80", "layout": "contiguous", "ulysses": 4}, 0.739),
            ({"gpu": "A100-80", "layout": "contiguous", "ulysses": 2}, 0.628),
            ({"gpu": "A100-80", "layout": "contiguous", "ulysses": 1}, 0.540),
            ({"gpu": "A100-80", "layout": "zigzag", "ulysses": 4}, 1.022),
            ({"gpu": "A100-80", "layout": "zigzag", "ulysses": 2}, 1.009),
            ({"gpu": "A100-80", "layout": "zigzag", "ulysses": 1}, 0.846),
            ({"gpu": "A100-80", "layout": "stripe", "ulysses": 4}, 0.979),
            ({"gpu": "A100-80", "layout": "stripe", "ulysses": 2}, 0.970),
            ({"gpu": "A100-80", "layout": "stripe", "ulysses": 1}, 0.813),
        ),
    },
    {
        "claim": "iterations of Ulysses 2 in a zigzag ring of 4 over those of a ring of 8, 8 L20",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "as above; both hide their messages: what is left are merges",
        "how": "as above",
        "by": "two_over_one",
        "source": "feifeibear/long-context-attention, media/pcie_machine.jpg",
        "null": {"no effect": 1.0},
        "cases": (({"gpu": "L20"}, 1.056),),
    },
    {
        "claim": "how many neighbours exchange heads where iterations are most, 8 L20",
        "kind": "predicted",
        "unit": "1",
        "tolerance": 0.0,
        "reason": "a degree is right or wrong",
        "how": "the quickest of 1, 2, 4 in a zigzag ring and 8",
        "by": "best_degree",
        "source": "as above, and the repository's README",
        "null": {"no effect": 1.0},
        "cases": (({"gpu": "L20"}, 2.0),),
    },
)


@cache
def _forward_s(gpu: str, layout: str, ulysses: int) -> float:
    heads, num_sequences = SHAPES[gpu]
    cluster = Cluster(f"{NUM_DEVICES}x{gpu}")
    if ulysses == NUM_DEVICES:
        return attention_seconds(cluster, heads, num_sequences, NUM_TOKENS, context="ulysses").forward
    ring = {"context": "ring", "token_layout": layout, "ulysses": ulysses}
    return attention_seconds(cluster, heads, num_sequences, NUM_TOKENS, **ring).forward


def over_ulysses(gpu: str, layout: str, ulysses: int) -> float:
    """Iterations of one over those of the other."""
    return _forward_s(gpu, layout, NUM_DEVICES) / _forward_s(gpu, layout, ulysses)


def by_work(gpu: str, layout: str, ulysses: int) -> float:
    """By nothing but the busiest device's pairs."""
    return 1 / (2 - ulysses / NUM_DEVICES) if layout == "contiguous" else 1.0


def two_over_one(gpu: str) -> float:
    """Of Ulysses 2 over none."""
    return _forward_s(gpu, "zigzag", 1) / _forward_s(gpu, "zigzag", 2)


def best_degree(gpu: str) -> float:
    """The degree of the quickest."""
    return min((1, 2, 4, NUM_DEVICES), key=lambda degree: _forward_s(gpu, "zigzag", degree))
