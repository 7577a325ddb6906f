"""Serving steps in nano-batches, whose compute-, memory- and network-bound kernels run beside each other on one device.

Paper:      NanoFlow: Towards Optimal Large Language Model Serving Throughput, Kan Zhu, Yufei Gao, Yilong Zhao, Liangyu
            Zhao, Gefei Zuo, Yile Gu, Dedong Xie, Tian Tang, Qinyu Xu, Zihao Ye, Keisuke Kamahori, Chien-Yu Lin, Ziren Wang,
            Stephanie Wang, Arvind Krishnamurthy, Baris Kasikci, 2024, arXiv 2408.12757v2
Problem:    A step runs kernels bound by compute, by memory and by the network one behind the other, so that each resource
            is idle most of the time.
Idea:       Where compute C is what bounds, at most C / 2P tokens/s go through a model of P parameters. The rows of a step
            are cut into nano-batches, which are independent of each other; a product of one runs beside decode attention of
            another and a message of a third. Kernels beside each other share the device: a share R lets one run at P(R) of
            its speed, products at R. A search finds the cut without interference, then the shares with it. The next batch
            is formed while one runs; keys and values go to the host beside the feed-forward part, layer by layer.
Kind:       policy
Use:        meshwright plan MODEL CLUSTER --requests FILE --fix step=nano_flow
Simulated:  every kernel and message of a layer by measured curves, on three resources, at P(R); host and disks beside them
Executed:   the torch runner in nano-batches, which take turns part by part: the logits of the whole batch; on CPUs nothing
            is gained. Two batches under way: one token too many for each sequence that ends
Differs:    1. P(R) is the paper's (table 3, profiled on an A100), between its points lines; it is used on every device.
            2. The searches are descents where the paper solves integer programs; the share of what is computed is what the
            others beside it leave. A pipeline is searched for batches that are alike, and a batch that is faster whole runs
            whole.
            3. Messages stay what tensor parallelism sends; the paper also turns all-reduces into all-gathers. Ours are
            those of NCCL (60.8 ms in table 2's step), the paper's of MSCCL++ (47.9): much of what our gains lack.
            4. 1.91 x over TensorRT-LLM is no gain of overlap, which is worth 1.62 to 1.67 x at most by arithmetic (T_comp
            114, T_mem 40 to 45, T_net 31 ms on 8 A100) and 1.18 to 1.22 x as measured (figure 9). The rest, 1.5 x at
            512/512 (1,106 unsplit over 735), lies between the authors' own unsplit pipeline and TensorRT-LLM 0.8: batches,
            kernels and a host that is waited for. NVIDIA's own figures of release 0.17 (8 A100, a 70B model, 1000/1000) are
            830 tokens/s a GPU. We predict the gain of overlap, and the claim of 1.91 x fails.
            5. The text says 280 TFLOP/s and 70e9 parameters, which make 2,000 tokens/s, not 1,857 (260 TFLOP/s).
            6. Text and figure differ: 1.07 and 1.17 x in 6.4, 1.14 and 1.22 x by the bars of figure 9. Claimed are the
            bars.
            7. Loads are the steady batch: as many decodes as prompts need, each in the middle of its output; lengths are
            means.
            8. Blocks leave as tokens are computed, as in the paper's second version; the first let go of finished requests.
            9. Copies cost us a tenth of what they cost the authors: that claim fails, and so do three kernels of table 2.
            Our decode attention is faster there than its bytes over the bandwidth: the package's curve is wrong by as much.
            Not claimed: latencies (figure 8), the baselines' own throughput, reuse over several rounds (3.02 x).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from meshwright.serving.policy.limits import Limits
from meshwright.serving.request.request_file import BLOCK_TOKENS
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.parted.step_line import lines_of
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.replica_memory import replica_memory, token_bytes
from meshwright.serving.simulated.step_overhead import StepOverhead
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.model.model import ModelSpec
from meshwright.systems.serving.nano_flow.mechanism import NanoFlow, NanoSteps

FILLS = {"step": "mechanism:NanoFlow"}
CLAIMS = (
    {
        "claim": "tokens/s a GPU that a 70B model can have at most",
        "kind": "predicted",
        "unit": "tokens/s/GPU",
        "tolerance": 0.1,
        "reason": "which products the authors profiled is not said",
        "how": "rate of a layer's products at 2,048 tokens by the package's A100 curve, over 2 P. Null: the data sheet",
        "by": "optimum",
        "source": "section 3.5, figure 7",
        "null": {"bytes over bandwidth": "data_sheet_optimum"},
        "cases": (({}, 1857.0),),
    },
    {
        "claim": "gain of overlapping nano-batches over the unsplit batch, {prompt} tokens in, {output} out",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "steady batch of 2,048 tokens, 8xA100-80, tp=8, float16, host hidden",
        "by": "gain",
        "source": "figure 9: NanoFlow over Non-overlap",
        "null": {"no effect": 1.0},
        "cases": (
            ({"prompt": 512, "output": 0}, 1.1359),
            ({"prompt": 512, "output": 512}, 1.1962),
            ({"prompt": 1024, "output": 512}, 1.1822),
            ({"prompt": 512, "output": 1024}, 1.2185),
        ),
    },
    {
        "claim": "negative control, nano-batches one behind the other over the unsplit batch, {prompt} in, {output} out",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "steady batch of 2,048 tokens, 8xA100-80, tp=8, float16, host hidden; the cut is that of the pipeline",
        "by": "control",
        "source": "figure 9: Nanobatch-only over Non-overlap",
        "null": {"no effect": 1.0},
        "cases": (
            ({"prompt": 512, "output": 0}, 0.9199),
            ({"prompt": 512, "output": 512}, 0.8879),
            ({"prompt": 1024, "output": 512}, 0.8773),
            ({"prompt": 512, "output": 1024}, 0.9084),
        ),
    },
    {
        "claim": "tokens/s a GPU of Llama-2-70B on 8 A100, {prompt} tokens in, {output} out",
        "kind": "predicted",
        "unit": "tokens/s/GPU",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "steady batch of 2,048 tokens, 8xA100-80, tp=8, float16, host hidden. "
        "Nulls: the unsplit batch, and the optimum by the data sheet",
        "by": "throughput",
        "source": "figure 7a",
        "null": {"no effect": "unsplit_throughput", "bytes over bandwidth": "data_sheet_optimum"},
        "cases": (
            ({"prompt": 512, "output": 512}, 1286.0),
            ({"prompt": 1024, "output": 512}, 1263.0),
            ({"prompt": 512, "output": 1024}, 1212.0),
        ),
    },
    {
        "claim": "tokens/s a GPU of {model}, 1,024 tokens in, 512 out (59 to 78 % of the optimum)",
        "kind": "predicted",
        "unit": "tokens/s/GPU",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "steady batch of 2,048 tokens, 8xA100-80, tp=8, float16, host hidden "
        "(4,096 for Mixtral, 1,024 and one A100 for 8B: the authors' configurations). Nulls as above",
        "by": "ported_throughput",
        "source": "figure 11",
        "null": {"no effect": "unsplit_ported", "bytes over bandwidth": "data_sheet_ported"},
        "cases": (
            ({"model": "llama-3-70b"}, 1306.0),
            ({"model": "qwen2-72b"}, 1213.0),
            ({"model": "deepseek-67b"}, 1147.0),
            ({"model": "mixtral-8x7b"}, 6564.0),
            ({"model": "llama-3-8b"}, 12756.0),
        ),
    },
    {
        "claim": "the abstract's gain over TensorRT-LLM on the lengths of three data sets; ours is that of overlap",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "steady batch of 2,048 tokens, 8xA100-80, tp=8, float16, host hidden; "
        "mean over the sets' mean lengths of overlapped over unsplit: no other engine is simulated",
        "by": "gain_on_data_sets",
        "source": "abstract, figure 7b",
        "null": {"no effect": 1.0},
        "cases": (({}, 1.91),),
    },
    {
        "claim": "share of throughput that is lost to keys and values on their way to the host",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.25,
        "reason": "an effect of 3 %, of kernels whose share of the device is not said",
        "how": "steady batch of 2,048 tokens, 8xA100-80, tp=8, float16, host hidden; "
        "copies at the smallest profiled share, disks fast enough; mean over the four loads of figure 9",
        "by": "lost_to_copies",
        "source": "section 6.4",
        "null": {"no effect": 0.0},
        "cases": (({}, 0.03),),
    },
    {
        "claim": "GB/s of keys and values to disk at the optimum, Llama-2-70B on 8 A100",
        "kind": "identity",
        "unit": "GB/s",
        "tolerance": 0.05,
        "reason": "given as a round number",
        "how": "1,857 tokens/s x 8 GPUs x 2 x 80 layers x 8 heads x 128 x 2 bytes: two disks of 3 GB/s",
        "by": "disk_rate",
        "source": "README of efeslab/Nanoflow",
        "cases": (({}, 5.0),),
    },
    {
        "claim": "largest difference of logits between {most} nano-batches and the whole step, over their spread",
        "kind": "measured",
        "unit": "of the spread",
        "tolerance": 1e-5,
        "reason": "the project's tolerance in float32",
        "how": "torch runner, random weights, 48 decodes beside a chunk of 464 tokens, cut as the mechanism cuts",
        "by": "study:largest_difference",
        "source": "section 3.7: the same operations on parts of the batch",
        "cases": (({"most": 2}, 0.0), ({"most": 4}, 0.0)),
    },
    {
        "claim": "tokens computed for nobody, for each sequence that a token ended, the next batch formed while one runs",
        "kind": "measured",
        "unit": "tokens",
        "tolerance": 0.0,
        "reason": "a count",
        "how": "24 requests on the torch runner, two batches under way; who ends at its limit wastes none",
        "by": "study:wasted_per_end",
        "source": "section 4.2.1: one extra decode token",
        "cases": (({}, 1.0),),
    },
    {
        "claim": "ms of '{kernel}' in a step of 2,048 tokens, 1,377 tokens seen by each of 1,024 decodes",
        "kind": "predicted",
        "unit": "ms",
        "tolerance": 0.25,
        "reason": "kernels of another library, by curves of NVIDIA's",
        "how": "the package's measured curves; the context is that of table 2's bytes. Null: its own estimate",
        "by": "kernel_ms",
        "source": "table 2, real time",
        "null": {"bytes over bandwidth": "estimated_ms"},
        "cases": (
            ({"kernel": "qkv"}, 16.08),
            ({"kernel": "output"}, 16.01),
            ({"kernel": "gate_up"}, 69.92),
            ({"kernel": "down"}, 34.96),
            ({"kernel": "decodes"}, 35.60),
            ({"kernel": "chunks"}, 4.56),
            ({"kernel": "all_reduce"}, 47.92),
        ),
    },
)
# Table 2's estimates by data sheets, of the most constrained resource, in ms.
ESTIMATED_MS = {
    "qkv": 11.01, "output": 8.81, "gate_up": 61.67, "down": 30.84, "decodes": 28.89, "chunks": 0.37, "all_reduce": 31.33,
}  # fmt: skip
DATA_SETS = {
    "splitwise": (1155, 211),
    "lmsys": (102, 222),
    "sharegpt": (246, 322),
}  # table 4: mean tokens in, out
ABLATED = ((512, 0), (512, 512), (1024, 512), (512, 1024))  # figure 9: tokens in, out
DENSE_TOKENS = 2048


class Port(NamedTuple):
    """A model as the authors serve it: its preset of the same dimensions, GPUs, and tokens of a step."""

    model: str | ModelSpec
    tp: int = 8
    num_tokens: int = DENSE_TOKENS


PORTS = {
    "llama-2-70b": Port("llama-2-70b"),
    "llama-3-70b": Port("llama-3.1-70b"),
    "qwen2-72b": Port("qwen2.5-72b"),
    "deepseek-67b": Port(
        ModelSpec.decoder(
            95, 8192, 64, num_kv_heads=8, intermediate_size=22016, vocabulary_size=102400, name="deepseek-67b"
        )
    ),
    "mixtral-8x7b": Port("mixtral-8x7b", num_tokens=4096),
    "llama-3-8b": Port("llama-3.1-8b", tp=1, num_tokens=1024),
}


@cache
def program(model: str) -> ForwardProgram:
    """A step of a model on A100s, whose host is never waited for."""
    port, alone = PORTS[model], StepOverhead(host_s=0.0)
    cluster = Cluster("8xA100-80" if port.tp > 1 else "1xA100-80")
    return ForwardProgram(load_model(port.model), cluster, ReplicaLayout(port.tp), "float16", alone)


@cache
def steps(model: str) -> NanoSteps:
    """Its steps in nano-batches."""
    return NanoSteps(program(model), NanoFlow())


def steady_batch(model: str, prompt: int, output: int) -> BatchShape:
    """Of many requests of such lengths: each decode sees its prompt and half of its output; as many as blocks hold."""
    num_tokens, own = PORTS[model].num_tokens, program(model)
    memory = replica_memory(own, Limits(num_tokens, num_tokens, prompt + output), BLOCK_TOKENS)
    seen = prompt + output // 2
    decodes = min(round(num_tokens * output / (prompt + output)), memory.num_blocks * BLOCK_TOKENS // seen)
    tokens = min(round(decodes * prompt / output), num_tokens - decodes) if output else num_tokens
    return BatchShape(tokens, tokens * prompt // 2, max(1, round(tokens / prompt)), decodes, decodes * seen)


def throughput(prompt: int, output: int, model: str = "llama-2-70b") -> float:
    """Tokens a second and GPU, prompts' and outputs'."""
    batch = steady_batch(model, prompt, output)
    return batch.num_tokens / steps(model).step(batch).latency_s / PORTS[model].tp


def unsplit_throughput(prompt: int, output: int, model: str = "llama-2-70b") -> float:
    """The same of whole batches."""
    batch = steady_batch(model, prompt, output)
    return batch.num_tokens / program(model).step(batch).latency_s / PORTS[model].tp


def gain(prompt: int, output: int) -> float:
    """Of overlapping nano-batches."""
    return throughput(prompt, output) / unsplit_throughput(prompt, output)


def control(prompt: int, output: int) -> float:
    """Of nano-batches that do not overlap."""
    batch, (line,) = steady_batch("llama-2-70b", prompt, output), steps("llama-2-70b").lines
    return program("llama-2-70b").step(batch).latency_s / line.span_s(batch, overlaps=False)


def lost_to_copies() -> float:
    """Mean over the loads, in the same pipelines."""
    (line,) = steps("llama-2-70b").lines
    copied_bytes = token_bytes(program("llama-2-70b")) / PORTS["llama-2-70b"].tp
    batches = [steady_batch("llama-2-70b", *lengths) for lengths in ABLATED]
    kept = [line.span_s(batch) / line.span_s(batch, copied_bytes=copied_bytes) for batch in batches]
    return 1.0 - sum(kept) / len(kept)


def gain_on_data_sets() -> float:
    """Mean over the data sets."""
    return sum(gain(*lengths) for lengths in DATA_SETS.values()) / len(DATA_SETS)


def ported_throughput(model: str) -> float:
    """1,024 tokens in, 512 out."""
    return throughput(1024, 512, model)


def unsplit_ported(model: str) -> float:
    """The same of whole batches."""
    return unsplit_throughput(1024, 512, model)


def optimum() -> float:
    """Measured rate of a layer's products over two operations a parameter."""
    own = program("llama-2-70b")
    batch = BatchShape.of([(0, DENSE_TOKENS)])
    (line,) = lines_of(own)
    products = [
        each for step in line.steps for each in own.operators(step, batch)
        if each.kind == "matmul" and each.label != "vocabulary"
    ]  # fmt: skip
    seconds = sum(own.costs.operator(each, own.dtype).seconds for each in products)
    return float(sum(each.flops for each in products) / seconds / (2.0 * own.model.num_parameters))


def data_sheet_optimum(**_: int) -> float:
    """With the peak of the data sheet."""
    return data_sheet_ported("llama-2-70b")


def data_sheet_ported(model: str) -> float:
    """With the peak of the data sheet, and the parameters that a token meets."""
    own = program(model)
    return own.cluster.devices[0].flops_per_s["float16"] / (2.0 * own.model.num_active_parameters)


def disk_rate() -> float:
    """At the paper's optimum."""
    return 1857.0 * 8 * token_bytes(program("llama-2-70b")) / 1e9


def kernel_ms(kernel: str) -> float:
    """All of one name in a step."""
    (line,) = lines_of(program("llama-2-70b"))
    batch = BatchShape.of([(0, 512), (0, 512)], 1024, 1024 * 1377)
    taken = line.seconds(batch)
    found = (seconds for place, seconds in zip(line.places, taken, strict=True) if place.name == kernel)
    return 1e3 * float(sum(found))


def estimated_ms(kernel: str) -> float:
    """The paper's own, by data sheets."""
    return ESTIMATED_MS[kernel]
