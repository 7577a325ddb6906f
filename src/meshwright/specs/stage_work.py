"""Work of a stage as operators: what F, B, I, W and R run for one microbatch, matrix by matrix.

Counted is the decoder that `executor` runs (pre-norm, fused qkv and gate-up projections, causal attention
without a stored score matrix, residuals, cross entropy); GPT-2's and Qwen's biases and norms are added where
the model has them. How each operator is counted stands in `layer_operator`.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.specs.error import UnknownNameError
from meshwright.specs.layer_operator import (
    EMBEDDING_BACKWARD_TOUCHES,
    LOSS_BACKWARD_FLOPS,
    LOSS_BACKWARD_TOUCHES,
    LOSS_FLOPS,
    LOSS_TOUCHES,
    Linear,
    MicrobatchShape,
    activation_backward,
    activation_forward,
    attention_backward,
    attention_forward,
    block_linears,
    head_layout,
    local_sizes,
    norm_backward,
    norm_forward,
    norm_weight,
    residual_add,
)
from meshwright.specs.layers import StageLayers
from meshwright.specs.model import ModelSpec
from meshwright.specs.operator import Operator, merged, repeated

PASSES = ("F", "B", "I", "W", "R")


def stage_operators(
    model: ModelSpec, layers: StageLayers, name: str, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """Everything that instruction `name` (F, B, I, W or R) runs on a stage for one microbatch, merged.

    B is I and W together. R builds a stage's saved tensors again and is F. Raises UnknownNameError and
    SpecError (a tensor-parallel degree that does not divide the model).
    """
    embedding = embedding_operators(model, name, shape) if layers.has_embedding else ()
    blocks = repeated(block_operators(model, name, shape), layers.num_blocks)
    head = head_operators(model, name, shape) if layers.has_head else ()
    return merged((*embedding, *blocks, *head))


def embedding_operators(model: ModelSpec, name: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Lookup of the token's row (plus a learned position); backward, all in W, rows added to the sum."""
    return _pass(name, _embedding_forward, _nothing, _embedding_weight, model, shape)


