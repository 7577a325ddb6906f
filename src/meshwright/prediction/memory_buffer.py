"""Bytes that come and go around a step's peak: logits, gradients inside a block, gathered parameters, messages, context.

Each is a sum of tensors with a name; nothing here is fitted. Formats and degrees are the plan's.
"""

from __future__ import annotations

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.adaptation import trains_table
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.software import SoftwareClass
from meshwright.specs.sequence.context_parallel import ContextParallel
from meshwright.stage.exchange.inner import LOSS_ELEMENT_BYTES
from meshwright.stage.piece import has_vocabulary_share, is_vocabulary_split
from meshwright.stage.saved.saved import (
    block_saved,
    boundary_bytes_per_token,
    context_saved,
    tensor_bytes,
)
from meshwright.stage.work import StageWork

FLOAT32_BYTES = 4
MIB = 1 << 20
NUM_FUSED_LOGITS = 2  # in float32 at once, fused by hand: the logits, widened, and their exponentials
NUM_GATHERED_BLOCKS = 2  # FSDP gathers the next block while one computes
NUM_LATE_ROWS = 2  # of a block: two products of tensor parallelism end in a reduction
NUM_MESSAGES = 2  # of a stage's boundary: a received gradient, and a result on its way
# Outside PyTorch's allocator: the driver's context with the kernels of its libraries, half a GiB as a rule of thumb; and
# for every NCCL communicator 32 channels with a buffer of 4 MiB (the default of NCCL_BUFFSIZE) in each direction.
CUDA_CONTEXT_BYTES = 512 * MIB
# Loaded at once: 1573 MiB on A100 (BLOOM's chronicles, bigscience-workshop/bigscience), 1 to 2 GB (The Ultra-Scale Playbook).
MOST_CUDA_CONTEXT_BYTES = 2048 * MIB
COMMUNICATOR_BYTES = 32 * 2 * 4 * MIB
# With buffers of all three protocols: beside these "simple" ones 8 x 512 x 8 x 16 bytes of LL, and 120 x 640 x 8 x 8 of LL128
# (NCCL, src/init.cc).
MOST_COMMUNICATOR_BYTES = 32 * 2 * (4 * MIB + 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8)


def loss_bytes(work: StageWork) -> float:
    """Logits and what is made of them at once, on one device that has the head or its part of it."""
    plan = work.plan
    split = plan.tp * (plan.pp if is_vocabulary_split(plan) else 1)
    logits = work.num_tokens * plan.model.vocabulary_size / split
    return logits * bytes_of_logit(plan.software_class, plan.dtype)


def bytes_of_logit(software: SoftwareClass, dtype: str) -> float:
    """What one logit of a format takes, with what this software makes of it at once."""
    if software.has_loss_in_place:
        return dtype_bytes(dtype)
    if software.fuses_loss:
        return dtype_bytes(dtype) + NUM_FUSED_LOGITS * FLOAT32_BYTES
    return software.keeps.num_wide_logits * FLOAT32_BYTES


def waiting_bytes(plan: Plan) -> float:
    """What a device keeps of one microbatch between the passes of a split vocabulary: T stands behind S of the next one, and
    reads the last stage's output and the device's part of the softmax; with one barrier both halves of the output's gradient,
    too. Interlaced, T follows S at once.
    """
    if not is_vocabulary_split(plan) or plan.vocabulary == "interlaced":
        return 0.0
    tokens = plan.tokens_per_microbatch / plan.cp
    softmax = (
        max(LOSS_ELEMENT_BYTES, dtype_bytes(plan.dtype)) * plan.model.vocabulary_size / (plan.tp * plan.pp)
    )
    boundary = boundary_bytes_per_token(plan.model, plan.dtype) / (plan.tp if plan.sequence_parallel else 1)
    return tokens * (softmax + boundary * (3 if plan.vocabulary == "one_barrier" else 1))


def freed_logits_bytes(work: StageWork) -> float:
    """Of an unfused loss: the logits before they were widened. Nobody needs them in the backward, and their block is too
    small for what the loss asks for there, so the allocator keeps it beside.
    """
    software = work.plan.software_class
    if software.fuses_loss:
        return 0.0
    return loss_bytes(work) / (software.keeps.num_wide_logits * FLOAT32_BYTES) * work.element_bytes


def recomputed_bytes(work: StageWork) -> float:
    """What the largest block that is recomputed makes again before its backward, beside what it kept."""
    plan, kept = work.plan, work.context
    if plan.recompute == "none":
        return 0.0
    whole, length, model = kept._replace(recompute="none"), plan.workload.sequence_length, plan.model
    sizes, again = [0.0], work.recomputed
    for block, _ in model.block_kinds(again.first_block, again.num_blocks):
        every, some = (
            sum(tensor_bytes(model, t, context) for t in context_saved(model, context, block, length))
            for context in (whole, kept)
        )
        sizes.append(every - some)
    return work.num_tokens * max(sizes)


