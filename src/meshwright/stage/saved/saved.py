"""Bytes a stage keeps per token: for the backward (with and without recompute), for W, and on its boundary.

What one block keeps, tensor by tensor, stands in `saved_block`; here tensors become stages. `saved_bytes_per_token` is
what the decoder that `executor` runs keeps on one device; `stage_saved_bytes` is for any software on one device of a
tensor-parallel group. Parameters and what lives only inside one operation are not counted.
"""

from __future__ import annotations

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.adaptation import backward_layers, lora_parameters, trains, trains_table
from meshwright.specs.model.block import Attention, Experts
from meshwright.specs.model.layers import StageLayers, begins_decoder, ends_encoder
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter import (
    Parameter,
    block_parameters,
    decoder_begin_parameters,
    encoder_end_parameters,
)
from meshwright.stage.saved.block import (
    TOKEN_BYTES,
    SavedTensor,
    SavingContext,
    block_saved,
    context_saved,
    embedding_saved,
    encoded_saved,
    encoder_end_saved,
    head_saved,
    tensor_bytes,
)

__all__ = [
    "TOKEN_BYTES",
    "SavedTensor",
    "SavingContext",
    "block_saved",
    "boundary_bytes_per_token",
    "residual_bytes_per_token",
    "context_saved",
    "embedding_saved",
    "head_saved",
    "num_stage_expert_parameters",
    "num_stage_parameters",
    "pending_bytes_per_token",
    "pending_gradient_bytes_per_token",
    "saved_bytes_per_token",
    "stage_saved_bytes",
    "tensor_bytes",
]

# What the head keeps, without what is as wide as the vocabulary.
HEAD_ROWS = ("input", "norm statistics", "norm's output", "targets")


def saved_bytes_per_token(
    model: ModelSpec, layers: StageLayers, dtype: str = "float32", recompute: str = "none"
) -> int:
    """Bytes per token that a stage keeps from F to its backward.

    With recompute "full" F keeps only the stage's input; the rest lives from R to the backward, and its size
    is what recompute "none" gives.
    """
    if recompute == "full":
        return TOKEN_BYTES if layers.has_embedding else boundary_bytes_per_token(model, dtype)
    layers = backward_layers(model, layers)
    kept: list[SavedTensor] = []
    for block, count in model.block_kinds(layers.first_block, layers.num_blocks):
        kept += list(block_saved(model, dtype, block)) * count
    kept += between_saved(model, layers, dtype)
    if layers.has_embedding:
        kept += embedding_saved(model)
    if layers.has_head:
        kept += head_saved(model, dtype)
    return sum(tensor.bytes_per_token for tensor in kept)


def between_saved(model: ModelSpec, layers: StageLayers, dtype: str) -> tuple[SavedTensor, ...]:
    """What a stage keeps between the halves of an encoder-decoder: the input of the encoder's norm, the numbers of the
    tokens that the decoder goes on with, and on a stage with blocks of the decoder what the encoder has made."""
    number = model.num_encoder_layers
    stop = layers.first_block + layers.num_blocks
    found: list[SavedTensor] = []
    if ends_encoder(layers, number):
        found += encoder_end_saved(model, dtype)
    if begins_decoder(layers, number):
        found += embedding_saved(model)
    if 0 < number < stop and layers.num_blocks:
        found.append(encoded_saved(model, dtype))
    return tuple(found)


def stage_saved_bytes(
    model: ModelSpec, layers: StageLayers, context: SavingContext, sequence_length: int = 0
) -> float:
    """Bytes per token that one device keeps of a stage from F to its backward, in the software that `context` describes.

    Recompute works by blocks: "full" keeps every block's input. The loss is left out: logits and what is made of them
    live from the end of F to the begin of the backward behind it, and are counted as the moment of the loss.
    `sequence_length` counts the keys of one query, where scores are kept.
    """
    layers = backward_layers(model, layers)
    total = 0.0
    for block, count in model.block_kinds(layers.first_block, layers.num_blocks):
        kept = context_saved(model, context, block, sequence_length)
        total += count * sum(tensor_bytes(model, tensor, context) for tensor in kept)
    for tensor in between_saved(model, layers, context.dtype):
        total += tensor_bytes(model, tensor, context)
    if layers.has_embedding:
        total += sum(tensor.bytes_per_token for tensor in embedding_saved(model))
    if layers.has_head:
        rows = [tensor for tensor in head_saved(model, context.dtype) if tensor.name in HEAD_ROWS]
        total += sum(tensor_bytes(model, tensor, context) for tensor in rows)
    return total