def block_operators(model: ModelSpec, name: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """One block: norm, qkv, rotary, attention, output, residual, norm, MLP, residual; or its backward."""
    return _pass(name, _block_forward, _block_input, _block_weight, model, shape)


def head_operators(model: ModelSpec, name: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Final norm, vocabulary head and cross entropy, or its backward half."""
    return _pass(name, _head_forward, _head_input, _head_weight, model, shape)


_Operators = Callable[[ModelSpec, MicrobatchShape], tuple[Operator, ...]]


def _pass(
    name: str,
    forward: _Operators,
    input_gradient: _Operators,
    weight_gradient: _Operators,
    model: ModelSpec,
    shape: MicrobatchShape,
) -> tuple[Operator, ...]:
    if name in ("F", "R"):
        return forward(model, shape)
    if name == "I":
        return input_gradient(model, shape)
    if name == "W":
        return weight_gradient(model, shape)
    if name == "B":
        return input_gradient(model, shape) + weight_gradient(model, shape)
    raise UnknownNameError("compute of a stage", name, PASSES)


def _nothing(model: ModelSpec, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Token numbers have no gradient."""
    return ()


def _block_forward(model: ModelSpec, shape: MicrobatchShape) -> tuple[Operator, ...]:
    rows, hidden, local = shape.num_tokens, model.hidden_size, local_sizes(model, shape.tp)
    qkv, output, up, down = block_linears(model, local)
    norm = norm_forward("norm", rows, hidden, shape)
    head_norm = norm_forward("q and k norm", rows * (local.heads + local.kv_heads), model.head_dim, shape)
    return (
        norm,
        qkv.forward(shape),
        *((head_norm,) if model.has_query_key_norm else ()),
        head_layout(model, local, shape),
        attention_forward(model, local, shape),
        output.forward(shape),
        residual_add("residual", shape, hidden),
        norm,
        up.forward(shape),
        activation_forward(model, local, shape),
        down.forward(shape),
        residual_add("residual", shape, hidden),
    )


def _block_input(model: ModelSpec, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Everything of the backward that does not end in a parameter."""
    rows, hidden, local = shape.num_tokens, model.hidden_size, local_sizes(model, shape.tp)
    qkv, output, up, down = block_linears(model, local)
    norm = norm_backward("norm", rows, hidden, shape)
    head_norm = norm_backward("q and k norm", rows * (local.heads + local.kv_heads), model.head_dim, shape)
    return (
        down.input_gradient(shape),
        activation_backward(model, local, shape),
        up.input_gradient(shape),
        norm,
        residual_add("residual gradient", shape, hidden),
        output.input_gradient(shape),
        attention_backward(model, local, shape),
        head_layout(model, local, shape),
        *((head_norm,) if model.has_query_key_norm else ()),
        qkv.input_gradient(shape),
        norm,
        residual_add("residual gradient", shape, hidden),
    )


def _block_weight(model: ModelSpec, shape: MicrobatchShape) -> tuple[Operator, ...]:
    rows, local = shape.num_tokens, local_sizes(model, shape.tp)
    norm = norm_weight("norm", rows, model.hidden_size, shape)
    head_norm = norm_weight("q and k norm", rows * (local.heads + local.kv_heads), model.head_dim, shape)
    linears = block_linears(model, local)
    return (
        norm,
        norm,
        *((head_norm,) if model.has_query_key_norm else ()),
        *(operator for linear in linears for operator in linear.weight_gradient(shape)),
    )


def _embedding_dims(model: ModelSpec, shape: MicrobatchShape) -> tuple[int, int, int]:
    return shape.num_tokens, model.hidden_size, local_sizes(model, shape.tp).vocabulary


def _embedding_forward(model: ModelSpec, shape: MicrobatchShape) -> tuple[Operator, ...]:
    dims = _embedding_dims(model, shape)
    work = dims[0] * dims[1]
    lookup = Operator("embedding", 0.0, 2 * work * shape.element_bytes, dims, label="lookup")
    return (lookup, residual_add("positions", shape, dims[1])) if model.has_learned_positions else (lookup,)


def _embedding_weight(model: ModelSpec, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Gradients are added to the rows of the tokens that occur; the rest of the table is not touched."""
    dims = _embedding_dims(model, shape)
    work = dims[0] * dims[1]
    size_bytes = EMBEDDING_BACKWARD_TOUCHES * work * shape.element_bytes
    scatter = Operator("embedding", work, size_bytes, dims, phase="backward", label="scatter")
    if not model.has_learned_positions:
        return (scatter,)
    positions = Operator("elementwise", work, work * shape.element_bytes, dims[:2], label="positions db")
    return (scatter, positions)


def _head_linear(model: ModelSpec, shape: MicrobatchShape) -> Linear:
    return Linear("vocabulary", model.hidden_size, local_sizes(model, shape.tp).vocabulary, False)


def _head_forward(model: ModelSpec, shape: MicrobatchShape) -> tuple[Operator, ...]:
    linear = _head_linear(model, shape)
    work, dims = shape.num_tokens * linear.num_out, (shape.num_tokens, linear.num_out)
    loss = Operator("loss", LOSS_FLOPS * work, LOSS_TOUCHES * work * shape.element_bytes, dims, label="loss")
    return (
        norm_forward("final norm", shape.num_tokens, model.hidden_size, shape),
        linear.forward(shape),
        loss,
    )


def _head_input(model: ModelSpec, shape: MicrobatchShape) -> tuple[Operator, ...]:
    linear = _head_linear(model, shape)
    work, dims = shape.num_tokens * linear.num_out, (shape.num_tokens, linear.num_out)
    size_bytes = LOSS_BACKWARD_TOUCHES * work * shape.element_bytes
    flops = LOSS_BACKWARD_FLOPS * work
    loss = Operator("loss", flops, size_bytes, dims, phase="backward", label="loss backward")
    norm = norm_backward("final norm", shape.num_tokens, model.hidden_size, shape)
    return (loss, linear.input_gradient(shape), norm)


def _head_weight(model: ModelSpec, shape: MicrobatchShape) -> tuple[Operator, ...]:
    norm = norm_weight("final norm", shape.num_tokens, model.hidden_size, shape)
    return (norm, *_head_linear(model, shape).weight_gradient(shape))
