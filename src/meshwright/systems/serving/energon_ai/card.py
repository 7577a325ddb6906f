"""Stages of a pipeline that never wait for each other, batches without padding, and weights pooled with a neighbour.

Paper:      EnergonAI: An Inference System for 10-100 Billion Parameter Transformer Models, Jiangsu Du, Ziming Liu, Jiarui
            Fang, Shenggui Li, Yongbin Li, Yutong Lu, Yang You, 2022, arXiv 2209.02341
Problem:    Models of 10 to 100 billion parameters need several devices, and their stages wait, their batches are padded,
            their weights do not fit.
Idea:       One controller gives each batch a number and comes back at once; every stage has a bounded queue and works at
            another batch, so m batches of p stages that take t are done after (m + p - 1) t. Hidden states stay packed,
            [sum of lengths, hidden], but in the core of attention: linear layers do mean / max of the padded work. Layers
            that do not fit lie in a neighbour's memory and come k parts ahead: a device holds the others and k + 1 parts.
Kind:       policy
Use:        meshwright plan llama-3.1-70b 1x8xA100-80 --requests FILE --fix 'tp=2,replicas=1,weights=energon_ai(every=4)';
            meshwright serve MODEL --pp 2 --weights 'energon_ai(every=2,ahead=1)' (stages that do not wait, and packed
            batches, are how every model is served)
Simulated:  steps of any decoder with pooled weights, by the rate of the neighbour's link, each block behind the one before;
            lanes of a pipeline; packed batches
Executed:   pooled weights, packed steps and pipelines on the torch engine: processes of one host here (study.py), a CUDA
            device and a neighbour that no rank has where they are
Differs:    1. The abstract is what we could read: model, lengths, devices and batches behind its numbers are not known. The
            setting of our predictions is the public code's: its example (72 layers of width 3,072, tensor parallel over 4, 2
            stages, batches of 15 prompts of 1,024) and the lengths of its test of padding (24, 127, 31, 65, twice, padded to
            128), on A100s of 80 GB, with the 3 ms a step of our engine's host. Small sums take what the kernels of today's
            engines take: that gives 41.7 %; NCCL's, which the authors may have had, gave 36.8 %. That this came so near to
            37 % is chance as far as anybody can tell. Kernels are the same in both arms, so all of it is padding.
            2. 10 % beyond a pipeline that blocks is a miss: where all batches are alike a stage that waits for the next one
            loses one transfer a batch, 0.2 % over NVLink. Batches of different lengths would give much more
            (`batch_ends_s`); which ones the paper had is not known.
            3. Commands reach every rank from the controller, not stage by stage, so numbers cannot go astray; ranks obey in
            order. Waiting is on conditions and pipes; the public code sleeps 10 and 100 ms between looks.
            4. Attention reads pages of packed sequences and is never padded. The public code accepts lengths in its blocks
            and does not pass them on.
            5. What is pooled are parts of layers (attention, feed-forward), by a rule (`every`), and k counts parts. The
            public code brings every n-th layer 3 layers ahead. The neighbour computes for no replica, and a plan counts its
            room; the paper's also computes. That all-reduces use the same link is not simulated.
            6. The abstract gives no number for pooled weights ("limited performance reduction"), so none is claimed.
            7. The 50 % that a later page of the authors' promises stands without a setting, and is not claimed.
"""

from __future__ import annotations

from functools import cache

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.ir.table import Exchange
from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.loop.arrivals import RecordedArrivals
from meshwright.serving.loop.clock import VirtualClock
from meshwright.serving.loop.serving_loop import ServingLoop
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.scheduler import Scheduler
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram, StepTime
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.simulated_engine import SimulatedEngine
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.serving.energon_ai.mechanism import (
    batch_ends_s,
    linear_flops,
    packed_shape,
    padded_shape,
)

