"""Expert layers that change by step how experts are divided, in how many parts tokens go, and by which all-to-all.

Paper:      Tutel: Adaptive Mixture-of-Experts at Scale, Changho Hwang, Wei Cui, Yifan Xiong, Ziyue Yang, Ze Liu, Han Hu,
            Zilong Wang, Rafael Salas, Jithin Jose, Prabhat Ram, Joe Chau, Peng Cheng, Fan Yang, Mao Yang, Yongqiang
            Xiong, 2022, arXiv 2206.03382
Problem:    How many tokens an expert gets changes all the time, and what is fastest with it; another way to divide experts
            costs moving their parameters, small messages of an all-to-all cost more the more devices there are, and dense
            products put tokens into slots.
Idea:       One place for parameters and tokens whatever r is, the number of devices that share an expert's work: tokens are
            repeated r times and matrices gathered by W / (E r) devices, so switching is free. r = 0 is data parallelism.
            A dictionary from floor(capacity / 128) to the best (r, parts d, all-to-all a), filled by ternary search along r.
            All-to-alls in two levels: m devices of a node first exchange, then n / m messages of m S / n bytes go between
            nodes. Outputs lie by expert, so that a product's shape does not depend on the number of devices.
Kind:       planner
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --planner tutel
Simulated:  steps of plans with every r, d and a on the user's model; the paper's layer by data sheets, part by part
Executed:   r as `Plan.etp` with experts over `Plan.ep`, 0 as ZeRO-3, parts, and two levels as `Plan.ep_near`, in train (gloo,
            and the same code on CUDA). A small vision model (patches, experts, classes; drawn images) on four gloo processes,
            float64, another r in each step and nothing moved between: losses, gradients, parameters are one process's, bytes
            the closed form's
Differs:    1. In `train` switching is another plan: a job keeps its r; it changes in the study of a vision model only, which
            is no SwinV2 and learns no ImageNet. The dictionary takes any function of a layer's seconds.
            2. What 2DH takes is priced here as four steps; in plans it is two exchanges, between which copies cost nothing.
            3. The layer's prices are data sheets at 70 %, 5 us a message, and a tile of 128 rows for what has fewer. Nothing
            is fitted. The published parts' gains multiply to the headline, so they are taken as one behind the other.
            4. Batched products of 8 rows are priced as tiles of 128, far slower than published: what the flexible
            all-to-all gains is too much, and kernels and 2DH before it too little.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from meshwright.systems.moe.tutel.layer import gain
from meshwright.systems.moe.tutel.mechanism import (
    ALL_TO_ALLS,
    PART_DEGREES,
    BestByCapacity,
    Choice,
    most_trials,
    shared_degrees,
)

FILLS = {"planner": "mechanism:planned"}
CLAIMS = (
    {
        "claim": "one layer on {devices} A100: gain of {part}",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off: data sheets, and no kernel measured",
        "how": "16,384 tokens a device, 2,048 wide, top 2, two experts a device; parts one behind the other",
        "by": "layer_gain",
        "source": "single-layer results, and the abstract: 4.96 x on 16, 5.75 x on 2,048 GPUs over Fairseq",
        "null": {"no effect": 1.0},
        "cases": (
            ({"devices": 16, "part": "all"}, 4.96),
            ({"devices": 128, "part": "all"}, 3.11),
            ({"devices": 2048, "part": "all"}, 5.75),
            ({"devices": 16, "part": "kernels"}, 3.52),
            ({"devices": 2048, "part": "kernels"}, 1.04),
            ({"devices": 2048, "part": "two-level all-to-all"}, 4.25),
            ({"devices": 2048, "part": "flexible all-to-all"}, 1.24),
            ({"devices": 16, "part": "pipelining"}, 1.43),
            ({"devices": 2048, "part": "pipelining"}, 1.04),
        ),
    },
    {
        "claim": "{devices} devices, {experts} experts: share of new keys that take no more trials than the paper's bound",
        "kind": "identity",
        "unit": "share",
        "tolerance": 0.0,
        "reason": "a bound is met or not",
        "how": "ternary search along r on a thousand drawn curves that fall and rise",
        "by": "share_within_bound",
        "source": "(log_1.5(W / E) + 2) 4 2",
        "cases": (({"devices": 2048, "experts": 2}, 1.0), ({"devices": 64, "experts": 2}, 1.0)),
    },
    {
        "claim": "the dictionary's choice over the best of all, seconds, the worst of drawn layers",
        "kind": "identity",
        "unit": "x",
        "tolerance": 1e-12,
        "reason": "a search along a curve that falls and rises finds its least",
        "how": "as above",
        "by": "found_over_best",
        "source": "the mechanism",
        "cases": (({"devices": 2048, "experts": 2}, 1.0),),
    },
    {
        "claim": "vision model of {experts} experts, another r in each of six steps: largest difference to one process",
        "kind": "measured",
        "unit": "absolute",
        "tolerance": 1e-10,
        "reason": "float64 (docs/design.md): losses, gradients and parameters",
        "how": "four gloo processes, every r that they allow in turn",
        "by": "study:vision_difference",
        "source": "one layout of parameters and tokens whatever r is",
        "cases": (({"experts": 1}, 0.0), ({"experts": 2}, 0.0)),
    },
    {
        "claim": "vision model of {experts} experts: bytes of parameters and gradients that changing r in each step adds",
        "kind": "measured",
        "unit": "bytes",
        "tolerance": 0.0,
        "reason": "counts",
        "how": "as above, the executor's counters, less those of jobs of one r each",
        "by": "study:switching_bytes",
        "source": "abstract: switching parallelism at zero cost",
        "cases": (({"experts": 1}, 0.0), ({"experts": 2}, 0.0)),
    },
)
NUM_DRAWN = 1000


def layer_gain(devices: int, part: str) -> float:
    """Of the paper's layer."""
    return gain(devices, part)


def drawn_seconds(degrees: tuple[int, ...], rng: random.Random) -> dict[Choice, float]:
    """Seconds of every choice: along r they fall to a drawn place, and rise behind it."""
    found = {}
    for parts in PART_DEGREES:
        for name in ALL_TO_ALLS:
            best, base = rng.randrange(len(degrees)), rng.uniform(1.0, 2.0)
            for place, shared in enumerate(degrees):
                found[Choice(shared, parts, name)] = base + abs(place - best) * rng.uniform(0.9, 1.1)
    return found


def _asked(seconds: Mapping[Choice, float]) -> Callable[[int, Choice], float]:
    """The seconds of a choice, whatever the capacity."""
    return lambda _, choice: seconds[choice]


def share_within_bound(devices: int, experts: int) -> float:
    """Of drawn layers."""
    degrees, rng = shared_degrees(devices, experts), random.Random(0)
    within = 0
    for _ in range(NUM_DRAWN):
        seconds = drawn_seconds(degrees, rng)
        known = BestByCapacity(degrees, _asked(seconds))
        known.best(1)
        within += known.num_trials <= most_trials(degrees[-1])
    return within / NUM_DRAWN


def found_over_best(devices: int, experts: int) -> float:
    """The worst of drawn layers."""
    degrees, rng, worst = shared_degrees(devices, experts), random.Random(0), 1.0
    for _ in range(NUM_DRAWN):
        seconds = drawn_seconds(degrees, rng)
        known = BestByCapacity(degrees, _asked(seconds))
        worst = max(worst, seconds[known.best(1)] / min(seconds.values()))
    return worst
