"""Work of a stage as operators: what F, B, I, W and R run for one microbatch, matrix by matrix.

Counted is the decoder that `executor` runs (pre-norm, fused qkv and gate-up projections, causal attention
without a stored score matrix, residuals, cross entropy); biases, further norms, windows, latent attention and
experts are added where the model has them. How each operator is counted stands in `layer_operator` and
`expert_operator`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from meshwright.specs.error import UnknownNameError
from meshwright.specs.model.adaptation import LORA_TARGETS, backward_layers, trains, trains_table
from meshwright.specs.model.block import BlockKind
from meshwright.specs.model.layers import StageLayers, begins_decoder, ends_encoder
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator, merged, repeated
from meshwright.stage.operator.adapted import (
    addition_forward,
    addition_input,
    addition_weight,
    trained_operators,
)
from meshwright.stage.operator.encoder_decoder import (
    core_backward,
    core_forward,
    crossed_forward,
    crossed_input,
    crossed_weight,
    encoder_norm_forward,
    encoder_norm_input,
    encoder_norm_weight,
)
from meshwright.stage.operator.expert import MLP_PARTS, Parts, mlp_forward, mlp_input, mlp_weight
from meshwright.stage.operator.layer import (
    CAP_BACKWARD_FLOPS,
    CAP_BACKWARD_TOUCHES,
    CAP_FLOPS,
    CAP_TOUCHES,
    EMBEDDING_BACKWARD_TOUCHES,
    LOSS_BACKWARD_FLOPS,
    LOSS_BACKWARD_TOUCHES,
    LOSS_FLOPS,
    LOSS_TOUCHES,
    SCALE_TOUCHES,
    Linear,
    MicrobatchShape,
    attention_linears,
    attention_norms,
    head_layout,
    local_sizes,
    norm_backward,
    norm_forward,
    norm_weight,
    residual_add,
)

PASSES = ("F", "B", "I", "W", "R")
ENDS = (
    "embedding",
    "positions",
    *("encoder_norm", "target_embedding"),
    "final_norm",
    "head",
    "cross_entropy",
)  # parts of a stage that are of no block
# A part of a block that has several of its own.
ATTENTION = ("heads", "attention_core", "attention_output")
MLP_ADDITIONS = "mlp additions"  # low-rank ones, of a dense block
CROSS_ATTENTION = ("cross_query", "cross_key_value", "cross_core", "cross_output")
PARTS_OF = {
    "attention": ATTENTION,
    "cross_attention": CROSS_ATTENTION,
    "mlp": (*MLP_PARTS, MLP_ADDITIONS),
    "down": ("down", MLP_ADDITIONS),
}
# Matrices that may have an addition (LoRA), by the part of the block that they are in.
ADDED_IN = {
    "heads": LORA_TARGETS[:1],
    "attention_output": LORA_TARGETS[1:2],
    MLP_ADDITIONS: LORA_TARGETS[2:],
}
OF_WEIGHTS = " weights"  # behind a part's name in B: its weight gradients


@lru_cache(maxsize=1024)
def stage_operators(
    model: ModelSpec, layers: StageLayers, name: str, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """Everything that instruction `name` (F, B, I, W or R) runs on a stage for one microbatch, merged.

    B is I and W together. R builds a stage's saved tensors again and is F. Raises UnknownNameError and
    PlanError (a tensor-parallel degree that does not divide the model).
    """
    if name in ("B", "I", "W"):
        layers = backward_layers(model, layers)
    embedding = embedding_operators(model, name, shape) if layers.has_embedding else ()
    kinds = model.block_kinds(layers.first_block, layers.num_blocks)
    blocks = [each for i, count in kinds for each in repeated(block_operators(model, name, shape, i), count)]
    head = head_operators(model, name, shape) if layers.has_head else ()
    return merged((*embedding, *blocks, *_between_operators(model, layers, name, shape), *head))


def _between_operators(
    model: ModelSpec, layers: StageLayers, name: str, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """What a stage has between the halves of an encoder-decoder."""
    number = model.num_encoder_layers
    parts = {"encoder_norm": ends_encoder(layers, number), "target_embedding": begins_decoder(layers, number)}
    held = (part for part, is_there in parts.items() if is_there)
    return tuple(each for part in held for each in part_operators(model, part, name, shape, 0))


def part_operators(
    model: ModelSpec, part: str, name: str, shape: MicrobatchShape, block: int
) -> tuple[Operator, ...]:
    """What a pass runs in one part of a block, or of the ends: "attention_norm", "attention" (or one of `ATTENTION`),
    "attention add" and the same of the MLP ("mlp", or of its experts one of `MLP_PARTS`); "embedding", "positions",
    "final_norm", "head", "cross_entropy"."""
    own = _pass_of_ends(model, name, shape)
    if part not in ENDS:
        own = _block_pass(model, name, shape, _first_alike(model)[block])
    parts = PARTS_OF.get(part, (part,))
    names = (*parts, *(f"{each}{OF_WEIGHTS}" for each in parts))
    return tuple(operator for each in own if each in names for operator in own[each])


@lru_cache(maxsize=64)
def _pass_of_ends(model: ModelSpec, name: str, shape: MicrobatchShape) -> Parts:
    return {
        **_pass(name, _embedding_forward, _nothing, _embedding_weight, model, shape),
        **_pass(name, _head_forward, _head_input, _head_weight, model, shape),
        **(_between_halves(model, name, shape) if model.num_encoder_layers else {}),
    }


def _between_halves(model: ModelSpec, name: str, shape: MicrobatchShape) -> Parts:
    """The norm behind an encoder, and the decoder's table: a lookup as the first one."""
    table = _pass(name, _embedding_forward, _nothing, _embedding_weight, model, shape)
    of_table = {f"target_{part}": own for part, own in table.items() if part != "positions"}
    norm = (encoder_norm_forward, encoder_norm_input, encoder_norm_weight)
    return of_table | _pass(name, *norm, model, shape)