FILLS = {"weights": "mechanism:PeerPool"}
CLAIMS = (
    {
        "claim": "{num_batches} batches through 4 stages that take t, over t",
        "kind": "identity",
        "unit": "t",
        "tolerance": 1e-9,
        "reason": "m + 3, the fill of an ideal pipeline",
        "how": "requests of one token, one a batch, through the scheduler's four lanes on the simulated engine",
        "by": "makespan",
        "source": "the mechanism: m + p - 1",
        "cases": (({"num_batches": 1}, 4.0), ({"num_batches": 8}, 11.0), ({"num_batches": 64}, 67.0)),
    },
    {
        "claim": "prompts of {lengths} tokens, padded to {longest}: share of the work of linear layers that packing saves",
        "kind": "identity",
        "unit": "of the work",
        "tolerance": 0.01,
        "reason": "1 - mean / longest, counted in the operators of a step",
        "how": "products with weights of a simulated step, packed and padded",
        "by": "saved_work",
        "source": "the mechanism: 1 - mean / max",
        "cases": (
            ({"lengths": (24, 127, 31, 65, 24, 127, 31, 65), "longest": 128}, 0.517578),
            ({"lengths": (128, 64, 43, 32, 26, 21, 18, 16), "longest": 128}, 0.660156),
        ),
    },
    {
        "claim": "tensor parallelism: latency that is saved",
        "kind": "predicted",
        "unit": "of the latency",
        "tolerance": 0.25,
        "reason": "the setting is the public code's and not the paper's, which is not known",
        "how": "a step of 8.3 billion parameters over 4 A100s, prompts packed against padded, kernels and links simulated",
        "by": "saved_latency",
        "source": "abstract: 37 % lower latency in tensor parallelism than FasterTransformer",
        "null": {"no effect": 0.0, "bytes over bandwidth": 0.517578},
        "cases": (({}, 0.37),),
    },
    {
        "claim": "pipeline parallelism: scalability beyond that of stages that block",
        "kind": "predicted",
        "unit": "of the rate",
        "tolerance": 0.25,
        "reason": "of the gain: no gain is 1.0 off",
        "how": "rate of 64 equal batches through 2 stages of 4 A100s, transfers beside the next batch or before it",
        "by": "scalability_gain",
        "source": "abstract: 10 % higher scalability in pipeline parallelism than FasterTransformer",
        "null": {"no effect": 0.0},
        "cases": (({}, 0.10),),
    },
    {
        "claim": "here: logits of prompts of Zipf's lengths, packed against padded, largest difference",
        "kind": "measured",
        "unit": "relative",
        "tolerance": 1e-5,
        "reason": "float32; sums in another order",
        "how": "16 prompts of up to 64 tokens in one step of the torch engine, each alone padded behind its end",
        "by": "study:packed_difference",
        "source": "the mechanism: padding changes nothing",
        "cases": (({"seed": 0}, 0.0), ({"seed": 1}, 0.0)),
    },
    {
        "claim": "here: prompts of 64 / 1 to 64 / 16 tokens: share of executed products with weights that packing saves",
        "kind": "measured",
        "unit": "of the work",
        "tolerance": 0.01,
        "reason": "1 - mean / max within 1 %",
        "how": "torch's count of the products of both steps, logits of all rows",
        "by": "study:saved_products",
        "source": "the mechanism: 1 - mean / max of these lengths",
        "cases": (({}, 0.793945),),
    },
    {
        "claim": "here: four layers, every {every} pooled, {ahead} ahead: logits against those of weights that stay",
        "kind": "measured",
        "unit": "relative",
        "tolerance": 0.0,
        "reason": "the same numbers in the same order: bit by bit",
        "how": "a prompt and decodes on the torch engine, blocks copied from a neighbour's memory",
        "by": "study:pooled_difference",
        "source": "the mechanism: where weights lie changes nothing",
        "cases": (({"every": 1, "ahead": 1}, 0.0), ({"every": 2, "ahead": 1}, 0.0)),
    },
    {
        "claim": "here: most bytes of weights on the device at any time, every {every}, {ahead} ahead, over what is budgeted",
        "kind": "measured",
        "unit": "x",
        "tolerance": 0.01,
        "reason": "what stays and the window, which is full at some time",
        "how": "counted when a block comes and when it goes, over eight steps",
        "by": "study:peak_over_budget",
        "source": "the mechanism: others and k + 1 parts",
        "cases": (({"every": 1, "ahead": 1}, 1.0), ({"every": 2, "ahead": 1}, 1.0)),
    },
    {
        "claim": "here: steps that the first of two stages has computed while the second one is stopped",
        "kind": "measured",
        "unit": "steps",
        "tolerance": 0.0,
        "reason": "as many as there is room for: one a stage",
        "how": "processes; the second is stopped by a signal, two steps are started from one controller",
        "by": "study:steps_ahead",
        "source": "the mechanism: stages do not wait for each other, queues are bounded",
        "cases": (({}, 2.0),),
    },
    {
        "claim": "here: different orders in which four ranks (2 x 2) do {num_steps} steps while they are stopped at random",
        "kind": "measured",
        "unit": "orders",
        "tolerance": 0.0,
        "reason": "ranks that share a layer must do the same step",
        "how": "the numbers that each rank reports, one list a rank, lists that differ counted",
        "by": "study:num_orders",
        "source": "the mechanism: one order, that of the controller",
        "cases": (({"num_steps": 24}, 1.0),),
    },
)

