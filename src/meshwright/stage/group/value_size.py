"""Bytes that one device holds of a stage all the time: parameters, gradients, optimizer state, by tensor and degree.

What tensor parallelism divides and what it leaves whole follows Megatron-LM (Shoeybi et al., arXiv 1909.08053): column-
and row-parallel matrices, tables by vocabulary, a column's bias; norms, routers, the narrowing matrices of latent
attention and a row's bias are on every device. What data parallelism divides is ZeRO's (Rajbhandari et al., arXiv
1910.02054).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.adaptation import lora_parameters, trained_block_parameters, trains, trains_table
from meshwright.specs.model.layers import StageLayers, begins_decoder, ends_encoder
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter import Parameter, block_parameters, embedding_parameters
from meshwright.specs.plan.plan import Plan
from meshwright.stage.piece import has_vocabulary_share, is_vocabulary_split

# The factor of an addition that tensor parallelism leaves whole: what reads the residual stream, and what adds to it.
WHOLE_FACTORS = ("qkv.lora_a.", "gate_up.lora_a.", "attention_output.lora_b.", "down.lora_b.")
# Narrow for the heads of all devices; the norm of what is narrowed.
LATENTS = ("q_a_proj.", "q_a_layernorm.", "kv_a_proj_with_mqa.", "kv_a_layernorm.")
ROUTERS = ("mlp.gate.", "router.", "shared_expert_gate")  # multiply parts of experts' results
# Parts of the names of parameters that every device of a tensor-parallel group has whole.
WHOLE = (
    *("norm.", "layernorm.", ".ln_", "wpe"),
    *ROUTERS,
    *LATENTS,
    *("o_proj.bias", "down_proj.bias", "c_proj.bias"),
    *WHOLE_FACTORS,
)
BLOCK_NORMS = (
    "layernorm.",
    ".ln_",
)  # of parallel branches each device uses them for its part of every branch
HEAD_NORMS = ("q_norm.", "k_norm.")  # used for every head
# A tensor of experts' biases added after the row-parallel product: whole along tp, divided along ep.
WHOLE_OF_EXPERTS = ("down_proj_bias",)
# Of grouped heads: a device has one head where there are fewer than tp.


class LocalParameters(NamedTuple):
    """Parameters on one device before state is shared along data parallelism: of everything but experts, and of these."""

    dense: int
    expert: int


def num_local_parameters(plan: Plan, layers: StageLayers) -> LocalParameters:
    """Parameters of a stage (or of a piece of one) on one device; a table tied within it counts once, tied to another
    stage on both. Where the vocabulary is split over the pipeline, a device's first stage has its part of both tables.
    """
    dense, expert = num_local_block_parameters(plan, layers)
    return LocalParameters(dense + num_local_end_parameters(plan, layers), expert)


def num_local_block_parameters(plan: Plan, layers: StageLayers) -> LocalParameters:
    """The part of `num_local_parameters` that blocks hold."""
    dense = expert = 0
    for block, count in plan.model.block_kinds(layers.first_block, layers.num_blocks):
        found = _block_parameters(plan.model, block, plan.tp, plan.ep, plan.expert_tp)
        dense, expert = dense + count * found.dense, expert + count * found.expert
    return LocalParameters(dense, expert)


def num_trained_parameters(plan: Plan, layers: StageLayers) -> LocalParameters:
    """The part of `num_local_parameters` that trains."""
    model, dense, expert = plan.model, 0, 0
    if not model.is_adapted:
        return num_local_parameters(plan, layers)
    for block, count in model.block_kinds(layers.first_block, layers.num_blocks):
        found = _local(trained_block_parameters(model, block), plan.tp, plan.ep, plan.expert_tp)
        dense, expert = dense + count * found.dense, expert + count * found.expert
    tables = {
        model.has_tied_embeddings or not of_head
        for of_head in (False, True)
        if _has_table(plan, layers, of_head) and trains_table(model, of_head=of_head)
    }
    dense += len(tables) * num_table_parameters(plan)
    dense += num_trained_positions(model) if layers.has_embedding else 0
    dense += num_trained_norms(model) if layers.has_head else 0
    return LocalParameters(dense, expert)


def num_trained_positions(model: ModelSpec) -> int:
    """Of learned positions, where they train."""
    return sum(p.num_elements for p in embedding_parameters(model)[1:]) * trains(model, "positions.weight")


def num_trained_norms(model: ModelSpec) -> int:
    """Of the final norm, where it trains."""
    names = ("final_norm.weight", "final_norm.bias") if model.is_gpt2 else ("final_norm.weight",)
    return model.hidden_size * sum(trains(model, name) for name in names)


def _has_table(plan: Plan, layers: StageLayers, of_head: bool) -> bool:
    """Does a stage have the table of embedding or head, or its part of it?"""
    if is_vocabulary_split(plan):
        return has_vocabulary_share(plan, layers)
    return layers.has_head if of_head else layers.has_embedding


@lru_cache(maxsize=1024)
def _block_parameters(model: ModelSpec, block: int, tp: int, ep: int, expert_tp: int) -> LocalParameters:
    """Of one block: its number stands for its kind, so few are ever asked for."""
    return _local((*block_parameters(model, block), *lora_parameters(model, block)), tp, ep, expert_tp)


def num_local(plan: Plan, parameters: Iterable[Parameter]) -> LocalParameters:
    """What one device has of some parameters of blocks."""
    return _local(parameters, plan.tp, plan.ep, plan.expert_tp)


def _local(parameters: Iterable[Parameter], tp: int, ep: int, expert_tp: int) -> LocalParameters:
    """What one device has of parameters of a block."""
    dense = expert = 0
    for parameter in parameters:
        if parameter.is_expert:
            divisor = ep * (1 if parameter.name.endswith(WHOLE_OF_EXPERTS) else expert_tp)
            expert += -(-parameter.num_elements // divisor)
        else:
            dense += -(-parameter.num_elements // tensor_divisor(parameter, tp))
    return LocalParameters(dense, expert)


def tensor_divisor(parameter: Parameter, tp: int) -> int:
    """Devices among which tensor parallelism divides this tensor."""
    return 1 if any(part in parameter.name for part in WHOLE) else tp


def num_local_end_parameters(plan: Plan, layers: StageLayers) -> int:
    """The part of `num_local_parameters` that embedding, final norm and head hold, and what stands between the halves of an
    encoder-decoder."""
    model = plan.model
    is_split, has_share = is_vocabulary_split(plan), has_vocabulary_share(plan, layers)
    number = model.num_encoder_layers
    num_tables = 2 * has_share if is_split else layers.has_embedding + layers.has_head
    num_tables += begins_decoder(layers, number)
    if model.has_tied_embeddings:
        num_tables = min(num_tables, 1)
    total = num_tables * num_table_parameters(plan)
    if layers.has_embedding:  # learned positions
        total += sum(p.num_elements for p in embedding_parameters(model)[1:])
    return total + model.num_norm_parameters * (layers.has_head + ends_encoder(layers, number))


def num_partial_parameters(plan: Plan, layers: StageLayers) -> int:
    """Parameters of a stage that every device of a tensor-parallel group has whole, and whose gradient is of its tokens
    (sequence parallelism, experts that are divided along tp), of its heads, its part of the experts or of parallel branches:
    they are summed over the group before a step."""
    model = plan.model
    if plan.tp == 1:
        return 0
    branches = BLOCK_NORMS if model.has_parallel_branches else ()
    parts = WHOLE if plan.sequence_parallel else (*HEAD_NORMS, *LATENTS, *ROUTERS, *WHOLE_FACTORS, *branches)
    blocks = model.block_kinds(layers.first_block, layers.num_blocks)
    total = sum(
        count * parameter.num_elements
        for block, count in blocks
        for parameter in trained_block_parameters(model, block)
        if any(part in parameter.name for part in parts)
    )
    if plan.sequence_parallel:
        total += num_trained_positions(model) if layers.has_embedding else 0
        total += num_trained_norms(model) if layers.has_head else 0
        total += model.num_norm_parameters * ends_encoder(layers, model.num_encoder_layers)
    return total


def num_table_parameters(plan: Plan) -> int:
    """A vocabulary table on one device that has it, or its part of it: as many rows on every one, the last padded."""
    num_parts = plan.tp * (plan.pp if is_vocabulary_split(plan) else 1)
    return -(-plan.model.vocabulary_size // num_parts) * plan.model.hidden_size


def shared_among(degree: int, tp: int, folded: int) -> int:
    """Of the innermost `degree` groups of tp devices, one behind the other, those behind whole groups of `folded` devices:
    these have the same experts."""
    return max(1, degree * tp // max(folded, tp))


def expert_sharing_degree(plan: Plan, degree: int) -> int:
    """Devices that share one copy of something of experts: those with the same ones among the `degree` that share others'."""
    return shared_among(degree, plan.tp, plan.expert_tp * plan.ep)


