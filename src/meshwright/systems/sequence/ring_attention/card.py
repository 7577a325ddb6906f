"""Keys and values travel around a ring while each device attends to what is there: sequences of as many devices' memory.

Paper:      Ring Attention with Blockwise Transformers for Near-Infinite Context, Hao Liu, Matei Zaharia, Pieter Abbeel,
            2023, arXiv 2310.01889
Problem:    A sequence whose activations no device holds cannot be trained on, however many devices there are.
Idea:       Each of P devices has S / P tokens of a sequence. In P steps it attends with its queries to a block of keys and
            values, while that block goes on to the next device, and merges what it gets by the logarithms of the sums: exact,
            in any order. A block hides where the step computes longer than it travels: S / P >= F / B tokens, with F the
            device's FLOP/s and B the link's bytes/s. Under a causal mask the last of contiguous pieces has 2 - 1/P times
            the mean work; a zigzag (two chunks each, an early and a late one) or stripes even that out.
Kind:       op
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --fix cp=4,context=ring; train, on CPUs and GPUs
Simulated:  one layer's steps, messages and merges as rows; what a device keeps, for the longest sequence that fits
Executed:   forward and backward on gloo in every layout, against one process (float64 1e-10); on CUDA the same code
Differs:    1. Measured rows are those of zhuzilin/ring-flash-attention (README, commit 899628238f2f), after the paper, on 8
            H800 and 8 A100: 32 query and 8 key-value heads of 128, 8,192 tokens a GPU; share of its ideal, flash attention of
            the same work without any exchange. What is predicted is the share of our own ideal: the kernels are priced
            by tables of another library (849 iterations a second on H800 where theirs has 591; 259 on A100, theirs 373), so
            on A100 merges weigh less than there.
            2. Nothing is fitted to these rows: products by their shapes, messages by NCCL's curves, merges by their bytes, as
            `PartAttention` does them.
            3. Theirs sends a gradient while the next product runs and adds it behind; rows of ours add it inside the
            product, so that its hop is waited for (under 6 % of a step's backward here).
            4. Stripes: theirs cut one token off queries and keys in steps behind their own and copy what is merged, which
            ours does not: the forward row of A100 is missed (0.88 for 0.70).
            5. Packed rows are priced a document at a time, each over all devices; their last column (gathered keys, cut
            without regard to documents) is none of our layouts.
            6. Sizes of the paper's own tables are not claimed: their stack's memory is not ours.
"""

from __future__ import annotations

from functools import cache

from meshwright.prediction.predicted import predict
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.systems.sequence.attention_time import AttentionSeconds, Heads, attention_seconds

NUM_DEVICES, NUM_TOKENS = 8, 8192  # of a GPU
HEADS = Heads(32, 8, 128)  # Llama-3.1-8B's
# The benchmark's packings of a GPU's tokens (benchmark/benchmark_varlen_kvpacked_func.py), taken in turn.
PACKINGS = ((8192,), (256, 7392, 544), (4096, 4096), (3104, 3200, 1600, 160, 32))

