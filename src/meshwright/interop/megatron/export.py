"""Writes a plan as a shell script that launches Megatron-LM's pretrain_gpt.py with torchrun.

Facts from the checks in `megatron/training/arguments.py`, release of 2025: what an option needs beside it, and what goes
with nothing else.
"""

from __future__ import annotations

from meshwright.interop.exported import Export, Exported
from meshwright.interop.megatron.arguments import (
    ATTENTION_DROPOUT,
    CAPTURED,
    GRAPH_SCOPE,
    SOFTWARE,
    WHOLE_STEP,
)
from meshwright.interop.megatron.export_model import model_options
from meshwright.interop.megatron.export_stage import stage_options
from meshwright.interop.megatron.option import PIPELINE_INSIDE
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import AXES, Plan

Options = list[tuple[str, str]]  # name with its dashes, value (empty for a flag)

PRECISIONS = {"bfloat16": "--bf16", "float16": "--fp16", "float32": ""}
# E4M3 alone where scales are fine, E5M2 for gradients where one scale serves a whole tensor (Transformer Engine).
FLOAT8_FORMATS = {"tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
FSDP_STRATEGIES = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
SINGLE_QUEUE = (
    "export CUDA_DEVICE_MAX_CONNECTIONS=1  # keeps the order of exchanges and products; not with FSDP"
)
LAUNCH = """torchrun --nnodes "$NUM_NODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "${NODE_RANK:-0}" \\
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-6000}" pretrain_gpt.py \\
    "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "${OWN_ARGS[@]}"
"""


def export_megatron(plan: Plan, cluster: ClusterSpec) -> Exported:
    """The script. Raises ExportError with every choice that Megatron-LM has no option for."""
    export = Export.begin("megatron", plan, SOFTWARE, (AXES, PIPELINE_INSIDE))
    model = model_options(export)
    parallel = [*_degrees(export), *stage_options(export), *_sharding(export), *_overlap(export)]
    training = [*_batch(export), *_precision(export), *_recompute(export), *_graph(export)]
    export.finish()
    left_open = (
        f"OWN_ARGS: data, a tokenizer of {plan.model.vocabulary_size} tokens, learning rate, checkpoints",
        "NODE_RANK, MASTER_ADDR and MASTER_PORT: set on every node",
    )
    text = "\n".join(_lines(export, cluster, model, parallel, training)) + "\n\n" + LAUNCH
    return Exported("megatron", text, export.digest, ".sh", left_open, tuple(export.assumptions))


def _lines(export: Export, cluster: ClusterSpec, *groups: Options) -> list[str]:
    """Everything before the launch."""
    each = _devices_per_node(cluster)
    lines = ["#!/bin/bash", f"# {export.headline()}"]
    if export.plan.tp * export.plan.cp > 1 and export.plan.sharding not in FSDP_STRATEGIES:
        lines.append(SINGLE_QUEUE)
    lines += [f"NUM_NODES={export.plan.num_devices // each}", f"GPUS_PER_NODE={each}"]
    for name, options in zip(("MODEL_ARGS", "PARALLEL_ARGS", "TRAINING_ARGS"), groups, strict=True):
        lines += [f"{name}=(", *(f"    {option} {value}".rstrip() for option, value in options), ")"]
    return [*lines, "OWN_ARGS=()  # data, tokenizer, learning rate, checkpoints"]


def _devices_per_node(cluster: ClusterSpec) -> int:
    """Processes that one launcher starts: the devices of the innermost level."""
    return min(cluster.levels[0].num_devices, cluster.num_devices)


def _flags(*names: str) -> Options:
    return [(name, "") for name in names]


def _degrees(export: Export) -> Options:
    plan = export.plan
    export.check_experts()
    length, step = plan.workload.sequence_length, (2 * plan.cp if plan.cp > 1 else 1)
    step *= plan.tp if plan.sequence_parallel else 1
    export.need(length % step == 0, f"sequence_length = {length}", f"with these degrees it divides by {step}")
    is_divided = plan.sequence_parallel or plan.tp == 1
    export.need(
        is_divided or not plan.model.num_experts,
        f"tp = {plan.tp} without sequence_parallel",
        "experts and tensor parallelism go with sequence parallelism only",
    )
    found = [
        ("--tensor-model-parallel-size", str(plan.tp)),
        ("--pipeline-model-parallel-size", str(plan.pp)),
        ("--context-parallel-size", str(plan.cp)),
    ]
    if plan.model.num_experts:
        found += [
            ("--expert-model-parallel-size", str(plan.ep)),
            ("--expert-tensor-parallel-size", str(plan.expert_tp)),
            ("--moe-token-dispatcher-type", "alltoall"),
        ]
    found += _flags("--use-tp-pp-dp-mapping") if plan.mesh_order == PIPELINE_INSIDE else []
    return found + (_flags("--sequence-parallel") if plan.sequence_parallel else [])


def _sharding(export: Export) -> Options:
    plan = export.plan
    if plan.sharding == "none":
        return []
    found = _flags("--use-distributed-optimizer")
    if plan.sharding in FSDP_STRATEGIES:
        found += _flags("--use-megatron-fsdp")
        strategy = FSDP_STRATEGIES[plan.sharding]
        found += [("--data-parallel-sharding-strategy", strategy), ("--ckpt-format", "fsdp_dtensor")]
    if plan.sharding_degree:
        instances = plan.dp * plan.cp // plan.sharding_degree
        found.append(("--num-distributed-optimizer-instances", str(instances)))
    return found


def _overlap(export: Export) -> Options:
    plan = export.plan
    shown = f"overlap = {', '.join(plan.overlap) or 'nothing'}"
    is_whole = {"reduce", "gather"} <= set(plan.overlap)
    export.need(
        is_whole or "gather" not in plan.overlap,
        shown,
        "parameters are gathered beside computes only with gradients",
    )
    export.need(is_whole or plan.sharding != "zero3", shown, "its FSDP overlaps both directions")
    export.need(
        plan.sequence_parallel or "tp" not in plan.overlap,
        shown,
        "tensor parallelism overlaps with sequence parallelism",
    )
    names = {"reduce": "--overlap-grad-reduce", "gather": "--overlap-param-gather", "tp": "--tp-comm-overlap"}
    return _flags(*(option for name, option in names.items() if name in plan.overlap))


def _batch(export: Export) -> Options:
    workload = export.plan.workload
    found = [
        ("--micro-batch-size", str(export.plan.microbatch_size)),
        ("--global-batch-size", str(workload.global_batch)),
        ("--seq-length", str(workload.sequence_length)),
    ]
    if workload.num_steps is not None:
        found.append(("--train-iters", str(workload.num_steps)))
    return found


def _precision(export: Export) -> Options:
    plan = export.plan
    export.one_of("dtype", PRECISIONS, f"it trains in {', '.join(PRECISIONS)}")
    export.check_float32_copies()
    found = _flags(*filter(None, [PRECISIONS.get(plan.dtype, "")]))
    if plan.dtype == "bfloat16" == plan.reduction_dtype:
        found += _flags("--grad-reduce-in-bf16")
    elif plan.dtype != "float32" and plan.reduction_dtype == "float32":
        found += _flags("--accumulate-allreduce-grads-in-fp32")
    return found + _float8(export)


def _float8(export: Export) -> Options:
    recipe = export.plan.float8
    export.one_of("float8", ("", *FLOAT8_FORMATS), f"its recipes are {', '.join(FLOAT8_FORMATS)}")
    if not recipe:
        return []
    return [("--fp8-format", FLOAT8_FORMATS.get(recipe, "")), ("--fp8-recipe", recipe)]


def _recompute(export: Export) -> Options:
    """Recompute, attention, and dropout, which decides what attention keeps."""
    plan = export.plan
    export.one_of(
        "recompute", ("none", "selective", "full"), "it has no choice by operation that a plan knows"
    )
    found: Options = []
    if plan.recompute in ("selective", "full"):
        found.append(("--recompute-granularity", plan.recompute))
    if plan.recompute == "full":
        found += _recomputed_blocks(export)
    else:
        export.check_all_blocks()
    # FlashAttention wants keys as wide as values; latent attention goes to cuDNN's kernel.
    fused = "fused" if plan.model.has_latent_attention else "flash"
    rate = ATTENTION_DROPOUT if plan.attention == "unfused_dropout" else "0.0"
    return [
        *found,
        ("--attention-backend", fused if plan.attention == "flash" else "unfused"),
        ("--attention-dropout", rate),
        ("--hidden-dropout", "0.0"),
    ]


def _recomputed_blocks(export: Export) -> Options:
    """Every block by itself, or as many of every chunk of a rank, its first ones; all where a chunk has fewer."""
    counts = export.plan.recompute_blocks
    if not counts:
        return [("--recompute-method", "uniform"), ("--recompute-num-layers", "1")]
    most = max(counts)
    export.need(
        counts == tuple(min(most, each) for each in export.plan.layers_per_stage),
        f"recompute_blocks = {', '.join(map(str, counts))}",
        "it recomputes as many blocks of every stage",
    )
    return [("--recompute-method", "block"), ("--recompute-num-layers", str(most))]


def _graph(export: Export) -> Options:
    export.one_of("software", (SOFTWARE, CAPTURED), "its kernels are fused by hand, with or without a graph")
    if export.plan.software != CAPTURED:
        return []
    graph = [("--cuda-graph-impl", "local"), (f"--{GRAPH_SCOPE}", WHOLE_STEP)]
    return graph + _flags("--te-rng-tracker", "--no-check-for-nan-in-loss-and-grad")
