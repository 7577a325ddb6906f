"""The steps that an encoder-decoder's chain has beyond a decoder's: ends of its halves, cross attention.

Shapes: B samples, H tokens of half a window, h tokens of this device's part of a stream, E hidden size, W width of the
queries, keys and values here.
"""

from __future__ import annotations

from torch import Tensor

from meshwright.executor.models.chain.step_data import MicrobatchData, last_product
from meshwright.executor.models.decoder import DecoderStage
from meshwright.executor.models.encoder_decoder import CrossBlock, EncoderDecoderStage
from meshwright.executor.models.part.ladder_residual import apart, beside
from meshwright.stage.chain.chain import ChainStep


def _stage(stage: DecoderStage) -> EncoderDecoderStage:
    assert isinstance(stage, EncoderDecoderStage), "the chain is of an encoder-decoder"
    return stage


def _block(stage: DecoderStage, step: ChainStep) -> CrossBlock:
    found = stage.layers[str(step.block)]
    assert isinstance(found, CrossBlock), "these steps are of the decoder's blocks"
    return found


def encoder_norm(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BhE: Tensor
) -> tuple[Tensor, ...]:
    """Behind the encoder: what the decoder attends to."""
    norm = _stage(stage).encoder_norm
    assert norm is not None, "the stage with the encoder's last block has it"
    return _twice(norm(x_BhE))


def take_encoded(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x: Tensor) -> tuple[Tensor, ...]:
    """What another stage gives of the decoder: its stream, where it has begun, and what the encoder has made."""
    if "residual" not in step.writes:
        return _twice(x)
    residual_BhE, encoded_BhE = apart(x)
    return residual_BhE, *_twice(encoded_BhE)


def _twice(encoded_BhE: Tensor) -> tuple[Tensor, Tensor]:
    """For products here and for the next stage, whose gradients come apart."""
    return encoded_BhE, encoded_BhE.view_as(encoded_BhE)


def embed_targets(stage: DecoderStage, step: ChainStep, data: MicrobatchData) -> tuple[Tensor, ...]:
    """Rows of the tokens that the decoder goes on with: [B, H, E]."""
    table = _stage(stage).target_embedding
    assert table is not None, "the stage with the decoder's first block has it"
    return (table(data.continued_BS),)


def give_encoded(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, residual_BhE: Tensor, encoded_BhE: Tensor
) -> tuple[Tensor, ...]:
    """The decoder's stream, and what the encoder has made, for another stage."""
    return (beside(residual_BhE, encoded_BhE),)


def cross_norm(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BhE: Tensor
) -> tuple[Tensor, ...]:
    """In front of cross attention."""
    return (_block(stage, step).cross_norm(x_BhE),)


def cross_attention(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BHE: Tensor, encoded_BHE: Tensor
) -> tuple[Tensor, ...]:
    """This device's heads: a term of their sum."""
    block = _block(stage, step)
    attended = block.crossed(block.cross_query(x_BHE), block.cross_key_value(encoded_BHE))
    return (last_product(block, "cross_attention").product(attended),)


def cross_query(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BHE: Tensor
) -> tuple[Tensor, ...]:
    """Queries of this device's heads."""
    return (_block(stage, step).cross_query(x_BHE),)


def cross_key_value(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, encoded_BHE: Tensor
) -> tuple[Tensor, ...]:
    """Keys and values of this device's heads, of what the encoder has made."""
    return (_block(stage, step).cross_key_value(encoded_BHE),)


def cross_core(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, query_BHW: Tensor, key_value_BHW: Tensor
) -> tuple[Tensor, ...]:
    """Cross attention's core alone."""
    return (_block(stage, step).crossed(query_BHW, key_value_BHW),)


def cross_output(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, attended_BHW: Tensor
) -> tuple[Tensor, ...]:
    """The last product of cross attention: a term of a sum."""
    return (last_product(_block(stage, step), "cross_attention").product(attended_BHW),)
