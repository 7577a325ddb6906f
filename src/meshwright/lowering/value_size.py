"""Bytes that one device holds of a stage all the time: parameters, gradients, optimizer state, by tensor and degree.

What tensor parallelism divides and what it leaves whole follows Megatron-LM (Shoeybi et al., arXiv 1909.08053): column-
and row-parallel matrices, tables by vocabulary, a column's bias; norms, routers, the narrowing matrices of latent
attention and a row's bias are on every device. What data parallelism divides is ZeRO's (Rajbhandari et al., arXiv
1910.02054).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.layers import StageLayers
from meshwright.specs.model import ModelSpec
from meshwright.specs.parameter import Parameter, block_parameters, embedding_parameters
from meshwright.specs.plan import Plan

NUM_MOMENTS = 2  # of AdamW, each as large as the parameters it updates
# Parts of the names of parameters that every device of a tensor-parallel group has whole.
WHOLE = (
    *("norm.", "layernorm.", ".ln_", "wpe", "mlp.gate.weight", "router.", "shared_expert_gate"),
    *("q_a_proj.", "kv_a_proj_with_mqa.", "o_proj.bias", "down_proj.bias", "c_proj.bias"),
)
# A tensor of experts' biases added after the row-parallel product: whole along tp, divided along ep.
WHOLE_OF_EXPERTS = ("down_proj_bias",)
# Of grouped heads: a device has one head where there are fewer than tp.
KEYS_AND_VALUES = ("k_proj.", "v_proj.")


class LocalParameters(NamedTuple):
    """Parameters on one device before state is shared along data parallelism: of everything but experts, and of these."""

    dense: int
    expert: int


def num_local_parameters(plan: Plan, layers: StageLayers) -> LocalParameters:
    """Parameters of a stage on one device; a table tied within the stage counts once, tied to another stage on both.

    Where the vocabulary is split over the pipeline, every stage has its part of both tables.
    """
    dense = expert = 0
    for block, count in plan.model.block_kinds(layers.first_block, layers.num_blocks):
        found = _block_parameters(plan.model, block, plan.tp, plan.ep, plan.expert_tp)
        dense, expert = dense + count * found.dense, expert + count * found.expert
    return LocalParameters(dense + _end_parameters(plan, layers), expert)


@lru_cache(maxsize=1024)
def _block_parameters(model: ModelSpec, block: int, tp: int, ep: int, expert_tp: int) -> LocalParameters:
    """Of one block: its number stands for its kind, so few are ever asked for."""
    dense = expert = 0
    for parameter in block_parameters(model, block):
        if parameter.is_expert:
            divisor = ep * (1 if parameter.name.endswith(WHOLE_OF_EXPERTS) else expert_tp)
            expert += -(-parameter.num_elements // divisor)
        else:
            dense += -(-parameter.num_elements // _divisor(model, parameter, tp))
    return LocalParameters(dense, expert)


def _divisor(model: ModelSpec, parameter: Parameter, tp: int) -> int:
    """Devices among which tensor parallelism divides this tensor."""
    if any(part in parameter.name for part in WHOLE):
        return 1
    if any(part in parameter.name for part in KEYS_AND_VALUES):
        return min(tp, model.num_kv_heads)
    return tp


def _end_parameters(plan: Plan, layers: StageLayers) -> int:
    """Of embedding, final norm and head."""
    model = plan.model
    table = -(-model.vocabulary_size // _vocabulary_divisor(plan)) * model.hidden_size
    is_everywhere = plan.vocabulary != "ends" and plan.pp > 1
    has_embedding, has_head = layers.has_embedding or is_everywhere, layers.has_head or is_everywhere
    num_tables = has_embedding + has_head
    if num_tables == 2 and model.has_tied_embeddings:
        num_tables = 1
    total = num_tables * table
    if layers.has_embedding:  # learned positions
        total += sum(p.num_elements for p in embedding_parameters(model)[1:])
    return total + (model.num_norm_parameters if layers.has_head else 0)


def _vocabulary_divisor(plan: Plan) -> int:
    """Devices (stages, where a device has several) among which a table is divided, one row or several each."""
    return plan.tp * (plan.num_stages if plan.vocabulary != "ends" and plan.pp > 1 else 1)


def expert_sharing_degree(plan: Plan) -> int:
    """Devices that share one copy of what is sharded of experts: those of `plan.sharing_degree` with the same experts."""
    own = plan.ep // (plan.tp if plan.ep > 1 and plan.expert_tp == 1 else 1)
    return max(1, plan.sharing_degree // max(1, own))


def parameter_bytes(plan: Plan, layers: StageLayers) -> float:
    """Bytes of parameters that one device keeps all the time.

    Under ZeRO-3 they are its part only, and in the optimizer's format where that has one: the part is the master copy,
    and what is gathered of it is rounded (PyTorch's FSDP2 under mixed precision).
    """
    if plan.sharding != "zero3":
        return float(sum(num_local_parameters(plan, layers)) * dtype_bytes(plan.dtype))
    return _shared(plan, layers) * dtype_bytes(plan.master_dtype or plan.dtype)


def gradient_bytes(plan: Plan, layers: StageLayers) -> float:
    """Bytes of the gradients that one device accumulates: whole below ZeRO-2, else its part.

    Below ZeRO-3 in the format of the reduction; under ZeRO-3 in that of the part of the parameters they belong to.
    """
    if plan.sharding == "zero3":
        return _shared(plan, layers) * dtype_bytes(plan.master_dtype or plan.dtype)
    size = dtype_bytes(plan.reduction_dtype or plan.dtype)
    if plan.sharding == "zero2":
        return _shared(plan, layers) * size
    return float(sum(num_local_parameters(plan, layers)) * size)


def optimizer_bytes(plan: Plan, layers: StageLayers) -> float:
    """Bytes of AdamW's state on one device: two moments, and a master copy where the plan has one (under ZeRO-3 that
    is counted by `parameter_bytes`)."""
    has_copy = bool(plan.master_dtype) and plan.sharding != "zero3"
    size = (NUM_MOMENTS + has_copy) * dtype_bytes(plan.master_dtype or plan.dtype)
    return _shared(plan, layers) * size


def _shared(plan: Plan, layers: StageLayers) -> float:
    """Parameters whose shared state is on one device; all of the device's own without sharding."""
    dense, expert = num_local_parameters(plan, layers)
    if plan.sharding == "none":
        return float(dense + expert)
    return dense / plan.sharing_degree + expert / expert_sharing_degree(plan)