class StateSize(NamedTuple):
    """Bytes of state for one parameter, and whether the devices that share state have a part of it each."""

    num_bytes: int
    is_shared: bool

    def of(self, num_parameters: int, num_shards: int) -> float:
        """Bytes on one device, for so many parameters whose state so many devices may share."""
        return self.num_bytes * num_parameters / (num_shards if self.is_shared else 1)


def parameter_size(plan: Plan) -> StateSize:
    """Of parameters.

    Under ZeRO-3 a device keeps its part only, and in the optimizer's format where that has one: the part is the master
    copy, and what is gathered of it is rounded (PyTorch's FSDP2 under mixed precision).
    """
    kept = plan.master_dtype if plan.shared.steps_values else ""
    return StateSize(dtype_bytes(kept or plan.dtype), is_shared=plan.shared.divides_values)


def gradient_size(plan: Plan) -> StateSize:
    """Of gradients as they are accumulated: whole below ZeRO-2, and below ZeRO-3 in the format of the reduction; under
    ZeRO-3 in that of the part of the parameters they belong to."""
    if plan.shared.steps_values:
        return parameter_size(plan)
    return StateSize(dtype_bytes(plan.gradient_dtype), is_shared=plan.shared.divides_gradients)


def optimizer_size(plan: Plan) -> StateSize:
    """Of the optimizer's state: what it keeps, and a master copy where there is one beside the parameters themselves."""
    has_copy = bool(plan.master_dtype) and not plan.shared.steps_values
    copy_bytes = has_copy * dtype_bytes(plan.master_dtype or plan.dtype)
    return StateSize(moment_bytes(plan) + copy_bytes, is_shared=plan.shared.divides_state)


