"""Attention over several devices in which queries travel one way and results return the other, instead of keys and values.

Paper:      TokenRing: An Efficient Parallelism Framework for Infinite-Context LLMs via Bidirectional Communication, Zongwu
            Wang, Fangxin Liu, Mingshuai Li, Li Jiang, 2024, arXiv 2412.20501
Problem:    A ring of keys and values uses one direction of links that have two, and its messages shrink more slowly with the
            number of devices than the attention that hides them.
Idea:       Keys and values stay; queries (q bytes) go to the next of P devices, step by step. What a step finds for queries
            of another device, a normalised output and the logarithm of its sum, goes straight back to that device, which
            merges it: l' = log(e^l + e^m), o' = o + (b - o) sigmoid(m - l) for a block's output b and logarithm m. One
            direction carries (P - 1) q, the other (P - 1) (q + q / d), where a ring sends 2 (P - 1) q rho one way (rho
            key-value heads per query head, d numbers of a head). So it gains where links are of pairs and full duplex and
            rho is 1, and takes 1 / (2 rho) times as long where key-value heads are few.
Kind:       pass
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --fix cp=2 --fix context=token_ring
Simulated:  steps of attention on four A10 by the data sheets' roofline, and with the links' rate from the ring's own step;
            messages alone on links of pairs
Executed:   forward and backward in train, any layout of tokens, packed documents and windows (gloo, and the same code on
            CUDA)
Differs:    1. The public code has no backward. Ours sends queries, gradients of outputs, the logarithm of each row's sum and
            the product of output and gradient one way, (P - 1) (2 q + 2 q / d), and gradients of queries straight back,
            (P - 1) q, each number of a sum in float32: in 16 bits as much each way. Gradients of keys and values stay.
            2. Of a causal zigzag the public code forwards only the half of the queries that later devices need. Ours sends
            all: rows of a step are the same on all devices, and these halves are not.
            3. The published figures are one picture of steps on four A10 (README of ACA-Lab-SJTU/token-ring), without
            end-to-end times, and say neither what computes take nor whether queries are causal; the code's test for decoders
            is a causal zigzag, which we take. Figures are of a step: from one step's attention to the next one's.
            4. By the data sheets an A10 hides a ring's messages behind its attention, at half of its peak: what is predicted
            of a ring's step is its product, 4.7 ms, and its merge, 6.2 ms together, still 19 % less than published: its links
            reach 12.9 GB/s of 32. The published token ring's first steps are faster than what its attention takes here, at
            most 3.5 ms: a miss.
            5. With the ring's 7.6 ms taken for what its messages need, each message of a token ring is half as long. That
            two at once are no slower is the paper's point. With one port for both, as behind a PCIe switch, messages up to
            the last attention take 0.70 of the ring's time, and what is still to return then makes the whole as long.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from meshwright.costs.cost import Cost
from meshwright.costs.roofline import LINK_EFFICIENCY, Roofline
from meshwright.ir.program import Program
from meshwright.ir.table import Work
from meshwright.ir.trace import Trace
from meshwright.lowering.lower import lower
from meshwright.lowering.place import place
from meshwright.schedules import registered
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.cluster.cluster import ClusterSpec, Level
from meshwright.specs.cluster.device import DeviceSpec, Wiring
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

CLAIMS = (
    {
        "claim": "LLaMA2-7B's attention to 24,000 tokens, 4 x A10: ms from step {step} to the next, {kind}",
        "kind": "predicted",
        "unit": "ms",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off: no A10 was measured, and its links are the data sheet's",
        "how": "simulated rows, roofline of the data sheets, ports of 32 GB/s behind one switch",
        "by": "step_ms",
        "source": "README of ACA-Lab-SJTU/token-ring, figures of a profile",
        "null": {"bytes over bandwidth": "bytes_ms"},
        "cases": (
            ({"kind": "ring", "step": 0}, 7.6),
            ({"kind": "ring", "step": 1}, 7.6),
            ({"kind": "ring", "step": 2}, 7.6),
            ({"kind": "token_ring", "step": 0}, 3.5),
            ({"kind": "token_ring", "step": 1}, 3.5),
            ({"kind": "token_ring", "step": 2}, 4.6),
        ),
    },
    {
        "claim": "the same on links of pairs as fast as its ring's: ms of a step {step} of the token ring, {what}",
        "kind": "fitted on the ring's 7.6 ms a step, as what its messages take",
        "unit": "ms",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off",
        "how": "as above, 12.9 GB/s each way between each two; and the longest message that is sent during the step",
        "by": "fitted_step_ms",
        "source": "as above",
        "cases": (
            ({"step": 0, "what": "attention and messages"}, 3.5),
            ({"step": 2, "what": "attention and messages"}, 4.6),
            ({"step": 0, "what": "messages"}, 3.5),
            ({"step": 2, "what": "messages"}, 4.6),
        ),
    },
    {
        "claim": "{num_devices} devices, a full-duplex link of each pair, {kv_heads} of 32 key-value heads: messages of a "
        "step, time over the ring's",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.1,
        "reason": "half, but for the logarithms of sums: the acceptance of this system is 0.55 at most for all heads",
        "how": "simulated rows whose computes take no time, from the first step's attention to the last one's",
        "by": "messages_ratio",
        "source": "abstract: both directions at once; for fewer key-value heads derived, 1 / (2 rho)",
        "null": {"no effect": 1.0},
        "cases": (
            ({"num_devices": 4, "kv_heads": 32}, 0.5),
            ({"num_devices": 8, "kv_heads": 32}, 0.5),
            ({"num_devices": 4, "kv_heads": 8}, 2.0),
            ({"num_devices": 8, "kv_heads": 4}, 4.0),
        ),
    },
    {
        "claim": "here, 4 processes: bytes that attention sends in a forward of one layer, in those of its queries",
        "kind": "measured",
        "unit": "q",
        "tolerance": 1e-9,
        "reason": "a count",
        "how": "the executor's counters of 256 tokens, 2 samples, 8 heads of 32 numbers, in float32",
        "by": "study:forward_units",
        "source": "the algorithm: (P - 1) + (P - 1) (1 + 1 / d), which the public code sends as well",
        "cases": (({}, 6.09375),),
    },
    {
        "claim": "here, {num_devices} processes: parameters after three steps of AdamW, largest difference to one process",
        "kind": "measured",
        "unit": "absolute",
        "tolerance": 1e-8,
        "reason": "the project's acceptance in float64",
        "how": "a decoder of two blocks with grouped queries, trained by plans with cp and without",
        "by": "study:parameter_difference",
        "source": "merging is exact: section 3",
        "cases": (({"num_devices": 2}, 0.0), ({"num_devices": 4}, 0.0)),
    },
)
KILO, GIGA = 1e3, 1e9
# LLaMA-2-7B's attention, and the sequence of the published figures.
NUM_HEADS, HEAD_DIM, NUM_TOKENS, NUM_DEVICES = 32, 128, 24_000, 4
QUERY_BYTES = 2 * NUM_TOKENS // NUM_DEVICES * NUM_HEADS * HEAD_DIM
RING_STEP_S = 7.6e-3
# NVIDIA A10 data sheet: 24 GB of 600 GB/s, 31.2 and, dense, 125 TFLOP/s; PCIe 4.0 x16, 64 GB/s both directions together.
A10 = DeviceSpec(
    "A10", 24 * 10**9, 600e9, {"float32": 31.2e12, "bfloat16": 125e12, "float16": 125e12}, "asynchronous"
)
PORT_BYTES_PER_S, LATENCY_S = 32e9, 5e-6


class NoComputes:
    """Costs of computes that take no time."""

    def cost(self, work: Work, device: Any = None) -> Cost:
        """Nothing."""
        return Cost(0.0)


def four_a10(bytes_per_s: float, wiring: Wiring, num_devices: int = NUM_DEVICES) -> ClusterSpec:
    """Cards behind one switch, or with a link of each pair."""
    level = Level("node", num_devices, bytes_per_s, LATENCY_S, wiring=wiring)
    return replace(Cluster(f"{num_devices}xL40S"), devices=(A10,) * num_devices, levels=(level,))


@cache
def attention_program(kind: str, num_devices: int = NUM_DEVICES, kv_heads: int = NUM_HEADS) -> Program:
    """One layer whose attention is of that kind."""
    num_tokens = NUM_TOKENS // NUM_DEVICES * num_devices
    model = ModelSpec.decoder(
        1, NUM_HEADS * HEAD_DIM, NUM_HEADS, num_kv_heads=kv_heads, vocabulary_size=256, max_sequence_length=num_tokens
    )  # fmt: skip
    cluster = four_a10(PORT_BYTES_PER_S, "switch", num_devices)
    plan = Plan.of(
        model, cluster, Workload(1, num_tokens), cp=num_devices, context=kind, dtype="bfloat16", master_dtype="float32"
    )  # fmt: skip
    program = lower(plan, registered()[plan.schedule], in_segments=True)
    for axis in program.axes:
        program = program.expand(axis.name)
    return program


def rows_s(trace: Trace, name: str) -> list[tuple[float, float]]:
    """Beginnings and ends of the first device's rows of a name."""
    program = trace.program
    names = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    own = (program.list_of_row == 0) & (names == name)
    return list(zip(trace.start_s[0, own].tolist(), trace.end_s[0, own].tolist(), strict=True))


