"""Works of a plan: what F, B, I, W, R and STEP of every stage compute, operator by operator, and exchange inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.ir.table import Work
from meshwright.lowering.inner_exchange import inner_exchanges
from meshwright.lowering.parameter_group import num_stepped_parameters
from meshwright.specs.layer_operator import MicrobatchShape, step_operators
from meshwright.specs.layers import StageLayers
from meshwright.specs.operator import Operator, merged, total_bytes, total_flops
from meshwright.specs.plan import Plan
from meshwright.specs.stage_work import (
    PASSES,
    embedding_operators,
    head_operators,
    recomputed_operators,
    stage_operators,
)


def microbatch_shape(plan: Plan) -> MicrobatchShape:
    """What one instruction of the plan works on, on one device."""
    return MicrobatchShape(
        plan.microbatch_size, plan.workload.sequence_length, plan.dtype, plan.tp, plan.ep, plan.cp,
        plan.sequence_parallel, plan.expert_tp, plan.attention == "flash",
    )  # fmt: skip


def works(plan: Plan, stages: Sequence[StageLayers]) -> dict[tuple[str, int], Work]:
    """The work of every instruction name on every stage of the program; a stage's share is that of its blocks."""
    shape = microbatch_shape(plan)
    dims = (plan.microbatch_size, plan.workload.sequence_length)
    blocks_each = max(1.0, plan.model.num_layers / plan.pp)
    shares = [max(1, layers.num_blocks) / blocks_each for layers in stages]
    if len(stages) == plan.num_stages:
        shares = [1.0 / plan.num_chunks] * len(stages)
    result = {}
    known: dict[tuple[object, ...], Work] = {}
    for number, (layers, share) in enumerate(zip(stages, shares, strict=True)):
        kinds = plan.model.block_kinds(layers.first_block, layers.num_blocks)
        for name in PASSES:
            key = (name, tuple(kinds), layers.has_embedding, layers.has_head, share)
            if key not in known:
                operators = pass_operators(plan, layers, name, shape)
                inner = inner_exchanges(plan, layers, name, shape)
                known[key] = Work(
                    name, shape.num_tokens, dims, "float8" if plan.float8 else plan.dtype, total_flops(operators), total_bytes(operators), share,
                    operators, inner,
                )  # fmt: skip
            result[name, number] = known[key]
        parameters = num_stepped_parameters(plan, layers)
        operators = step_operators(parameters, plan.master_dtype or plan.dtype)
        result["STEP", number] = Work(
            "STEP", 0, (parameters,), plan.dtype, total_flops(operators), total_bytes(operators), share, operators
        )
    return result


def pass_operators(
    plan: Plan, layers: StageLayers, name: str, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """What a pass runs: with selective recompute the backward (its input half) also runs again what was not kept."""
    is_split = plan.vocabulary != "ends" and plan.pp > 1
    own = layers._replace(has_embedding=False, has_head=False) if is_split else layers
    found = stage_operators(plan.model, own, name, shape)
    if name in ("B", "I") and plan.recompute in ("selective", "selective_op"):
        found = (*found, *recomputed_operators(plan.model, own, plan.recompute, shape))
    if is_split:
        found = (*found, *_vocabulary_share(plan, layers, name, shape))
    return merged(found)


def _vocabulary_share(
    plan: Plan, layers: StageLayers, name: str, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """The part of both vocabulary layers that every device has where they are split over the pipeline: its first chunk
    computes it. Rows of the table are padded to a whole number for each device."""
    if layers.first_block >= plan.model.num_layers // plan.num_chunks and plan.num_chunks > 1:
        return ()
    local = replace(plan.model, vocabulary_size=-(-plan.model.vocabulary_size // plan.pp))
    return (*embedding_operators(local, name, shape), *head_operators(local, name, shape))