def pending_bytes_per_token(model: ModelSpec, layers: StageLayers, dtype: str = "float32") -> int:
    """Bytes per token that a stage keeps from I to W: input and output gradient of all that has parameters.

    Inputs (of projections, norms and the lookup) stay from F, output gradients are new in I.
    """
    b = dtype_bytes(dtype)
    kinds = model.block_kinds(layers.first_block, layers.num_blocks)
    elements = sum(
        count * (_input_elements(model, block) + _gradient_elements(model, block)) for block, count in kinds
    )
    if layers.has_head:  # final norm and vocabulary head
        elements += 3 * model.hidden_size + (2 if model.is_gpt2 else 1) + model.vocabulary_size
    num_tables = (2 if model.has_learned_positions else 1) if layers.has_embedding else 0
    elements += num_tables * model.hidden_size
    return elements * b + num_tables * TOKEN_BYTES


def _input_elements(model: ModelSpec, block: int) -> int:
    """Inputs of a block's projections and norms with these' statistics, each tensor once."""
    hidden, num_norms = model.hidden_size, 4 if model.has_post_norms else 2
    attention, feed_forward = model.layers[block].attention, model.layers[block].feed_forward
    norms = num_norms * (hidden + (2 if model.is_gpt2 else 1))
    projections = 2 * hidden + attention.result_size
    if attention.has_query_key_norm:  # the projection's output, of q, k and v
        norms += attention.qkv_size + attention.num_heads + attention.num_kv_heads
    if latent := attention.latent:
        ranks = latent.query_rank + latent.key_value_rank
        norms += ranks + latent.rotary_head_dim + (2 if latent.query_rank else 1)
        projections += ranks
    if model.layers[block].half == "decoder":  # what the encoder has made is the stage's
        norms += hidden + 1
        projections += hidden + attention.result_size
    if not isinstance(feed_forward, Experts):
        return norms + projections + feed_forward.intermediate_size
    routed = feed_forward.num_experts_per_token * (hidden + feed_forward.intermediate_size)
    return norms + projections + routed + feed_forward.shared_intermediate_size


def _gradient_elements(model: ModelSpec, block: int) -> int:
    """Output gradients of a block's projections and norms, of those that train."""
    if model.is_adapted:
        return _adapted_gradient_elements(model, block)
    hidden, num_norms = model.hidden_size, 4 if model.has_post_norms else 2
    width, attention = 2 if model.has_gated_mlp else 1, model.layers[block].attention
    elements = num_norms * hidden + hidden  # the norms', the output projection's
    if latent := attention.latent:
        unturned = attention.num_heads * (attention.head_dim - latent.rotary_head_dim)
        elements += attention.query_size + unturned + attention.value_size  # of what widens the latents
        elements += (
            2 * (latent.query_rank + latent.key_value_rank) + latent.rotary_head_dim
        )  # to them; their norms'
    else:
        elements += attention.qkv_size * (2 if attention.has_query_key_norm else 1)
    if model.layers[block].half == "decoder":  # of the norm and both products in front, and of the one behind
        elements += hidden + attention.qkv_size + hidden
    feed_forward = model.layers[block].feed_forward
    if not isinstance(feed_forward, Experts):
        return elements + width * feed_forward.intermediate_size + hidden
    elements += feed_forward.num_experts
    elements += feed_forward.num_experts_per_token * (width * feed_forward.intermediate_size + hidden)
    if shared := feed_forward.shared_intermediate_size:
        elements += width * shared + hidden + (1 if model.has_shared_gate else 0)
    return elements


def _adapted_gradient_elements(model: ModelSpec, block: int) -> int:
    """Of what trains, and of both factors of the additions."""
    hidden, width = model.hidden_size, 2 if model.has_gated_mlp else 1
    widths = dict.fromkeys(("attention_norm", "mlp_norm", "attention_output", "down"), hidden)
    attention = model.layers[block].attention
    widths |= {
        "qkv": attention.qkv_size,
        "gate_up": width * model.layers[block].feed_forward.intermediate_size,
    }
    widths |= {"query_norm": attention.query_size, "key_norm": attention.key_size}
    widths |= _mixture_widths(model, model.layers[block].experts) | _latent_widths(attention)
    modules = {name.rpartition(".")[0] for name in model.block_kind(block).trained or ()}
    additions = sum(model.lora_rank + widths[target] for target in model.lora_targets)
    return sum(widths[module] for module in modules) + additions


