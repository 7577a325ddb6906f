"""Handlers of a relay, ring attention: its steps, forward and backward, what stands behind them, and blocks under way.

Shapes: B samples, s tokens of this device, H query and K key-value heads, D numbers of a head. Blocks of keys and values are
[2, B, s, K, D].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from meshwright.executor.models.chain.context_steps import mask_of, part_of
from meshwright.executor.models.chain.stage_segment import StageSegment
from meshwright.executor.models.chain.step_data import block_of
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.part_attention import AttentionState, PartAttention
from meshwright.executor.ops.attention.tile_kernel import wide_dtype
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.exchange_handler import receive
from meshwright.executor.rank.handler import Handlers, Pending, Row
from meshwright.ir.core_vocabulary import REMADE, SAVED
from meshwright.specs.sequence.sequence_part import RingPart


@dataclass(frozen=True)
class SavedAttention:
    """What a backward keeps of this device's own tokens: queries [B, s, H, D], outputs [B, s, H D], and the logarithms of the
    sums [B, H, s]. The own block is a value of the program."""

    query: Tensor
    output: Tensor
    sums: Tensor


def attend(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """One step: reads the queries, the block that is here, and the state behind the step before; adds to that."""
    query, block, *before = inputs
    attention, mask = _attention(context, row)
    state: AttentionState | None = before[0] if before else None
    return (attention.attend(query, block, state, _keys(context, row), mask),)


def attend_backward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """One step: adds its share to the gradients of the queries, and of the block that is here, which came with it."""
    saved, output_gradient, block, *before = inputs
    attention, mask = _attention(context, row)
    own, travelling = before or (attention.gradients_of(saved.query), attention.gradients_of(block))
    attention.attend_backward(
        saved.query, block, saved.output, saved.sums, output_gradient, own, travelling,
        _keys(context, row), mask,
    )  # fmt: skip
    return own, travelling


def finished(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Behind all steps: the output, and what the backward keeps, where the row keeps anything."""
    query, state = inputs[:2]
    output = PartAttention(context.training.data.part_of(row.microbatch)).finished(state, query.dtype)
    saved = SavedAttention(query, output, state.sums_BHs)
    return [saved if names and names[0].kind in (SAVED.kind, REMADE.name) else output for names in row.writes]


def gradients(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Behind all steps of the backward: the gradients of queries and of the own block, which has come home."""
    saved, *sums = inputs[:3]
    return tuple(x.to(saved.query.dtype) for x in sums)


def receive_gradient(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Post a buffer for a block's gradient, in the dtype in which steps add to it."""
    return receive(context, row, inputs, wide_dtype(context.dtype))


def _attention(context: Context, row: Row) -> tuple[PartAttention, DocumentMask | None]:
    """Of this device's tokens, and what they see."""
    own: StageSegment = context.training.segments[row.stage]
    # a step of a ring of P devices, counted on through the parts of a microbatch
    part = row.part // context.training.data.part_of(row.microbatch).degree
    data = context.training.microbatch_data(row.microbatch, part, context.device)
    block = block_of(context.training.stages[own.stage], own.segment.steps[0].block)
    return PartAttention(part_of(data)), mask_of(block, data)


def _keys(context: Context, row: Row) -> RingPart:
    """Whose block a step has."""
    own: RingPart = context.training.data.part_of(row.microbatch)
    return own.source(row.part % own.degree)


HANDLERS: Handlers = {
    "ATTEND": attend,
    "ATTEND_AGAIN": attend,
    "ATTEND_BACKWARD": attend_backward,
    "RECEIVE_BLOCK_GRADIENT": receive_gradient,
}