NUM_STAGES = 4  # of the identity
# hpcaitech/EnergonAI: examples/gpt/gpt.py (gpt2_8B; its 50,257 words padded so that 4 divide them), gpt_config.py (tensor and
# pipeline parallel degrees, largest batch), tests/test_kernel/test_transpose_pad_fusion_kernel.py (lengths, padded length).
NUM_LAYERS, HIDDEN_SIZE, NUM_HEADS, NUM_WORDS, NUM_POSITIONS = 72, 3072, 24, 50_304, 1024
TP, PP, BATCH, BATCH_TOKENS = 4, 2, 15, 1024
LENGTHS, PADDED = (24, 127, 31, 65, 24, 127, 31, 65), 128
DEVICES = "1x8xA100-80"
NUM_BATCHES = 64  # through the pipeline, so that its filling hardly counts
ACTIVATION_BYTES = 2


class EqualStages:
    """A `StepModel` of stages that take a second each, whatever they compute."""

    def step(self, batch: BatchShape) -> StepTime:
        """Of any batch."""
        return StepTime(float(NUM_STAGES), 1.0)

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        """Step by step."""
        return 1, float(NUM_STAGES)


def makespan(num_batches: int) -> float:
    """When the last of so many batches has left four stages of a second, each batch a request of one token."""
    size = NUM_STAGES  # of a prompt and a step, so that each prompt is a step
    limits = Limits(max_batch_tokens=size, max_sequences=NUM_STAGES, max_model_tokens=size + 1)
    scheduler = Scheduler(ContinuousBatching(), BlockPool(num_batches, size), limits, num_lanes=NUM_STAGES)
    requests = [Request(f"{number}", size, 1, num_output_tokens=1) for number in range(num_batches)]
    clock, engine = VirtualClock(), SimulatedEngine(scheduler, EqualStages(), NUM_STAGES)
    ServingLoop(scheduler, engine, RecordedArrivals(requests), clock).run()
    return clock.now_s()


@cache
def example(tp: int = TP, pp: int = PP) -> ForwardProgram:
    """A step of the public code's example model."""
    model = ModelSpec.gpt(
        NUM_LAYERS, HIDDEN_SIZE, NUM_HEADS, vocabulary_size=NUM_WORDS, max_sequence_length=NUM_POSITIONS,
        name="gpt2_8B", source="hpcaitech/EnergonAI, examples/gpt/gpt.py",
    )  # fmt: skip
    return ForwardProgram(model, Cluster(DEVICES), ReplicaLayout(tp, pp))


def saved_work(lengths: tuple[int, ...], longest: int) -> float:
    """Share of the work of linear layers that is not done where prompts are packed."""
    program = example(1, 1)
    padded = linear_flops(program, padded_shape(lengths, longest))
    return 1.0 - linear_flops(program, packed_shape(lengths)) / padded


def saved_latency() -> float:
    """Share of a step's latency that padding takes."""
    program = example(TP, 1)
    padded, packed = (program.step(each) for each in (padded_shape(LENGTHS, PADDED), packed_shape(LENGTHS)))
    return 1.0 - packed.latency_s / padded.latency_s


def scalability_gain() -> float:
    """What the rate of stages that do not block has beyond that of those that do."""
    program, batch = example(), BatchShape.of([(0, BATCH_TOKENS)] * BATCH)
    stage_s = [[program.step(batch).period_s] * PP] * NUM_BATCHES
    num_bytes = float(batch.num_tokens * HIDDEN_SIZE * ACTIVATION_BYTES)
    exchange = Exchange(("pp",), ends=(0, 1))
    transfer_s = NcclCollectives(program.cluster).exchange_cost(exchange, num_bytes, (0, TP)).seconds
    blocking, flowing = (batch_ends_s(stage_s, transfer_s, blocks=blocks)[-1] for blocks in (True, False))
    return blocking / flowing - 1.0
