"""Steps of attention where the tokens of a sequence are divided, along cp or into chunks: in front of what brings keys and
values of others, and behind it.

Shapes: P devices along cp, of which U neighbours exchange heads inside a ring, B samples, S tokens of a sequence, s = S / P
of a device, E hidden size, H query and K key-value heads of a tensor-parallel device, D numbers of a head, W any width.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from meshwright.executor.models.block import Block
from meshwright.executor.models.chain.step_data import MicrobatchData, block_of, last_product
from meshwright.executor.models.decoder import DecoderStage
from meshwright.executor.ops.attention import chunk_attention as chunks
from meshwright.executor.ops.attention.causal_attention import causal_attention
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.attention.gathered_attention import gathered_attention
from meshwright.executor.ops.attention.head_exchange import (
    HeadExchange,
    by_equal_heads,
    by_token,
    sequence_of,
)
from meshwright.executor.ops.attention.part_attention import keys_and_values, query_and_block
from meshwright.executor.ops.attention.sliding_window import within_window
from meshwright.specs.sequence.sequence_part import RingPart, SequencePart, SequenceRun
from meshwright.stage.chain.chain import ChainStep


def part_of(data: MicrobatchData) -> RingPart:
    """The tokens of this device."""
    assert isinstance(data.part, RingPart), "these steps are of chains along cp"
    return data.part


def group_of(data: MicrobatchData) -> tuple[SequencePart, ...]:
    """The tokens of every device that exchanges heads with this one: of its neighbours in a ring, else of all."""
    part = data.part
    assert isinstance(part, SequencePart), "groups of ranks that change by step exchange no heads"
    return part.neighbours if part.ulysses > 1 else tuple(map(part.of_rank, range(part.degree)))


def mask_of(block: Block, data: MicrobatchData) -> DocumentMask | None:
    """Documents and the block's window, of whole sequences; None where a token sees all of its sequence before it."""
    if data.is_packed and not 0 < block.layout.window < data.length:
        return None
    return within_window(block.layout.window, data.length, data.tokens_BS.device, data.documents)


def heads(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor) -> tuple[Tensor, ...]:
    """Queries [B, s, H, D], and the block of keys and values [2, B, s, K, D], or of latent attention [1, B, s, H, D + V]."""
    block = block_of(stage, step.block)
    turn = stage.turn(data.length, x_BsE.dtype, x_BsE.device, data.documents, data.part)
    if block.latent_attention is not None and turn is not None:
        return block.latent_attention.query_and_block(x_BsE, turn)
    return query_and_block(block.heads(x_BsE), block.layout, turn)


def separate_heads(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor
) -> tuple[Tensor, ...]:
    """Queries [B, s, H, D], keys [B, s, K, D] and values [B, s, K, V]."""
    query, block = heads(stage, step, data, x_BsE)
    return query, *(x.contiguous() for x in keys_and_values(block, query.shape[-1]))


def attention_core(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, query: Tensor, blocks: Tensor
) -> tuple[Tensor, ...]:
    """Attention of the queries here to the keys of all devices, [2 P, B, s, K, D]: [B, s, H D]."""
    part = part_of(data)
    assert isinstance(part, SequencePart), "packed ones go around a ring"
    return (gathered_attention(query, blocks, part, mask_of(block_of(stage, step.block), data)),)


def chunk_attention(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, query: Tensor, blocks: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Attention of the queries of a chunk to the keys of all chunks up to it, each [2, B, m, K, D]: [B, s, H D]."""
    assert isinstance(data.part, SequenceRun), "this step is of chains of chunks"
    mask = mask_of(block_of(stage, step.block), data)
    return (chunks.chunk_attention(query, blocks, data.part, mask),)


def attention_output(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, attended_BsW: Tensor
) -> tuple[Tensor, ...]:
    """The last product, of a tensor-parallel device a term of a sum."""
    return (last_product(block_of(stage, step.block), "attention").product(attended_BsW),)


def head_parts(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor
) -> tuple[Tensor, ...]:
    """For every device its heads of the tokens here, [P, B, s, W]."""
    block = block_of(stage, step.block)
    if block.latent_attention is None:
        return (_exchange(block, data).by_rank(block.heads(x_BsE)),)
    turn = stage.turn(data.length, x_BsE.dtype, x_BsE.device, data.documents, part_of(data))
    assert turn is not None, "latent attention is of families with rotary positions"
    return (by_equal_heads(block.latent_attention.by_heads(x_BsE, turn), len(group_of(data))),)


def attention_of_heads(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, parts: Tensor
) -> tuple[Tensor, ...]:
    """Attention of some heads of whole sequences, for every device its tokens: [P, B, s, W]."""
    block, group = block_of(stage, step.block), group_of(data)
    own_heads = sequence_of(parts, group)
    if block.latent_attention is not None:
        return (by_token(block.latent_attention.attend(own_heads, data.documents), group),)
    turn = stage.turn(data.length, parts.dtype, parts.device, data.documents)
    attended = causal_attention(own_heads, _exchange(block, data).local, turn, data.documents)
    return (by_token(attended, group),)


def heads_of_group(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, parts: Tensor
) -> tuple[Tensor, ...]:
    """Of some heads queries and the block of keys and values, as `heads` gives them, of the tokens of all neighbours."""
    block, own_heads = block_of(stage, step.block), sequence_of(parts, group_of(data))
    if block.latent_attention is not None:
        return block.latent_attention.query_and_block_of(own_heads)
    turn = stage.turn(data.length, parts.dtype, parts.device, data.documents, part_of(data).ring)
    return query_and_block(own_heads, _exchange(block, data).local, turn)


def tokens_of_group(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, attended_BsW: Tensor
) -> tuple[Tensor, ...]:
    """For every neighbour its tokens of what some heads attended to: [U, B, s, W]."""
    return (by_token(attended_BsW, group_of(data)),)


def output_of_parts(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, parts: Tensor
) -> tuple[Tensor, ...]:
    """The last product of all heads, which came from all devices."""
    block = block_of(stage, step.block)
    return (last_product(block, "attention").product(_exchange(block, data).heads_of(parts)),)


def _exchange(block: Block, data: MicrobatchData) -> HeadExchange:
    return HeadExchange(block.layout, len(group_of(data)))
