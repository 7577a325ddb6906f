"""Writes a plan as a shell script that launches Megatron-LM's pretrain_gpt.py with torchrun.

Facts from the checks in `megatron/training/arguments.py`, release of 2025: what an option needs beside it, and what goes
with nothing else.
"""

from __future__ import annotations

from itertools import groupby, product

from meshwright.interop.exported import Export, Exported
from meshwright.interop.megatron.arguments import (
    ATTENTION_DROPOUT,
    CAPTURED,
    CONTEXTS,
    DEGREES,
    GRAPH_SCOPE,
    IN_TWO_LEVELS,
    LEVELS,
    OVERLAPS,
    SOFTWARE,
    WHOLE_STEP,
)
from meshwright.interop.megatron.option import PIPELINE_INSIDE
from meshwright.interop.megatron.router import CORRECTION, LEFT_OPEN, router_options
from meshwright.interop.script_text import comment, shell_word
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.block import Attention, Experts, LatentRanks
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import AXES, Plan

Options = list[tuple[str, str]]  # name with its dashes, value (empty for a flag)

PRECISIONS = {"bfloat16": "--bf16", "float16": "--fp16", "float32": ""}
# E4M3 alone where scales are fine, E5M2 for gradients where one scale serves a whole tensor (Transformer Engine).
FLOAT8_FORMATS = {"tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
FSDP_STRATEGIES = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
ENDS = ("embedding", "loss")  # what may count as a layer of the first and of the last stage
SCHEDULES = ("1f1b", "interleaved_1f1b")
SINGLE_QUEUE = (
    "export CUDA_DEVICE_MAX_CONNECTIONS=1  # keeps the order of exchanges and products; not with FSDP"
)
LAUNCH = """torchrun --nnodes "$NUM_NODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "${NODE_RANK:-0}" \\
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-6000}" pretrain_gpt.py \\
    "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${TRAINING_ARGS[@]}" "${OWN_ARGS[@]}"
"""


def export_megatron(plan: Plan, cluster: ClusterSpec) -> Exported:
    """The script. Raises ExportError with every choice that Megatron-LM has no option for."""
    export = Export.begin("megatron", plan, SOFTWARE, (AXES, PIPELINE_INSIDE), passes=(CORRECTION,))
    model = [*_model_options(export), *router_options(export)]
    parallel = [*_degrees(export), *_stage_options(export), *_sharding(export), *_overlap(export)]
    training = [*_batch(export), *_precision(export), *_recompute(export), *_graph(export)]
    export.finish()
    left_open = (
        f"OWN_ARGS: data, a tokenizer of {plan.model.vocabulary_size} tokens, learning rate, checkpoints",
        "NODE_RANK, MASTER_ADDR and MASTER_PORT: set on every node",
        *((LEFT_OPEN,) if plan.model.num_experts else ()),
    )
    text = "\n".join(_lines(export, cluster, model, parallel, training)) + "\n\n" + LAUNCH
    return Exported("megatron", text, export.digest, ".sh", left_open, tuple(export.assumptions))


def _lines(export: Export, cluster: ClusterSpec, *groups: Options) -> list[str]:
    """Everything before the launch."""
    each = _devices_per_node(cluster)
    lines = ["#!/bin/bash", comment(export.headline())]
    if export.plan.tp * export.plan.cp > 1 and export.plan.sharding not in FSDP_STRATEGIES:
        lines.append(SINGLE_QUEUE)
    lines += [f"NUM_NODES={export.plan.num_devices // each}", f"GPUS_PER_NODE={each}"]
    for name, options in zip(("MODEL_ARGS", "PARALLEL_ARGS", "TRAINING_ARGS"), groups, strict=True):
        lines += [f"{name}=(", *(f"    {_words(option, value)}" for option, value in options), ")"]
    return [*lines, "OWN_ARGS=()  # data, tokenizer, learning rate, checkpoints"]


def _words(option: str, value: str) -> str:
    """An option of a shell's list; a flag has no value."""
    return f"{option} {shell_word(value)}" if value else option


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
    axes = [axis for axis in DEGREES if axis != "ep" or plan.model.num_experts]
    found = [(f"--{DEGREES[axis]}", str(getattr(plan, axis))) for axis in axes]
    if plan.model.num_experts:
        found += [
            ("--expert-tensor-parallel-size", str(plan.expert_tp)),
            ("--moe-token-dispatcher-type", "alltoall" if plan.dispatch == "copies" else "flex"),
        ]
        found += _flags("--moe-enable-deepep") if plan.dispatch == "once" else []
    if plan.cp > 1:
        found += _context(export)
    found += _flags("--use-tp-pp-dp-mapping") if plan.mesh_order == PIPELINE_INSIDE else []
    return found + (_flags("--sequence-parallel") if plan.sequence_parallel else [])


def _context(export: Export) -> Options:
    """How its context-parallel devices exchange; p2p, its own choice, is left out."""
    export.one_of("context", CONTEXTS, "it deals tokens out in a zigzag")
    plan, context = export.plan, export.plan.context
    num_kv_heads, among = plan.model.attention.num_kv_heads // plan.tp, plan.context_parallel.heads_degree
    export.need(
        num_kv_heads % among == 0,
        f'context = "ulysses" with cp = {plan.cp}' if plan.ulysses == 1 else f"ulysses = {plan.ulysses}",
        f"it does not repeat the {num_kv_heads} key-value heads of a device",
    )
    if plan.ulysses > 1:
        ring = str(plan.context_parallel.ring_degree)
        # two numbers are two words of the shell
        return [("--cp-comm-type", IN_TWO_LEVELS), (f"--{LEVELS} {plan.ulysses}", ring)]
    return [("--cp-comm-type", CONTEXTS[context])] if context in CONTEXTS and context != Plan.context else []


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
    is_in_pairs = (plan.pp == 1 or plan.schedule == "interleaved_1f1b") and plan.recompute != "full"
    export.need(
        is_in_pairs or plan.ep == 1 or "ep" not in plan.overlap,
        shown,
        "tokens go beside another microbatch with chunks in a pipeline, and with nothing recomputed whole",
    )
    return _flags(*(f"--{option}" for name, option in OVERLAPS.items() if name in plan.overlap))


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
    fused = "fused" if plan.model.attention.latent else "flash"
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


def _model_options(export: Export) -> Options:
    """Sizes, norms, positions and biases; experts and latent attention where the model has them."""
    model = export.plan.model
    _check_model(export)
    sizes = {
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden_size,
        "--ffn-hidden-size": model.intermediate_size,
        "--num-attention-heads": model.num_heads,
        "--max-position-embeddings": model.max_sequence_length,
        "--vocab-size": model.vocabulary_size,
        "--make-vocab-size-divisible-by": 1,  # the vocabulary of a plan is padded already
    }
    found = [(name, str(value)) for name, value in sizes.items()]
    attention = model.attention
    found += _latent(attention, attention.latent) if attention.latent else _attention(attention)
    if model.experts:
        found += _experts(model, model.experts)
    return found + _blocks(model)


def _check_model(export: Export) -> None:
    model, plan = export.plan.model, export.plan
    attention, feed_forward = model.attention, model.mlp or model.experts
    missing = {
        "a sliding window": any(block.attention.window for block, _ in model.blocks),
        "caps of scores or logits": attention.logit_cap > 0 or model.final_logit_cap > 0,
        "attention sinks and biases of experts": model.has_attention_sinks,
        f"{model.architecture}'s norms and scaled embedding": model.is_gemma,
        "a gate of the shared expert": model.has_shared_gate,
        "biases of some linear layers only": not model.is_gpt2
        and bool(attention.has_output_bias or (feed_forward and feed_forward.has_bias)),
    }
    for what, is_there in missing.items():
        export.need(not is_there, f"model {model.name}", f"no option that is read back says {what}")
    export.need(
        model.vocabulary_size % plan.tp == 0,
        f"tp = {plan.tp}",
        f"it does not divide the vocabulary of {model.vocabulary_size}",
    )
    length = plan.workload.sequence_length
    export.need(
        length <= model.max_sequence_length,
        f"sequence_length = {length}",
        f"{model.name} has {model.max_sequence_length} positions",
    )


def _attention(attention: Attention) -> Options:
    found = [("--kv-channels", str(attention.head_dim))]
    if attention.num_kv_heads != attention.num_heads:
        found += [("--group-query-attention", ""), ("--num-query-groups", str(attention.num_kv_heads))]
    return found


def _latent(attention: Attention, latent: LatentRanks) -> Options:
    found = [
        ("--multi-latent-attention", ""),
        ("--qk-head-dim", str(attention.head_dim - latent.rotary_head_dim)),
        ("--qk-pos-emb-head-dim", str(latent.rotary_head_dim)),
        ("--v-head-dim", str(latent.value_head_dim)),
        ("--kv-lora-rank", str(latent.key_value_rank)),
    ]
    return found + ([("--q-lora-rank", str(latent.query_rank))] if latent.query_rank else [])


def _experts(model: ModelSpec, experts: Experts) -> Options:
    found = [
        ("--num-experts", str(experts.num_experts)),
        ("--moe-router-topk", str(experts.num_experts_per_token)),
        ("--moe-ffn-hidden-size", str(experts.intermediate_size)),
        ("--moe-grouped-gemm", ""),
    ]
    if experts.shared_intermediate_size:
        found.append(("--moe-shared-expert-intermediate-size", str(experts.shared_intermediate_size)))
    if model.mlp:
        flags = [int(block.experts is not None) for block in model.layers]
        runs = "+".join(f"[{flag}]*{len(list(run))}" for flag, run in groupby(flags))
        found.append(("--moe-layer-freq", f"({runs})"))
    return found


def _blocks(model: ModelSpec) -> Options:
    """Norms, activation, positions, biases, and whether the head has a table of its own."""
    found: Options = [("--norm-epsilon", str(model.norm_epsilon))]
    if model.is_gpt2:
        found += [("--normalization", "LayerNorm"), ("--position-embedding-type", "learned_absolute")]
    else:
        found += [("--normalization", "RMSNorm"), ("--position-embedding-type", "rope")]
        found += [
            ("--rotary-base", f"{model.rope_theta:.0f}"),
            ("--swiglu", ""),
            ("--disable-bias-linear", ""),
        ]
    flags = {
        "--add-qkv-bias": model.attention.has_qkv_bias and not model.is_gpt2,
        "--qk-layernorm": model.attention.has_query_key_norm,
        "--untie-embeddings-and-output-weights": not model.has_tied_embeddings,
    }
    return found + [(name, "") for name, is_there in flags.items() if is_there]


def _stage_options(export: Export) -> Options:
    """The options; none for even stages of one chunk."""
    plan = export.plan
    _check_schedule(export)
    options = _layer_options(plan)
    if options is None:
        shown = ", ".join(map(str, plan.layers_per_stage))
        reason = (
            "stages are even but for the first and the last rank, or but for embedding and loss as layers"
        )
        export.refuse(f"layers_per_stage = {shown}", reason)
    found = [("--num-virtual-stages-per-pipeline-rank", str(plan.num_chunks))] if plan.num_chunks > 1 else []
    return [*found, *(options or [])]


def _check_schedule(export: Export) -> None:
    plan = export.plan
    export.one_of("schedule", SCHEDULES, f"it has {' and '.join(SCHEDULES)}")
    is_interleaved = plan.num_chunks > 1
    export.need(
        plan.schedule not in SCHEDULES or (plan.schedule == SCHEDULES[1]) == is_interleaved,
        f'schedule = "{plan.schedule}" with num_chunks = {plan.num_chunks}',
        "the interleaved schedule is that of several chunks a rank",
    )
    export.need(
        not is_interleaved or plan.pp > 1, f"num_chunks = {plan.num_chunks}", "chunks need a pipeline"
    )
    export.need(
        not is_interleaved or plan.num_microbatches % plan.pp == 0,
        f"{plan.num_microbatches} microbatches",
        f"the interleaved schedule takes them in groups of pp({plan.pp})",
    )


def _layer_options(plan: Plan) -> Options | None:
    """Options that make the plan's stages; None where there are none."""
    counts, pp = plan.layers_per_stage, plan.pp
    for ends in product((0, 1), repeat=2):
        each, rest = divmod(plan.model.num_layers + sum(ends), len(counts))
        dealt = [each] * len(counts)
        dealt[0] -= ends[0]
        dealt[-1] -= ends[1]
        if not rest and tuple(dealt) == counts and (pp > 1 or not any(ends)):
            names = [name for name, is_layer in zip(ENDS, ends, strict=True) if is_layer]
            return [(f"--account-for-{name}-in-pipeline-split", "") for name in names]
    ranks = [count * plan.num_chunks for count in counts[:pp]]
    repeats = counts[:pp] * plan.num_chunks == counts
    if pp == 1 or not repeats or len(set(ranks[1:-1])) > 1 or not (ranks[0] and ranks[-1]):
        return None
    return [
        ("--decoder-first-pipeline-num-layers", str(ranks[0])),
        ("--decoder-last-pipeline-num-layers", str(ranks[-1])),
    ]