def inner_gradient_bytes(work: StageWork) -> float:
    """Gradients of activations inside the largest block's backward: of the MLP's inner tensors, or of q, k, v and scores;
    and of the residual stream before and behind it.
    """
    plan, b = work.plan, work.element_bytes
    model, context = plan.model, work.context._replace(is_fused=True, keeps_float8=False)
    rows = 2 * model.hidden_size * b / (plan.tp if plan.sequence_parallel else 1)
    pairs = 2 * model.num_heads * plan.workload.sequence_length if plan.core_attention != "flash" else 0
    attention = (model.attention.qkv_size + model.attention.result_size + pairs) * b / plan.tp
    sizes = [0.0]
    for block, _ in work.kinds:
        inner = sum(
            tensor_bytes(model, t, context)
            for t in block_saved(model, plan.dtype, block)
            if t.name.endswith(("activation output", "up"))  # "up", "gate and up", and those of experts
        )
        sizes.append(rows + max(attention, inner))
    # for one product at a time the rows of all tp devices are there
    gathered = model.hidden_size * b if plan.sequence_parallel else 0
    return work.num_tokens * (max(sizes) + gathered)


def weight_gradient_bytes(work: StageWork) -> float:
    """The gradient of the widest matrix, before it is added to those that are kept; under ZeRO-3 a block's are whole."""
    plan, model, layers = work.plan, work.model, work.layers
    if plan.shared.divides_values or not layers.num_blocks:
        return 0.0
    width = 2 if model.has_gated_mlp else 1
    last = model.layers[layers.first_block + layers.num_blocks - 1]
    inner = last.feed_forward.intermediate_size / plan.tp
    if last.experts:
        inner = last.experts.num_experts * last.experts.intermediate_size / (plan.ep * plan.expert_tp)
    return max(width * inner, last.attention.qkv_size / plan.tp) * model.hidden_size * work.element_bytes


def gathered_bytes(work: StageWork) -> float:
    """Whole parameters beside a device's part under ZeRO-3: two blocks, and the ends, which stay for the whole step."""
    if not work.plan.shared.divides_values:
        return 0.0
    gathered = NUM_GATHERED_BLOCKS * work.num_largest_block + work.num_end_parameters
    return float(gathered * work.element_bytes)


def kept_whole_bytes(work: StageWork) -> float:
    """At most: software that gathers a stage once for all microbatches of a pipeline, and reduces its gradients once,
    keeps both whole in between (PyTorch's pipeline stages over FSDP2).
    """
    plan = work.plan
    if not plan.shared.divides_values or plan.pp == 1:
        return 0.0
    each = work.element_bytes + dtype_bytes(plan.gradient_dtype)
    return float((sum(work.block_parameters) + work.num_end_parameters) * each)


def reduction_bytes(work: StageWork) -> float:
    """Whole gradients under ZeRO-3: a block's, the same again as the reduction's input, and those of the ends."""
    if not work.plan.shared.divides_values:
        return 0.0
    size, reduced = work.element_bytes, dtype_bytes(work.plan.gradient_dtype)
    return float(work.num_largest_block * (size + reduced) + work.num_end_parameters * size)


def narrow_gradient_bytes(work: StageWork) -> float:
    """16-bit gradients of a whole stage, before they are added to their sums."""
    return float(num_stage_parameters(work) * work.element_bytes) if has_narrow_gradients(work.plan) else 0.0


def has_narrow_gradients(plan: Plan) -> bool:
    """Does a plan's software keep gradients of a whole stage beside their sums, which are in another format?"""
    is_beside = bool(plan.software_class.keeps.narrow_gradients) and not plan.shared.divides_values
    return is_beside and plan.dtype == "bfloat16" and plan.gradient_dtype != plan.dtype


def bucket_bytes(work: StageWork) -> float:
    """Buckets of gradients that stay, where replicas share nothing."""
    plan = work.plan
    if not plan.software_class.keeps.has_buckets or plan.sharding != "none" or plan.dp * plan.cp == 1:
        return 0.0
    return float(num_stage_parameters(work) * work.element_bytes)


def flat_bytes(work: StageWork) -> float:
    """Flat copies in an exchange of sharded replicas: of all, and of a device's part."""
    plan, copies = work.plan, work.plan.dp * work.plan.cp
    if plan.sharding == "none" or plan.shared.divides_values or copies == 1:
        return 0.0
    whole = num_stage_parameters(work) * work.element_bytes
    return min(whole * (1.0 + 1.0 / copies), plan.software_class.keeps.flat_bytes)


def num_stage_parameters(work: StageWork) -> int:
    """Of blocks and ends, on one device, before sharding."""
    return sum(work.block_parameters) + work.num_end_parameters


