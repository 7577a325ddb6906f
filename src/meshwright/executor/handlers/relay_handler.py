"""Handlers of relays in which blocks of keys and values travel, or queries do: their steps, forward and backward, what stands
behind them, what is sent.

Shapes: B samples, s tokens of this device, H query and K key-value heads, D numbers of a head. Blocks of keys and values are
[2, B, s, K, D].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from meshwright.executor.models.block import Block
from meshwright.executor.models.chain.context_steps import mask_of, part_of
from meshwright.executor.models.chain.stage_segment import StageSegment
from meshwright.executor.models.chain.step_data import block_of
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.part_attention import AttentionState, PartAttention
from meshwright.executor.ops.attention.tile_kernel import wide_dtype
from meshwright.executor.ops.relay.visiting_queries import (
    attend_backward as attend_backward_of_rows,
)
from meshwright.executor.ops.relay.visiting_queries import (
    merge_packed,
    packed_rows,
    packed_state,
    rows_of,
)
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.exchange_handler import receive
from meshwright.executor.rank.handler import Handlers, Pending, Row
from meshwright.ir.core_vocabulary import REMADE, SAVED
from meshwright.specs.sequence.sequence_part import RingPart
from meshwright.stage.relay.rounds import TOKEN_RING


@dataclass(frozen=True)
class SavedAttention:
    """What a backward keeps of this device's own tokens: queries [B, s, H, D], outputs [B, s, H D], and the logarithms of the
    sums [B, H, s]. The own block is a value of the program."""

    query: Tensor
    output: Tensor
    sums: Tensor


def attend(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """One step: attention of the queries that are here to the block that is here. Where blocks travel it is added to the
    state behind the step before; where queries do it goes back to their device, but for the own ones, whose state it
    begins."""
    if not _queries_travel(context, row):
        query, block, *before = inputs
        attention, mask = _attention(context, row)
        state: AttentionState | None = before[0] if before else None
        return (attention.attend(query, block, state, _source(context, row), mask),)
    block, query = inputs
    _, mask = _attention(context, row)
    found = PartAttention(_source(context, row)).attend(query, block, None, _own_part(context, row), mask)
    is_own = row.part % _own_part(context, row).degree == 0
    return (found if is_own else packed_state(found, query.dtype),)


def merged(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """What another device found for the queries here, added to their state."""
    state, packed = inputs
    merge_packed(state, packed)
    return (state,)


def prepare_rows(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """What a backward needs of the queries here, wherever they are."""
    saved, output_gradient = inputs
    return (packed_rows(saved.query, saved.output, saved.sums, output_gradient),)


def attend_backward(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """One step: its share of the gradients of the queries and of the block that are here, added to what is summed here, or
    came with what travels."""
    attention, mask = _attention(context, row)
    if _queries_travel(context, row):
        return _attend_backward_of_rows(context, row, inputs, mask)
    saved, output_gradient, block, *before = inputs
    own, travelling = before or (attention.gradients_of(saved.query), attention.gradients_of(block))
    attention.attend_backward(
        saved.query, block, saved.output, saved.sums, output_gradient, own, travelling,
        _source(context, row), mask,
    )  # fmt: skip
    return own, travelling


def _attend_backward_of_rows(
    context: Context, row: Row, inputs: Sequence[Any], mask: DocumentMask | None
) -> Sequence[Any]:
    """Where queries travel: the sum of the block's gradient, and the gradient of the queries, for their own device."""
    block, packed, *before = inputs
    part = _own_part(context, row)
    own = before[0] if before else PartAttention(part).gradients_of(block)
    layout = _block(context, row).layout
    found = attend_backward_of_rows(
        rows_of(packed, layout.head_dim), _source(context, row), block, part, own, mask
    )
    return own, found


def add_gradient(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """What another device found for the gradient of the queries here, added."""
    total, found = inputs
    return (total.add_(found),)


def finished(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Behind all steps: the output, and what the backward keeps, where the row keeps anything."""
    query, state = inputs[:2]
    output = PartAttention(_own_part(context, row)).finished(state, query.dtype)
    saved = SavedAttention(query, output, state.sums_BHs)
    return [saved if names and names[0].kind in (SAVED.kind, REMADE.name) else output for names in row.writes]


def gradients(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """Behind all steps of the backward: the gradients of queries and of the own block, which has come home."""
    saved, *sums = inputs[:3]
    return tuple(x.to(saved.query.dtype) for x in sums)


def receive_gradient(context: Context, row: Row, inputs: Sequence[Any]) -> Pending:
    """Post a buffer for a gradient, in the dtype in which steps add to it."""
    return receive(context, row, inputs, wide_dtype(context.dtype))


def _queries_travel(context: Context, row: Row) -> bool:
    own: StageSegment = context.training.segments[row.stage]
    return own.segment.relay is not None and own.segment.relay.rounds == TOKEN_RING


def _block(context: Context, row: Row) -> Block:
    own: StageSegment = context.training.segments[row.stage]
    return block_of(context.training.stages[own.stage], own.segment.steps[0].block)


def _attention(context: Context, row: Row) -> tuple[PartAttention, DocumentMask | None]:
    """Of this device's tokens, and what they see."""
    part, mask = part_and_mask(context, row)
    return PartAttention(part), mask


def part_and_mask(context: Context, row: Row) -> tuple[RingPart, DocumentMask | None]:
    """This device's tokens of a microbatch, or of a part of it, and what every token sees; where neighbours have exchanged
    heads, the tokens of all of them."""
    # a step of a ring, counted on through the parts of a microbatch
    part = row.part // _own_part(context, row).degree
    data = context.training.microbatch_data(row.microbatch, part, context.device)
    return part_of(data).ring, mask_of(_block(context, row), data)


def _own_part(context: Context, row: Row) -> RingPart:
    own: RingPart = context.training.data.part_of(row.microbatch)
    return own.ring


def _source(context: Context, row: Row) -> RingPart:
    """Whose operand a step has."""
    own = _own_part(context, row)
    return own.source(row.part % own.degree)


HANDLERS: Handlers = {
    "ATTEND": attend,
    "ATTEND_AGAIN": attend,
    "ATTEND_BACKWARD": attend_backward,
    "MERGE": merged,
    "MERGE_AGAIN": merged,
    "PREPARE_ROWS": prepare_rows,
    "ADD_GRADIENT": add_gradient,
    "RECEIVE_BLOCK_GRADIENT": receive_gradient,
    "RECEIVE_QUERY_GRADIENT": receive_gradient,
}
