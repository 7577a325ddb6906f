"""Operators that an encoder-decoder has beyond a decoder: attention without a mask, to the encoder, the norm between.

Every block sees H tokens, half a window, of each sequence; a query sees all H keys.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.specs.model.block import Attention, BlockSpec, attended_pairs
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator
from meshwright.stage.operator.attention import attention_backward, attention_forward
from meshwright.stage.operator.expert import Parts
from meshwright.stage.operator.layer import (
    LAYOUT_TOUCHES,
    Linear,
    LocalSizes,
    MicrobatchShape,
    norm_backward,
    norm_forward,
    norm_weight,
    residual_add,
)

HALVES_OF_FULL = 2  # causal products of as many tokens: kernels are known of causal ones


def core_forward(block: BlockSpec, local: LocalSizes, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Attention's core of a block: causal, of an encoder's without a mask."""
    found = attention_forward(block.attention, local, shape)
    return _unmasked(found, shape) if block.half == "encoder" else found


def core_backward(block: BlockSpec, local: LocalSizes, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Its backward."""
    found = attention_backward(block.attention, local, shape)
    return _unmasked(found, shape) if block.half == "encoder" else found


def _unmasked(operators: tuple[Operator, ...], shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Causal attention as one without a mask: two causal products, what is read and written once. Whole score matrices are
    the same in both."""
    length = shape.sequence_length
    ratio = length * length / HALVES_OF_FULL / attended_pairs(length)
    return tuple(
        replace(
            each,
            flops=each.flops * ratio,
            bytes=each.bytes / HALVES_OF_FULL,
            count=HALVES_OF_FULL * each.count,
        )
        if each.kind == "attention"
        else each
        for each in operators
    )


def _linears(hidden: int, local: LocalSizes) -> tuple[Linear, Linear, Linear]:
    return (
        Linear("cross query", hidden, local.query, False),
        Linear("cross key_value", hidden, local.key + local.value, False),
        Linear("cross output", local.result, hidden, False),
    )


def _heads(local: LocalSizes, shape: MicrobatchShape) -> Operator:
    """Queries, keys and values to heads, and the result back, nothing turned; backward costs the same."""
    columns = local.query + local.key + local.value + local.result
    num_bytes = LAYOUT_TOUCHES * shape.num_tokens * columns * shape.element_bytes
    return Operator("elementwise", 0.0, num_bytes, (shape.num_tokens, columns), label="cross heads")


def crossed_forward(
    model: ModelSpec, attention: Attention, local: LocalSizes, shape: MicrobatchShape
) -> Parts:
    """Cross attention by its parts, and its sum with the stream."""
    query, key_value, output = _linears(model.hidden_size, local)
    return {
        "cross_norm": (norm_forward("norm", shape.num_rows, model.hidden_size, shape),),
        "cross_query": (query.forward(shape),),
        "cross_key_value": (key_value.forward(shape),),
        "cross_core": (
            _heads(local, shape),
            *_unmasked(attention_forward(attention, local, shape), shape),
        ),
        "cross_output": (output.forward(shape),),
        "cross_attention add": (residual_add("residual", shape, model.hidden_size),),
    }


def crossed_input(model: ModelSpec, attention: Attention, local: LocalSizes, shape: MicrobatchShape) -> Parts:
    """Its backward but for weights: the gradient of what the encoder has made is added to that of other blocks."""
    query, key_value, output = _linears(model.hidden_size, local)
    add = residual_add("residual gradient", shape, model.hidden_size)
    return {
        "cross_output": (output.input_gradient(shape),),
        "cross_core": (
            *_unmasked(attention_backward(attention, local, shape), shape),
            _heads(local, shape),
        ),
        "cross_key_value": (key_value.input_gradient(shape), add),
        "cross_query": (query.input_gradient(shape),),
        "cross_norm": (norm_backward("norm", shape.num_rows, model.hidden_size, shape), add),
    }


def crossed_weight(model: ModelSpec, local: LocalSizes, shape: MicrobatchShape) -> Parts:
    """Its weight gradients."""
    query, key_value, output = _linears(model.hidden_size, local)
    return {
        "cross_norm": (norm_weight("norm", shape.num_rows, model.hidden_size, shape),),
        "cross_query": query.weight_gradient(shape),
        "cross_key_value": key_value.weight_gradient(shape),
        "cross_output": output.weight_gradient(shape),
    }


def encoder_norm_forward(model: ModelSpec, shape: MicrobatchShape) -> Parts:
    """The norm behind the encoder."""
    return {"encoder_norm": (norm_forward("encoder norm", shape.num_rows, model.hidden_size, shape),)}


def encoder_norm_input(model: ModelSpec, shape: MicrobatchShape) -> Parts:
    """Gradient of its input."""
    return {"encoder_norm": (norm_backward("encoder norm", shape.num_rows, model.hidden_size, shape),)}


def encoder_norm_weight(model: ModelSpec, shape: MicrobatchShape) -> Parts:
    """Gradient of its weight."""
    return {"encoder_norm": (norm_weight("encoder norm", shape.num_rows, model.hidden_size, shape),)}
