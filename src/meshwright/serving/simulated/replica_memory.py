"""ReplicaMemory: what the weights and the steps of a replica leave for blocks of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.serving.policy.limits import Limits
from meshwright.serving.simulated.forward_operators import cached_heads
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.weight.weight_place import PEER
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import OutOfMemoryError
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.model.parameter import block_parameters
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import format_bytes
from meshwright.stage.group.value_size import num_local_parameters, tensor_divisor

USED_SHARE = 0.9  # of a device's memory that an engine takes (vLLM's --gpu-memory-utilization)
# Memory outside of torch's allocator, which vLLM 0.6 tells for Llama-3-8B on one H100 and on two (vllm-project/vllm pull
# request 10511): CUDA's context, libraries' workspaces, and between devices NCCL's buffers.
ALONE_BYTES, GROUP_BYTES = 1.79 * (1 << 30), 3.58 * (1 << 30)
LIVE_COPIES = 2  # of a step's widest value: what a kernel reads and what it writes
LOGIT_BYTES = 4  # sampling takes them in float32


@dataclass(frozen=True)
class ReplicaMemory:
    """Bytes on the fullest device of a replica.

    Attributes:
        weight_bytes: of the stage with the most; of those that are fetched the window.
        step_bytes: what the largest step needs beside weights and blocks.
        block_bytes: of one block of keys and values on a device, of the stage with the most.
        num_blocks: that fit every stage, of all groups that attend for sequences of their own.
    """

    weight_bytes: float
    step_bytes: float
    block_bytes: float
    num_blocks: int


def replica_memory(
    program: ForwardProgram,
    limits: Limits,
    block_tokens: int,
    used_share: float = USED_SHARE,
    beside: ForwardProgram | None = None,
) -> ReplicaMemory:
    """How many blocks fit; each holds those of a second model `beside` it, too, of one stage as this one. Raises
    OutOfMemoryError where weights and steps leave none."""
    plan, device = program.plan, program.cluster.devices[0]
    stages = plan.stages()
    size = dtype_bytes(program.dtype)
    layout = program.layout
    weights = [size * num_weights(program, layers) for layers in stages]
    if program.fetches:
        weights = [round(each.held_bytes) for each in program.fetches]
    blocks = [_token_bytes(program, layers) * block_tokens for layers in stages]
    if beside is not None:
        (whole,) = beside.plan.stages()
        weights[0] += size * num_weights(beside, whole)
        blocks[0] += _token_bytes(beside, whole) * block_tokens
    own_bytes = GROUP_BYTES if plan.num_devices > 1 else ALONE_BYTES
    step_bytes = _step_bytes(plan, limits) + (own_bytes if device.machine.has_streams else 0.0)
    room = [used_share * device.memory_bytes - own - step_bytes for own in weights]
    # a stage without attention keeps nothing of a token, and has to fit all the same
    num_blocks = min(int(left / (each or 1.0)) for left, each in zip(room, blocks, strict=True))
    num_blocks *= layout.attention_dp
    if num_blocks < 1:
        raise OutOfMemoryError(
            f"a replica of {layout.name} of {program.model.name} needs "
            f"{format_bytes(max(weights) + step_bytes)} on each {device.name} before the first block of keys and values",
            holders=(("weights", max(weights)), ("a step's values", round(step_bytes))),
            allowed=f"{format_bytes(used_share * device.memory_bytes)}, {used_share:.0%} of the device",
            next="take more devices a replica (tp, pp), or fewer tokens a step",
        )
    return ReplicaMemory(max(weights), step_bytes, max(blocks), num_blocks)


def check_neighbours(program: ForwardProgram, num_replicas: int, used_share: float = USED_SHARE) -> None:
    """Raises OutOfMemoryError where weights lie with neighbours, and the devices of the cluster that no replica has cannot
    hold them."""
    pooled = [each for each in program.fetches if each.source.name == PEER]
    device, layout = program.cluster.devices[0], program.layout
    away_bytes = num_replicas * layout.tp * sum(each.away_bytes for each in pooled)
    num_spare = program.cluster.num_devices - num_replicas * layout.num_devices
    room_bytes = num_spare * used_share * device.memory_bytes
    if away_bytes > room_bytes:
        raise OutOfMemoryError(
            f"{format_bytes(away_bytes)} of weights are to lie with neighbours, and {num_spare} devices are no replica's",
            holders=(("weights", round(away_bytes)),),
            allowed=f"{format_bytes(room_bytes)}, {used_share:.0%} of these",
            next="fewer replicas, or devices that serve nobody",
        )


def token_bytes(program: ForwardProgram) -> float:
    """Keys and values of one token on all devices that have them."""
    stages = program.plan.stages()
    return sum(_token_bytes(program, layers) for layers in stages) * program.layout.attention_tp


def num_weights(program: ForwardProgram, layers: StageLayers) -> int:
    """Parameters of a stage on one device: of attention as many as its own group divides them among."""
    plan, layout = program.plan, program.layout
    found = sum(num_local_parameters(plan, layers))
    if layout.attention_dp == 1:
        return found
    for block, count in plan.model.block_kinds(layers.first_block, layers.num_blocks):
        for each in block_parameters(plan.model, block):
            if each.is_attention:
                own, even = (
                    -(-each.num_elements // tensor_divisor(each, tp))
                    for tp in (layout.attention_tp, layout.tp)
                )
                found += count * (own - even)
    return found


def _token_bytes(program: ForwardProgram, layers: StageLayers) -> float:
    """Keys and values of one token in one stage, on one device."""
    model, tp = program.model, program.layout.attention_tp
    first, last = layers.first_block, layers.first_block + layers.num_blocks
    cached = (cached_heads(model.layers[block].attention, tp) for block in range(first, last))
    return float(sum(each.numbers_per_token for each in cached) * program.cache_bytes)


def _step_bytes(plan: Plan, limits: Limits) -> float:
    """Of the largest step: rows as wide as the residual stream twice and the widest product's result, and the logits."""
    model, widest = plan.model, 0.0
    for kind in model.kinds:
        inner = kind.feed_forward.intermediate_size / plan.tp * (2 if model.has_gated_mlp else 1)
        if kind.experts:
            inner = kind.experts.num_experts_per_token * (model.hidden_size + inner)
        widest = max(widest, inner, kind.attention.qkv_size / plan.tp)
    rows = limits.max_batch_tokens * (2 * model.hidden_size + LIVE_COPIES * widest) * dtype_bytes(plan.dtype)
    return float(rows + limits.max_sequences * model.vocabulary_size / plan.tp * LOGIT_BYTES)