@lru_cache(maxsize=16)
def _first_alike(model: ModelSpec) -> tuple[int, ...]:
    """Of every block the first of its kind."""
    first: dict[BlockKind, int] = {}
    kinds = (model.block_kind(block) for block in range(model.num_layers))
    return tuple(first.setdefault(kind, block) for block, kind in enumerate(kinds))


def embedding_operators(model: ModelSpec, name: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Lookup of the token's row (plus a learned position); backward, all in W, rows added to the sum."""
    return _flat(_pass(name, _embedding_forward, _nothing, _embedding_weight, model, shape))


def block_operators(
    model: ModelSpec, name: str, shape: MicrobatchShape, block: int = 0
) -> tuple[Operator, ...]:
    """One block: norm, qkv, rotary, attention, output, residual, norm, MLP, residual; or its backward."""
    return _flat(_block_pass(model, name, shape, block))


@lru_cache(maxsize=256)
def _block_pass(model: ModelSpec, name: str, shape: MicrobatchShape, block: int) -> Parts:
    forward, backward, weight = (partial(p, block) for p in (_block_forward, _block_input, _block_weight))
    return _pass(name, forward, backward, weight, model, shape)


def head_operators(model: ModelSpec, name: str, shape: MicrobatchShape) -> tuple[Operator, ...]:
    """Final norm, vocabulary head and cross entropy, or its backward half."""
    return _flat(_pass(name, _head_forward, _head_input, _head_weight, model, shape))


def recomputed_operators(
    model: ModelSpec, layers: StageLayers, recompute: str, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """What the backward of a stage runs again when less than everything is recomputed.

    selective: the attention core. selective_op: of every block all but attention and every second product, whose
    results are kept (torchtitan's policy "op"). full, of software that stops early: all but the last product of
    every block, whose result the backward does not need (torch.utils.checkpoint without reentry).
    """
    found: list[Operator] = []
    for block, count in model.block_kinds(layers.first_block, layers.num_blocks):
        if recompute == "selective":
            local = local_sizes(model, shape.tp, shape.expert_tp, block)
            again = core_forward(model.layers[block], local, shape)
            if model.layers[block].half == "decoder":
                again += crossed_forward(model, model.layers[block].attention, local, shape)["cross_core"]
        elif recompute == "selective_op":
            again = _not_kept(block_operators(model, "F", shape, block))
        else:
            forward = block_operators(model, "F", shape, block)
            last = max(i for i, each in enumerate(forward) if each.kind in ("matmul", "grouped_matmul"))
            again = forward[:last]
        found += repeated(again, count)
    return tuple(found)


def _not_kept(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The forward less attention and every second plain product; grouped ones are not on that policy's list."""
    again, num_products = [], 0
    for operator in operators:
        if operator.kind == "matmul":
            num_products += 1
            if num_products % 2:
                continue
        if operator.kind != "attention":
            again.append(operator)
    return tuple(again)


_Operators = Callable[[ModelSpec, MicrobatchShape], Parts]


def _pass(
    name: str,
    forward: _Operators,
    input_gradient: _Operators,
    weight_gradient: _Operators,
    model: ModelSpec,
    shape: MicrobatchShape,
) -> Parts:
    if name in ("F", "R"):
        return forward(model, shape)
    if name == "I":
        return input_gradient(model, shape)
    if name == "W":
        return weight_gradient(model, shape)
    if name == "B":
        # weight gradients of all parts stand behind the input gradients of all
        own = {f"{part}{OF_WEIGHTS}": each for part, each in weight_gradient(model, shape).items()}
        return {**input_gradient(model, shape), **own}
    raise UnknownNameError("compute of a stage", name, PASSES)


def _flat(parts: Parts) -> tuple[Operator, ...]:
    return tuple(operator for each in parts.values() for operator in each)


def _nothing(model: ModelSpec, shape: MicrobatchShape) -> Parts:
    """Token numbers have no gradient."""
    return {}


def _block_forward(number: int, model: ModelSpec, shape: MicrobatchShape) -> Parts:
    hidden, block = model.hidden_size, model.layers[number]
    local, attention = local_sizes(model, shape.tp, shape.expert_tp, number), block.attention
    *projections, output = attention_linears(hidden, attention, local)
    norm = norm_forward("norm", shape.num_rows, hidden, shape)
    after = (norm,) if model.has_post_norms else ()
    return {
        "attention_norm": (norm,),
        "heads": (
            *(projection.forward(shape) for projection in projections),
            *addition_forward(model, "qkv", shape),
            *(norm_forward(*inner, shape) for inner in attention_norms(attention, local, shape.num_tokens)),
            head_layout(model, attention, local, shape),
        ),
        "attention_core": core_forward(block, local, shape),
        "attention_output": (
            output.forward(shape),
            *addition_forward(model, "attention_output", shape),
        ),
        "attention add": (*after, residual_add("residual", shape, hidden)),
        **(crossed_forward(model, attention, local, shape) if block.half == "decoder" else {}),
        "mlp_norm": (norm,),
        **mlp_forward(model, block, local, shape),
        MLP_ADDITIONS: (
            *addition_forward(model, "gate_up", shape),
            *addition_forward(model, "down", shape),
        ),
        "mlp add": (*after, residual_add("residual", shape, hidden)),
    }


def _block_input(number: int, model: ModelSpec, shape: MicrobatchShape) -> Parts:
    """Everything of the backward that does not end in a parameter.

    Latent attention's two projections of the hidden state have their gradients added once.
    """
    hidden, block = model.hidden_size, model.layers[number]
    local, attention = local_sizes(model, shape.tp, shape.expert_tp, number), block.attention
    *projections, output = attention_linears(hidden, attention, local)
    norm = norm_backward("norm", shape.num_rows, hidden, shape)
    after = (norm,) if model.has_post_norms else ()
    add = residual_add("residual gradient", shape, hidden)
    return {
        "mlp add": after,
        MLP_ADDITIONS: (
            *addition_input(model, "down", shape),
            *addition_input(model, "gate_up", shape),
        ),
        **mlp_input(model, block, local, shape),
        "mlp_norm": (norm, add),
        **(crossed_input(model, attention, local, shape) if block.half == "decoder" else {}),
        "attention add": after,
        "attention_output": (
            *addition_input(model, "attention_output", shape),
            output.input_gradient(shape),
        ),
        "attention_core": core_backward(block, local, shape),
        "heads": (
            head_layout(model, attention, local, shape),
            *(norm_backward(*inner, shape) for inner in attention_norms(attention, local, shape.num_tokens)),
            *addition_input(model, "qkv", shape),
            *(projection.input_gradient(shape) for projection in projections),
            *((add,) if attention.latent else ()),
        ),
        "attention_norm": (norm, add),
    }


def _block_weight(number: int, model: ModelSpec, shape: MicrobatchShape) -> Parts:
    block, trained = model.block_kind(number)
    local, attention = local_sizes(model, shape.tp, shape.expert_tp, number), block.attention
    norm = norm_weight("norm", shape.num_rows, model.hidden_size, shape)
    after = (norm,) if model.has_post_norms else ()
    *projections, output = attention_linears(model.hidden_size, attention, local)
    found: Parts = {
        "attention_norm": (norm,),
        "mlp_norm": (norm,),
        "attention add": after,
        "mlp add": after,
        "heads": (
            *(norm_weight(*inner, shape) for inner in attention_norms(attention, local, shape.num_tokens)),
            *(operator for linear in projections for operator in linear.weight_gradient(shape)),
        ),
        "attention_output": output.weight_gradient(shape),
        **(crossed_weight(model, local, shape) if block.half == "decoder" else {}),
        **mlp_weight(model, block, local, shape),
        MLP_ADDITIONS: (),
    }
    if trained is None:
        return found
    additions = {
        part: tuple(each for target in targets for each in addition_weight(model, target, shape))
        for part, targets in ADDED_IN.items()
    }
    return {
        part: (*trained_operators(trained, part, each), *additions.get(part, ()))
        for part, each in found.items()
    }


def _embedding_dims(model: ModelSpec, shape: MicrobatchShape) -> tuple[int, int, int]:
    return shape.num_tokens, model.hidden_size, local_sizes(model, shape.tp).vocabulary


def _embedding_forward(model: ModelSpec, shape: MicrobatchShape) -> Parts:
    dims = _embedding_dims(model, shape)
    work = dims[0] * dims[1]
    lookup = Operator("embedding", 0.0, 2 * work * shape.element_bytes, dims, label="lookup")
    scaled = (_scaled(model, shape),) if model.is_gemma else ()
    positions = (residual_add("positions", shape, dims[1]),) if model.has_learned_positions else ()
    return {"embedding": (lookup, *scaled), "positions": positions}


def _embedding_weight(model: ModelSpec, shape: MicrobatchShape) -> Parts:
    """Gradients are added to the rows of the tokens that occur; the rest of the table is not touched."""
    dims = _embedding_dims(model, shape)
    work = dims[0] * dims[1]
    size_bytes = EMBEDDING_BACKWARD_TOUCHES * work * shape.element_bytes
    scatter = Operator("embedding", work, size_bytes, dims, phase="backward", label="scatter")
    if model.is_gemma:
        return {"embedding": (_scaled(model, shape), scatter)}
    own: Parts = {"embedding": (scatter,) if trains_table(model, of_head=False) else ()}
    if model.has_learned_positions and trains(model, "positions.weight"):
        num_bytes = work * shape.element_bytes
        own["positions"] = (Operator("elementwise", work, num_bytes, dims[:2], label="positions db"),)
    return own


def _scaled(model: ModelSpec, shape: MicrobatchShape) -> Operator:
    """Gemma's rows, or their gradients, times the root of the hidden size."""
    work, dims = shape.num_tokens * model.hidden_size, (shape.num_tokens, model.hidden_size)
    return Operator("elementwise", work, SCALE_TOUCHES * work * shape.element_bytes, dims, label="scale")


def _capped(model: ModelSpec, shape: MicrobatchShape, touches: int, flops: int) -> tuple[Operator, ...]:
    """The cap on logits, where the model has one."""
    if not model.final_logit_cap:
        return ()
    dims = (shape.num_tokens, local_sizes(model, shape.tp).vocabulary)
    work = dims[0] * dims[1]
    num_bytes = touches * work * shape.element_bytes
    return (Operator("elementwise", flops * work, num_bytes, dims, label="logit cap"),)


def _head_linear(model: ModelSpec, shape: MicrobatchShape) -> Linear:
    return Linear("vocabulary", model.hidden_size, local_sizes(model, shape.tp).vocabulary, False)


def _head_forward(model: ModelSpec, shape: MicrobatchShape) -> Parts:
    linear = _head_linear(model, shape)
    work, dims = shape.num_tokens * linear.num_out, (shape.num_tokens, linear.num_out)
    loss = Operator("loss", LOSS_FLOPS * work, LOSS_TOUCHES * work * shape.element_bytes, dims, label="loss")
    return {
        "final_norm": (norm_forward("final norm", shape.num_rows, model.hidden_size, shape),),
        "head": (linear.forward(shape),),
        "cross_entropy": (*_capped(model, shape, CAP_TOUCHES, CAP_FLOPS), loss),
    }


def _head_input(model: ModelSpec, shape: MicrobatchShape) -> Parts:
    linear = _head_linear(model, shape)
    work, dims = shape.num_tokens * linear.num_out, (shape.num_tokens, linear.num_out)
    size_bytes = LOSS_BACKWARD_TOUCHES * work * shape.element_bytes
    flops = LOSS_BACKWARD_FLOPS * work
    loss = Operator("loss", flops, size_bytes, dims, phase="backward", label="loss backward")
    norm = norm_backward("final norm", shape.num_rows, model.hidden_size, shape)
    cap = _capped(model, shape, CAP_BACKWARD_TOUCHES, CAP_BACKWARD_FLOPS)
    return {"cross_entropy": (loss, *cap), "head": (linear.input_gradient(shape),), "final_norm": (norm,)}


def _head_weight(model: ModelSpec, shape: MicrobatchShape) -> Parts:
    norm = norm_weight("final norm", shape.num_rows, model.hidden_size, shape)
    table = _head_linear(model, shape).weight_gradient(shape) if trains_table(model, of_head=True) else ()
    has_norm = any(trains(model, f"final_norm.{part}") for part in ("weight", "bias"))
    return {"final_norm": (norm,) if has_norm else (), "head": table}