def late_bytes(work: StageWork) -> float:
    """What sequence parallelism gathers or reduces in the blocks of one microbatch, and gives back late: behind attention
    and behind the MLP the rows of all tp devices, but for the device's own part.
    """
    plan = work.plan
    if not plan.software_class.keeps.returns_late or not plan.sequence_parallel:
        return 0.0
    rows = work.num_tokens * work.model.hidden_size * work.element_bytes * (1.0 - 1.0 / plan.tp)
    return NUM_LATE_ROWS * rows * work.layers.num_blocks


def table_gradient_bytes(work: StageWork) -> float:
    """The gradient of the embedding's table, or of a device's part of it, dense, before it is added to the kept one."""
    plan = work.plan
    has_part = has_vocabulary_share(plan, work.layers)
    has_table = has_part if is_vocabulary_split(plan) else work.layers.has_embedding
    if not has_table or not trains_table(plan.model, of_head=False) or plan.shared.divides_values:
        return 0.0
    split = plan.tp * (plan.pp if is_vocabulary_split(plan) else 1)
    return plan.model.vocabulary_size / split * plan.model.hidden_size * work.element_bytes


def exchange_bytes(work: StageWork) -> float:
    """What exchanges inside a block hold at once: what context parallelism does; the rows of experts before and behind an
    all-to-all.
    """
    plan = work.plan
    own = plan.context_parallel
    keys = context_numbers(work.model, plan.tp, own) / plan.tp if plan.cp > 1 else 0.0
    if own.has_full_scores:
        keys = full_score_numbers(work.model, plan.cp, plan.workload.sequence_length) / plan.tp
    chosen = (work.model.layers[block].experts for block, _ in work.kinds)
    most = max((each.num_experts_per_token for each in chosen if each), default=0)
    rows = 2 * most * work.model.hidden_size
    divided = plan.tp if plan.sequence_parallel or plan.expert_tp == 1 else 1
    return work.num_tokens * work.element_bytes * (keys + rows / divided)


def context_numbers(model: ModelSpec, tp: int, own: ContextParallel) -> float:
    """Numbers a token of a context-parallel device: of a ring a neighbour's keys and values with their gradients, one in use
    and one on its way; gathered, those of all devices; by Ulysses queries, keys and values before and behind an all-to-all.
    Of Ulysses inside a ring the larger ones: one is over before the other begins.
    """
    attention = model.attention
    keys, found = float(attention.key_size + attention.value_size), [0.0]
    if own.heads_degree > 1:
        keys *= own.repeats_of_key(attention.num_heads // tp, attention.num_kv_heads // tp)
        found.append(2.0 * (attention.query_size + keys))
    if own.kind == "token_ring" and own.ring_degree > 1:
        # backward: queries with gradients of results, own ones, one in use and one on its way; gradients of queries in
        # float32, that leave and that have come
        found.append(3.0 * (attention.query_size + attention.result_size) + 8.0 * attention.query_size)
    elif own.ring_degree > 1:
        found.append(4.0 * keys if own.travels else 2.0 * own.ring_degree * keys)
    return max(found)


def full_score_numbers(model: ModelSpec, cp: int, sequence_length: int) -> float:
    """Of ring self-attention, beside three score matrices at once, of the softmax's backward: keys in use and on their way,
    and gradients of all devices' keys, where these are more than the one matrix that is gone by then."""
    attention = model.attention
    wide = max(attention.key_size, attention.value_size)
    return max(0.0, (2.0 + cp) * wide - attention.num_heads * sequence_length)


def message_bytes(work: StageWork) -> float:
    """What is between two stages at once."""
    plan = work.plan
    if plan.pp == 1:
        return 0.0
    divided = plan.tp if plan.sequence_parallel else 1
    return NUM_MESSAGES * work.num_tokens * boundary_bytes_per_token(plan.model, plan.dtype) / divided


def context_bytes(plan: Plan) -> float:
    """Outside the framework's allocator: the driver's context and one communicator for each axis of several devices."""
    return float(CUDA_CONTEXT_BYTES + num_axes(plan) * COMMUNICATOR_BYTES)


def most_context_bytes(plan: Plan) -> float:
    """The same at most: all kernels of all libraries loaded at once (CUDA before 11.7), buffers of all protocols, and
    communicators that no axis has: of all devices, of every pair of neighbours in a pipeline (torch.distributed.send), of a
    table tied across it, and of what a model is divided over.
    """
    if plan.num_devices == 1:
        return float(MOST_CUDA_CONTEXT_BYTES)
    more = 1 + (plan.pp > 1) * (2 + plan.model.has_tied_embeddings + (plan.tp > 1))
    return float(MOST_CUDA_CONTEXT_BYTES + (num_axes(plan) + more) * MOST_COMMUNICATOR_BYTES)


def num_axes(plan: Plan) -> int:
    """Of several devices each: they have a communicator."""
    return sum(degree > 1 for degree in (plan.pp, plan.dp, plan.cp, plan.tp, plan.ep))
