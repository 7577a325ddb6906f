"""Works of a plan: what F, B, I, W, R and STEP of every stage compute, operator by operator, and exchange inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.ir.table import Work
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.operator import Operator, merged, total_bytes, total_flops
from meshwright.specs.plan.plan import Plan
from meshwright.stage.alike import first_alike
from meshwright.stage.exchange.inner import inner_exchanges
from meshwright.stage.operator.layer import MicrobatchShape, step_operators
from meshwright.stage.operator.stage import (
    PASSES,
    embedding_operators,
    head_operators,
    recomputed_operators,
    stage_operators,
)
from meshwright.stage.piece import (
    has_vocabulary_passes,
    has_vocabulary_share,
    is_vocabulary_split,
)
from meshwright.stage.saved.recomputed import recomputed_layers, recomputes_ends
from meshwright.stage.work import microbatch_shape

TABLE_KIND = "embedding"  # kind of the operators that touch the embedding's table
FINAL_NORM = "final norm"  # label of the operators before the head


def works(
    plan: Plan, stages: Sequence[StageLayers], num_stepped: Sequence[int]
) -> dict[tuple[str, int], Work]:
    """The work of every instruction name on every stage of the program.

    A piece's share of a full stage is that of its blocks; a whole stage's is 1 / num_chunks, whether stages are even or not.
    `num_stepped`: parameters that the STEP of each stage updates on one device.
    """
    shape = microbatch_shape(plan)
    dims = (plan.microbatch_size, plan.workload.sequence_length)
    blocks_each = max(1.0, plan.model.num_layers / plan.pp)
    shares = [max(1, layers.num_blocks) / blocks_each for layers in stages]
    if len(stages) == plan.num_stages:
        shares = [1.0 / plan.num_chunks] * len(stages)
    result = {}
    known: dict[tuple[str, int, float], Work] = {}
    for number, (alike, share) in enumerate(zip(first_alike(plan, tuple(stages)), shares, strict=True)):
        for name in PASSES:
            if (name, alike, share) not in known:
                operators = pass_operators(plan, stages[alike], name, shape)
                inner = inner_exchanges(plan, stages[alike], name, shape)
                known[name, alike, share] = Work(
                    name, shape.num_tokens, dims, "float8" if plan.float8 else plan.dtype,
                    total_flops(operators), total_bytes(operators), share, operators, inner,
                )  # fmt: skip
            result[name, number] = known[name, alike, share]
        result["STEP", number] = step_work(plan, num_stepped[number], share)
    return result


def step_work(plan: Plan, num_stepped: int, share: float) -> Work:
    """Of the STEP of a stage that updates so many parameters on one device."""
    operators = step_operators(num_stepped, plan.master_dtype or plan.dtype, plan.update_rule)
    return Work(
        "STEP", 0, (num_stepped,), plan.dtype, total_flops(operators), total_bytes(operators), share, operators
    )  # fmt: skip


def pass_operators(
    plan: Plan, layers: StageLayers, name: str, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """What a pass runs: with selective recompute the backward (its input half) also runs again what was not kept.

    R runs the blocks that are recomputed, and the ends of a stage whose blocks all are.
    """
    is_split, again = is_vocabulary_split(plan), recomputed_layers(plan, layers)
    own = again if name == "R" else layers
    own = own._replace(has_embedding=False, has_head=False) if is_split else own
    if name == "R" and plan.software_class.stops_early:
        found = recomputed_operators(plan.model, own, "full", shape)
    else:
        found = stage_operators(plan.model, own, name, shape)
    if name in ("B", "I") and plan.recompute in ("selective", "selective_op"):
        found = (*found, *recomputed_operators(plan.model, again, plan.recompute, shape))
    if name == "R" and not recomputes_ends(plan, layers):
        return merged(found)
    if has_vocabulary_passes(plan):
        found = (*found, *_beside_tables(plan, layers, name, shape))
    elif has_vocabulary_share(plan, layers):
        found = (*found, *_vocabulary_share(plan, name, shape))
    return merged(found)


def _beside_tables(
    plan: Plan, layers: StageLayers, name: str, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """What embedding and head have besides their tables, where these have passes of their own: learned positions, the
    final norm."""
    found: tuple[Operator, ...] = ()
    if layers.has_embedding:
        found += tuple(
            each for each in embedding_operators(plan.model, name, shape) if each.kind != TABLE_KIND
        )
    if layers.has_head:
        found += tuple(each for each in head_operators(plan.model, name, shape) if FINAL_NORM in each.label)
    return found


def _vocabulary_share(plan: Plan, name: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """The part of both vocabulary layers that every device has where they are split over the pipeline. Rows of the table
    are padded to a whole number for each device."""
    rows = -(-plan.model.vocabulary_size // (plan.pp * plan.tp)) * plan.tp
    local = replace(plan.model, vocabulary_size=rows)
    return (*embedding_operators(local, name, shape), *head_operators(local, name, shape))