def simulated(kind: str, cluster: ClusterSpec, kv_heads: int = NUM_HEADS, *, computes: bool = True) -> Trace:
    """A layer's step on these devices."""
    program = attention_program(kind, cluster.num_devices, kv_heads)
    costs = Roofline(cluster)
    works = costs if computes else NoComputes()
    return simulate_program(program, works, costs, placement=place(program, cluster))


def step_ms(kind: str, step: int, bytes_per_s: float = PORT_BYTES_PER_S, wiring: Wiring = "switch") -> float:
    """From the beginning of a step's attention to that of the next one."""
    begun = [start for start, _ in rows_s(simulated(kind, four_a10(bytes_per_s, wiring)), "ATTEND")]
    return (begun[step + 1] - begun[step]) * KILO


def bytes_ms(kind: str, step: int) -> float:
    """What a device sends during a step over its port's rate."""
    sent = 2 if kind == "ring" or step == 2 else 1
    return sent * QUERY_BYTES / PORT_BYTES_PER_S * KILO


def fitted_bytes_per_s() -> float:
    """Of links whose usable share takes a ring's keys and values in its published step."""
    return 2 * QUERY_BYTES / RING_STEP_S / LINK_EFFICIENCY


def fitted_step_ms(step: int, what: str) -> float:
    """Of the token ring, with links of pairs at that rate."""
    if what == "attention and messages":
        return step_ms("token_ring", step, fitted_bytes_per_s(), "pairs")
    trace = simulated("token_ring", four_a10(fitted_bytes_per_s(), "pairs"))
    begin = rows_s(trace, "ATTEND")[step][0]
    sent = [row for name in ("SEND_QUERY", "SEND_PARTIAL") for row in rows_s(trace, name)[: NUM_DEVICES - 1]]
    return max(end - start for start, end in sent if start >= begin) * KILO


def messages_ratio(num_devices: int, kv_heads: int, wiring: Wiring = "pairs") -> float:
    """Seconds of a token ring's step over those of a ring's, where nothing but messages takes time."""
    cluster = four_a10(PORT_BYTES_PER_S, wiring, num_devices)
    seconds = []
    for kind in ("token_ring", "ring"):
        begun = [start for start, _ in rows_s(simulated(kind, cluster, kv_heads, computes=False), "ATTEND")]
        seconds.append(begun[-1] - begun[0])
    return seconds[0] / seconds[1]