def _latent_widths(attention: Attention) -> dict[str, int]:
    """Numbers a token has behind every matrix and norm of latent attention."""
    latent, prefix = attention.latent, "latent_attention"
    if latent is None:
        return {}
    unturned = attention.num_heads * (attention.head_dim - latent.rotary_head_dim)
    return {
        f"{prefix}.query": attention.query_size,
        f"{prefix}.narrow_query": latent.query_rank,
        f"{prefix}.narrow_query_norm": latent.query_rank,
        f"{prefix}.widen_query": attention.query_size,
        f"{prefix}.narrow_key_value": latent.key_value_rank + latent.rotary_head_dim,
        f"{prefix}.narrow_key_value_norm": latent.key_value_rank,
        f"{prefix}.widen_key_value": unturned + attention.value_size,
    }


def _mixture_widths(model: ModelSpec, experts: Experts | None) -> dict[str, int]:
    """Numbers a token has behind every matrix of a mixture of experts."""
    if experts is None:
        return {}
    hidden, chosen = model.hidden_size, experts.num_experts_per_token
    return {
        "mixture.router": experts.num_experts + experts.routing_in(model.architecture).cosine_rank,
        "mixture.expert_gate_up": chosen * 2 * experts.intermediate_size,
        "mixture.expert_down": chosen * hidden,
        "mixture.shared.gate_up": 2 * experts.shared_intermediate_size,
        "mixture.shared.down": hidden,
        "mixture.shared_gate": 1,
    }


def pending_gradient_bytes_per_token(model: ModelSpec, layers: StageLayers, dtype: str = "float32") -> int:
    """The part of `pending_bytes_per_token` that I makes: output gradients. The inputs are among the saved tensors."""
    layers = backward_layers(model, layers)
    kinds = model.block_kinds(layers.first_block, layers.num_blocks)
    elements = sum(count * _gradient_elements(model, block) for block, count in kinds)
    if layers.has_head:
        elements += model.hidden_size * trains(model, "final_norm.weight")
        elements += model.vocabulary_size * trains_table(model, of_head=True)
    if layers.has_embedding:
        elements += model.hidden_size * trains_table(model, of_head=False)
        elements += model.hidden_size * (model.has_learned_positions and trains(model, "positions.weight"))
    return elements * dtype_bytes(dtype)


def residual_bytes_per_token(model: ModelSpec, dtype: str = "float32") -> int:
    """Bytes per token of the residual stream."""
    return model.hidden_size * dtype_bytes(dtype)


def boundary_bytes_per_token(model: ModelSpec, dtype: str = "float32", block: int | None = None) -> int:
    """Bytes per token of the activation that one stage sends to the next, where that begins with `block` (None: the most
    that any sends); its gradient is as large. With a ladder residual or parallel branches results go beside the stream that
    lacks them; of an encoder-decoder what the encoder has made beside the decoder's stream."""
    is_beside = bool(model.num_encoder_layers) and (block is None or block > model.num_encoder_layers)
    return residual_bytes_per_token(model, dtype) * (2 if model.hands_on_results or is_beside else 1)


def between_parameters(model: ModelSpec, layers: StageLayers) -> tuple[Parameter, ...]:
    """Those that a stage has between the halves of an encoder-decoder, a tied table aside."""
    number = model.num_encoder_layers
    return (
        *(encoder_end_parameters(model) if ends_encoder(layers, number) else ()),
        *(decoder_begin_parameters(model) if begins_decoder(layers, number) else ()),
    )


def num_stage_parameters(model: ModelSpec, layers: StageLayers) -> int:
    """Parameters a stage holds; a table tied between two stages is on both, on one stage it counts once."""
    kinds = model.block_kinds(layers.first_block, layers.num_blocks)
    total = sum(count * model.num_block_parameters(block) for block, count in kinds)
    total += layers.num_blocks * sum(parameter.num_elements for parameter in lora_parameters(model, 0))
    total += sum(parameter.num_elements for parameter in between_parameters(model, layers))
    if layers.has_embedding:
        total += model.num_embedding_parameters
    if layers.has_head:
        shares_table = layers.has_embedding and model.has_tied_embeddings
        total += model.num_norm_parameters + (0 if shares_table else model.num_head_parameters)
    return total


def num_stage_expert_parameters(model: ModelSpec, layers: StageLayers) -> int:
    """The part of `num_stage_parameters` that experts hold: what expert parallelism divides among its devices."""
    kinds = model.block_kinds(layers.first_block, layers.num_blocks)
    return sum(
        count * parameter.num_elements
        for block, count in kinds
        for parameter in block_parameters(model, block)
        if parameter.is_expert
    )
