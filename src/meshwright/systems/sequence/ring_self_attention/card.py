"""Every device has some tokens of each sequence; keys come around a ring until its rows of scores are whole, then values.

Paper:      Sequence Parallelism: Long Sequence Training from System Perspective, Shenggui Li, Fuzhao Xue, Chaitanya Baranwal,
            Yongbin Li, Yang You, 2021, arXiv 2105.13120
Problem:    Tensor parallelism divides heads, and no more devices than there are heads; every device still has all tokens of
            the residual stream.
Idea:       Of N devices each has L / N tokens of a sequence. Keys travel around them and fill its scores, B Z (L / N) L
            numbers for B samples and Z heads; behind the softmax values travel and are weighed. An MLP sends nothing. So what
            a device keeps grows with B L / N and B Z L^2 / N, and nothing of it has all tokens; it beats tensor parallelism
            in memory where B L is above 32 H (MLP, H hidden units) and 16 A Z (attention, A numbers of a head).
Kind:       pass
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --fix cp=2 --fix context=ring_self_attention
Simulated:  memory of BERT Base on P100 of 16 GB, by the package's model of memory, with tensor and with sequence parallelism
Executed:   forward and backward in train, any layout of tokens, packed documents and windows (gloo, and the same code on
            CUDA)
Differs:    1. Gradients of keys and values are scattered, not all-reduced and cut: 6 (N - 1) q in all, where q are the bytes
            of a device's queries, and published 8 (N - 1) q, as much as tensor parallelism's four sums a layer.
            2. Written from the abstract, summaries and the legacy operations of hpcaitech/ColossalAI, of which nothing is
            taken: they scale scores by the hidden size and divide some gradients by N.
            3. BERT Base is 12 blocks of a GPT of its sizes in float32. Its published memory has no room for what 12 blocks
            keep (43 GB), so all are recomputed; nor for logits of all tokens (4 GB), so the vocabulary here is 48. Nothing
            else is chosen; the lengths of the weak scaling (512 tokens) and of the largest batch are from memory.
            4. Eight devices of tensor parallelism do not divide 12 heads: the published row, out of memory, is tried with 16
            heads of 48 numbers.
            5. A device has gradients of all keys for a moment, B L H numbers: with 64 devices that is what bounds the batch.
            6. Sparse attention, Linformer's projection of keys and values, each device its own tokens to k / N rows, is no
            kind of the core: it is executed small, its ranks in one process (study.py), and its memory is the core's without
            scores, plus those of k columns. Batch 4, k = 256 and that nothing is recomputed are guessed (with full recompute
            far more tokens fit); the abstract says 114K, and no more.
            7. The package's rings of keys and values (context ring) keep no scores at all, and are what to use instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from meshwright.prediction.memory_estimate import DeviceMemory, estimate_memory
from meshwright.schedules import registered
from meshwright.specs.cluster.cluster import ClusterSpec, Level
from meshwright.specs.cluster.device import DeviceSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

CLAIMS = (
    {
        "claim": "BERT Base, {num_sequences} sequences of 512 tokens on {num_devices} devices, {kind}: MB of a device",
        "kind": "predicted",
        "unit": "MB",
        "tolerance": 0.1,
        "reason": "what a model of memory is off on stacks that it knows; the paper's growth with tensor parallelism is 44 %",
        "how": "tensors at the peak by the package's model of memory; all blocks recomputed, dropout, no logits",
        "by": "peak_mb",
        "source": "table of weak scaling in batch, as summaries give it",
        "null": {"no effect": 8477.0},
        "cases": (
            ({"kind": "tensor", "num_devices": 1, "num_sequences": 64}, 8477),
            ({"kind": "tensor", "num_devices": 2, "num_sequences": 128}, 9520),
            ({"kind": "tensor", "num_devices": 4, "num_sequences": 256}, 12233),
            ({"kind": "sequence", "num_devices": 2, "num_sequences": 128}, 8479),
            ({"kind": "sequence", "num_devices": 4, "num_sequences": 256}, 8481),
            ({"kind": "sequence", "num_devices": 8, "num_sequences": 512}, 8491),
        ),
    },
    {
        "claim": "BERT Base, 512 sequences of 512 tokens on 8 devices of 16 GB, {kind}: does it fit (1 or 0)?",
        "kind": "predicted",
        "unit": "of 1",
        "tolerance": 1e-9,
        "reason": "it fits or not",
        "how": "as above, 16 heads where 12 are not divided",
        "by": "fits_of_8",
        "source": "as above",
        "null": {"no effect": 1.0},
        "cases": (({"kind": "tensor"}, 0), ({"kind": "sequence"}, 1)),
    },
    {
        "claim": "BERT Base on P100 of 16 GB: largest {what}, 64 devices of sequence over 12 of tensor parallelism",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off",
        "how": "largest that the model of memory lets in, sequences of 512 tokens, or 64 sequences",
        "by": "most_ratio",
        "source": "abstract: 13.7 x batch, 3.0 x length",
        "null": {"no effect": 1.0, "perfect scaling": 5.333},
        "cases": (({"what": "batch"}, 13.7), ({"what": "length"}, 3.0)),
    },
    {
        "claim": "BERT Base on 32 P100 of 16 GB, keys and values projected to 256 rows: tokens of a sequence, batch 4",
        "kind": "predicted",
        "unit": "tokens",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off",
        "how": "largest length that fits, everything kept: the core's model of memory, and scores of 256 columns",
        "by": "most_sparse_tokens",
        "source": "abstract: over 114K",
        "null": {"perfect scaling": "sparse_tokens_of_one"},
        "cases": (({}, 114_000),),
    },
    {
        "claim": "here, 4 processes: bytes that each sends for attention in one layer, in those of its queries",
        "kind": "measured",
        "unit": "q",
        "tolerance": 1e-9,
        "reason": "a count",
        "how": "the executor's counters in float32, all heads with keys",
        "by": "study:sent_units",
        "source": "6 (N - 1): the paper's 8 (N - 1) with gradients scattered in place of all-reduced",
        "cases": (({}, 18.0),),
    },
    {
        "claim": "here: peak of activations with 4 processes over that with 2, batch grown with them, {kind} parallelism",
        "kind": "measured",
        "unit": "x",
        "tolerance": 0.01,
        "reason": "the acceptance of this system; with tensor parallelism it grows",
        "how": "live bytes that the executor measures, less those that live between two steps",
        "by": "study:growth",
        "source": "table of weak scaling in batch: 8,479 and 8,481 MB, and 9,520 and 12,233",
        "cases": (({"kind": "sequence"}, 1.0),),
    },
    {
        "claim": "here, {num_devices} processes: parameters after three steps of AdamW, largest difference to one process",
        "kind": "measured",
        "unit": "absolute",
        "tolerance": 1e-8,
        "reason": "the project's acceptance in float64",
        "how": "a decoder of two blocks with grouped queries, trained by plans with cp and without",
        "by": "study:parameter_difference",
        "source": "the algorithm is exact",
        "cases": (({"num_devices": 2}, 0.0), ({"num_devices": 4}, 0.0)),
    },
    {
        "claim": "here: output of sparse attention over 4 ranks, largest difference to one",
        "kind": "measured",
        "unit": "absolute",
        "tolerance": 1e-10,
        "reason": "the project's acceptance in float64",
        "how": "keys and values of every rank projected by its own matrix, then around the ring; output and all gradients",
        "by": "study:sparse_difference",
        "source": "a projection of each chunk is a block of one projection",
        "cases": (({}, 0.0),),
    },
)
MEGA, GIBI = 1e6, 2**30
# BERT Base; NVIDIA P100 data sheet: 16 GB of 732 GB/s, 9.3 and 18.7 TFLOP/s.
NUM_BLOCKS, HIDDEN_SIZE, NUM_HEADS, VOCABULARY = 12, 768, 12, 48
P100 = DeviceSpec("P100", 16 * GIBI, 732e9, {"float32": 9.3e12, "float16": 18.7e12}, "asynchronous")
FABRIC_BYTES_PER_S, LATENCY_S = 10e9, 2e-6  # of Piz Daint's network, about; memory does not depend on it
TOKENS, BATCH = 512, 64  # of a sequence where the batch grows, and of a batch where the length does
SPARSE_BATCH, SPARSE_ROWS, SPARSE_DEVICES = 4, 256, 32
FLOAT_BYTES = 4
SCORE_TENSORS = (
    9 / 4
)  # of scores that are kept with dropout: probabilities, those behind dropout, a byte of mask


@cache
def piz_daint(num_devices: int) -> ClusterSpec:
    """So many P100, one of each node."""
    even = Cluster(f"1x{num_devices}xL40S")
    level = Level("fabric", num_devices, FABRIC_BYTES_PER_S, LATENCY_S)
    return replace(even, devices=(P100,) * num_devices, levels=(level,))


def plan_of(
    kind: str, num_devices: int, num_sequences: int, num_tokens: int, num_heads: int = NUM_HEADS, recompute: str = "full"
) -> Plan:  # fmt: skip
    """BERT Base by `kind` parallelism: "tensor", "sequence". Raises UnknownNameError for others, and PlanError."""
    choices: dict[str, dict[str, Any]] = {
        "tensor": {"tp": num_devices},
        "sequence": {"cp": num_devices, "context": "ring_self_attention"},
    }
    if kind not in choices:
        raise UnknownNameError("parallelism", kind, choices)
    model = ModelSpec.gpt(
        NUM_BLOCKS, HIDDEN_SIZE, num_heads, vocabulary_size=VOCABULARY, max_sequence_length=num_tokens,
        name="bert-base", source="arXiv 1810.04805",
    )  # fmt: skip
    return Plan.of(
        model, piz_daint(num_devices), Workload(num_sequences, num_tokens), microbatch_size=num_sequences,
        recompute=recompute, attention="unfused_dropout", **choices[kind],
    )  # fmt: skip


def memory_of(plan: Plan) -> DeviceMemory:
    """At the peak of a device."""
    return estimate_memory(plan, piz_daint(plan.num_devices), registered()[plan.schedule]).fullest


def peak_mb(kind: str, num_devices: int, num_sequences: int) -> float:
    """Tensors at the peak."""
    return memory_of(plan_of(kind, num_devices, num_sequences, TOKENS)).allocated_bytes / MEGA


def fits_of_8(kind: str) -> float:
    """Are 512 sequences on eight devices below 16 GB, context and what the allocator holds counted?"""
    heads = 16 if kind == "tensor" else NUM_HEADS
    return float(memory_of(plan_of(kind, 8, 512, TOKENS, heads)).needed_bytes <= P100.memory_bytes)


def most(kind: str, num_devices: int, what: str) -> int:
    """The largest batch of sequences of 512 tokens, or the largest length of 64 sequences, in steps of `num_devices`."""

    def needed(number: int) -> float:
        sizes = (number, TOKENS) if what == "batch" else (BATCH, number * num_devices)
        return memory_of(plan_of(kind, num_devices, *sizes)).needed_bytes

    return _most(needed) * (1 if what == "batch" else num_devices)


def most_ratio(what: str) -> float:
    """On 64 devices over that on 12, which is as many as there are heads."""
    return most("sequence", 64, what) / most("tensor", 12, what)


def most_sparse_tokens(num_devices: int = SPARSE_DEVICES) -> float:
    """Tokens of a sequence where scores have `SPARSE_ROWS` columns: nothing is recomputed."""
    return float(num_devices * _most(lambda number: _sparse_bytes(num_devices, number * num_devices)))


def sparse_tokens_of_one() -> float:
    """As many times what one device holds as there are devices."""
    return SPARSE_DEVICES * most_sparse_tokens(1)


def _sparse_bytes(num_devices: int, num_tokens: int) -> float:
    """Of the same plan with flash attention, which keeps no scores, and of scores of few columns in all blocks."""
    plan = plan_of("sequence", num_devices, SPARSE_BATCH, num_tokens, recompute="none")
    plan = replace(plan, context="ring", token_layout="contiguous", attention="flash")
    rows = SPARSE_BATCH * num_tokens / num_devices * NUM_HEADS * NUM_BLOCKS
    return memory_of(plan).needed_bytes + rows * SPARSE_ROWS * SCORE_TENSORS * FLOAT_BYTES


def _most(needed: Callable[[int], float]) -> int:
    """The largest number whose bytes fit a P100; it is at least one."""
    high = 2
    while needed(high) <= P100.memory_bytes:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= P100.memory_bytes else (low, middle)
    return low