def moment_bytes(plan: Plan) -> int:
    """The part of the optimizer's state for one parameter that the step alone reads: AdamW's moments."""
    return plan.update_rule.kept_bytes(plan.master_dtype or plan.dtype)


def frozen_size(plan: Plan) -> StateSize:
    """Of parameters that do not train: never in the optimizer's format; shared as the others are."""
    return StateSize(dtype_bytes(plan.dtype), is_shared=parameter_size(plan).is_shared)


def parameter_bytes(plan: Plan, layers: StageLayers) -> float:
    """Bytes of parameters that one device keeps all the time."""
    counts, trained = num_local_parameters(plan, layers), num_trained_parameters(plan, layers)
    frozen = LocalParameters(counts.dense - trained.dense, counts.expert - trained.expert)
    degree = plan.sharing_degrees[0]
    return _state_bytes(plan, trained, parameter_size(plan), degree) + _state_bytes(
        plan, frozen, frozen_size(plan), degree
    )


def gradient_bytes(plan: Plan, layers: StageLayers) -> float:
    """Bytes of the gradients that one device accumulates."""
    return _state_bytes(
        plan, num_trained_parameters(plan, layers), gradient_size(plan), plan.sharing_degrees[1]
    )


def optimizer_bytes(plan: Plan, layers: StageLayers) -> float:
    """Bytes of the optimizer's state on one device."""
    return _state_bytes(plan, num_trained_parameters(plan, layers), optimizer_size(plan), plan.sharing_degree)


def moved_bytes(plan: Plan, layers: StageLayers) -> float:
    """Of that, bytes of what the step alone reads, which may be elsewhere between two steps."""
    size = optimizer_size(plan)._replace(num_bytes=moment_bytes(plan))
    return _state_bytes(plan, num_trained_parameters(plan, layers), size, plan.sharing_degree)


def summed_gradient_bytes(plan: Plan, layers: StageLayers) -> float:
    """Bytes of the gradients that a step reads on one device where the whole ones end with their reduction: of the part whose
    state the device has; whole where any devices have nothing to share."""
    counts, degree = num_trained_parameters(plan, layers), plan.sharing_degree
    least = min(degree, expert_sharing_degree(plan, degree) if counts.expert else degree)
    if plan.shared.divides_gradients or least == 1:
        return gradient_bytes(plan, layers)
    return _state_bytes(plan, counts, gradient_size(plan)._replace(is_shared=True), degree)


def _state_bytes(plan: Plan, counts: LocalParameters, size: StateSize, degree: int) -> float:
    dense, expert = counts
    return size.of(dense, degree) + size.of(expert, expert_sharing_degree(plan, degree))