CLAIMS = (
    {
        "claim": "share of ideal flash attention, {layout} ring of 8 {gpu}, {passes}",
        "kind": "predicted",
        "unit": "1",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off; kernels of another library",
        "how": "eight times a device's own causal attention over a layer's ring, both as rows of a program",
        "by": "share_of_ideal",
        "source": "zhuzilin/ring-flash-attention, README.md, commit 899628238f2f",
        "null": {"bytes over bandwidth": "share_by_work"},
        "cases": (
            ({"gpu": "H800", "layout": "contiguous", "passes": "forward"}, 0.521),
            ({"gpu": "H800", "layout": "zigzag", "passes": "forward"}, 0.852),
            ({"gpu": "H800", "layout": "stripe", "passes": "forward"}, 0.744),
            ({"gpu": "H800", "layout": "contiguous", "passes": "both"}, 0.539),
            ({"gpu": "H800", "layout": "zigzag", "passes": "both"}, 0.902),
            ({"gpu": "H800", "layout": "stripe", "passes": "both"}, 0.829),
            ({"gpu": "A100-80", "layout": "contiguous", "passes": "forward"}, 0.514),
            ({"gpu": "A100-80", "layout": "zigzag", "passes": "forward"}, 0.817),
            ({"gpu": "A100-80", "layout": "stripe", "passes": "forward"}, 0.696),
            ({"gpu": "A100-80", "layout": "contiguous", "passes": "both"}, 0.525),
            ({"gpu": "A100-80", "layout": "zigzag", "passes": "both"}, 0.898),
            ({"gpu": "A100-80", "layout": "stripe", "passes": "both"}, 0.826),
        ),
    },
    {
        "claim": "the same of packed documents, {layout} ring of 8 {gpu}, {passes}",
        "kind": "predicted",
        "unit": "1",
        "tolerance": 0.25,
        "reason": "as above",
        "how": "as above, the sum of a packing's documents, the mean of four packings",
        "by": "share_of_packed",
        "source": "zhuzilin/ring-flash-attention, README.md, commit 899628238f2f",
        "null": {"bytes over bandwidth": "share_by_work"},
        "cases": (
            ({"gpu": "H800", "layout": "contiguous", "passes": "forward"}, 0.491),
            ({"gpu": "H800", "layout": "zigzag", "passes": "forward"}, 0.702),
            ({"gpu": "H800", "layout": "contiguous", "passes": "both"}, 0.511),
            ({"gpu": "H800", "layout": "zigzag", "passes": "both"}, 0.759),
            ({"gpu": "A100-80", "layout": "contiguous", "passes": "forward"}, 0.498),
            ({"gpu": "A100-80", "layout": "zigzag", "passes": "forward"}, 0.720),
            ({"gpu": "A100-80", "layout": "contiguous", "passes": "both"}, 0.521),
            ({"gpu": "A100-80", "layout": "zigzag", "passes": "both"}, 0.802),
        ),
    },
    {
        "claim": "times longer sequences on 8 A100 than without a ring, {model}, full recompute, ZeRO-3",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "parameters, state and what is gathered of them take the same in both",
        "how": "the longest sequence that fits by the memory estimate, over cp=8 and one a device; paper_value is the "
        "abstract's device count",
        "by": "times_longer",
        "source": "the paper's abstract",
        "null": {"no effect": 1.0},
        "cases": (({"model": "llama-3.1-8b"}, 8.0), ({"model": "llama-2-13b"}, 8.0)),
    },
    {
        "claim": "thousands of tokens a device from which a block hides, {device}",
        "kind": "identity",
        "unit": "1",
        "tolerance": 0.05,
        "reason": "the paper rounds to a hundred",
        "how": "the peak in FLOP/s over the link's bytes/s",
        "by": "hidden_from",
        "source": "table 2",
        "cases": (({"device": "A100 NVLink", "peak": 312e12, "rate": 300e9}, 1.0),),
    },
)


@cache
def _seconds(gpu: str, layout: str, length: int) -> AttentionSeconds:
    """Of 8 devices with so many tokens each."""
    cluster = Cluster(f"{NUM_DEVICES}x{gpu}")
    return attention_seconds(cluster, HEADS, 1, NUM_DEVICES * length, context="ring", token_layout=layout)


@cache
def _alone(gpu: str, length: int) -> AttentionSeconds:
    return attention_seconds(Cluster(f"1x{gpu}"), HEADS, 1, length)


def _taken(seconds: AttentionSeconds, passes: str) -> float:
    return seconds.forward if passes == "forward" else sum(seconds)


def share_of_ideal(gpu: str, layout: str, passes: str, packing: tuple[int, ...] = (NUM_TOKENS,)) -> float:
    """Of P devices P times a device's own work, over what they take."""
    ideal_s = sum(NUM_DEVICES * _taken(_alone(gpu, length), passes) for length in packing)
    return ideal_s / sum(_taken(_seconds(gpu, layout, length), passes) for length in packing)


def share_of_packed(gpu: str, layout: str, passes: str) -> float:
    """Of the benchmark's packings one after the other."""
    ideal_s = sum(NUM_DEVICES * _taken(_alone(gpu, n), passes) for packing in PACKINGS for n in packing)
    return ideal_s / sum(_taken(_seconds(gpu, layout, n), passes) for packing in PACKINGS for n in packing)


def share_by_work(gpu: str, layout: str, passes: str) -> float:
    """By nothing but the busiest device's pairs."""
    return 1 / (2 - 1 / NUM_DEVICES) if layout == "contiguous" else 1.0


def times_longer(model: str) -> float:
    """The longest sequence over eight devices over the longest on each of them."""
    return _longest(model, cp=NUM_DEVICES) / _longest(model, dp=NUM_DEVICES)


def _longest(model: str, dp: int = 1, cp: int = 1) -> int:
    """Tokens, to a thousandth of what fits."""
    found, cluster = load_model(model), Cluster(f"{NUM_DEVICES}xA100-80")

    def fits(length: int) -> bool:
        workload = Workload(dp, length)
        plan = Plan.of(
            found, cluster, workload, sharding="zero3", recompute="full", dtype="bfloat16", master_dtype="float32",
            reduction_dtype="float32", microbatch_size=1, software="fused", dp=dp, cp=cp,
        )  # fmt: skip
        return predict(plan, cluster).rejected() is None

    step = 2 * NUM_DEVICES
    low = high = 1024
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(step, low // 1024):
        middle = (low + high) // 2 // step * step
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def hidden_from(device: str, peak: float, rate: float) -> float:
    """In thousands."""
    return peak / rate / 1e3
