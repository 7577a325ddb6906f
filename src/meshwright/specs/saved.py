"""Bytes a stage keeps per token: for the backward (with and without recompute), for W, and on its boundary.

Counted per tensor for the decoder that `executor` runs, as automatic differentiation keeps them; parameters
and what lives only inside one operation are not counted. A tensor that two operations keep counts once.
Experts keep what balanced routing gives them; a token has `num_experts_per_token` rows there.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.expert_operator import INDEX_BYTES
from meshwright.specs.layers import StageLayers
from meshwright.specs.model import ModelSpec
from meshwright.specs.parameter import block_parameters

TOKEN_BYTES = 8  # token numbers are int64


class SavedTensor(NamedTuple):
    """One tensor kept from forward to backward: numbers per token, bytes of one, and who reads it."""

    name: str
    elements_per_token: int
    element_bytes: int
    reader: str

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token."""
        return self.elements_per_token * self.element_bytes


def block_saved(model: ModelSpec, dtype: str = "float32", block: int = 0) -> tuple[SavedTensor, ...]:
    """What block number `block` keeps for its backward, nothing recomputed.

    The block's input belongs to this block; its output is the next layer's input. Attention keeps q, k and v
    by heads, turned and scaled, so the projection's own output goes, except where a norm of q and k needs it.
    Attention's probabilities are computed again in the backward.
    """
    b, hidden = dtype_bytes(dtype), model.hidden_size
    num_statistics = (2 if model.is_gpt2 else 1) * (4 if model.has_post_norms else 2)
    kept = [
        SavedTensor("input", hidden, b, "first norm"),
        SavedTensor("norm statistics", num_statistics, b, "the block's norms"),
        SavedTensor("first norm's output", hidden, b, "qkv weight gradient"),
        SavedTensor("q, k, v by heads", model.qkv_size, b, "attention"),
        SavedTensor("attention output", model.result_size, b, "output weight gradient"),
        SavedTensor("middle residual", hidden, b, "second norm"),
        SavedTensor("second norm's output", hidden, b, "up weight gradient"),
    ]
    if model.has_query_key_norm:
        kept.append(SavedTensor("qkv", model.qkv_size, b, "norm of q and k"))
        kept.append(SavedTensor("q and k statistics", model.num_heads + model.num_kv_heads, b, "same"))
    if model.has_latent_attention:
        kept += _latent_saved(model, b)
    if model.has_post_norms:
        kept.append(SavedTensor("output projection's output", hidden, b, "norm after attention"))
        kept.append(SavedTensor("MLP's output", hidden, b, "norm after the MLP"))
    if model.block_kind(block).has_experts:
        return (*kept, *_expert_saved(model, b))
    return (*kept, *_mlp_saved(model, model.intermediate_size, b))


def _mlp_saved(model: ModelSpec, inner: int, b: int, prefix: str = "") -> list[SavedTensor]:
    """Of an MLP `inner` wide; its input is the second norm's output."""
    kept = [SavedTensor(f"{prefix}activation output", inner, b, "down weight gradient")]
    if model.has_gated_mlp:
        kept.append(SavedTensor(f"{prefix}gate and up", 2 * inner, b, "activation"))
        activated = "GELU" if model.is_gemma else "SiLU"
        kept.append(SavedTensor(f"{prefix}{activated} of gate", inner, b, "activation's product"))
    else:
        kept.append(SavedTensor(f"{prefix}up", inner, b, "GELU"))
    return kept


def _latent_saved(model: ModelSpec, b: int) -> list[SavedTensor]:
    """Latents before and after their norms, and the statistics of these."""
    rank, query_rank = model.key_value_rank, model.query_rank
    kept = [
        SavedTensor("key-value latent", rank + model.rotary_head_dim, b, "its norm"),
        SavedTensor("key-value latent norm's output", rank, b, "weight gradient of what it is widened by"),
        SavedTensor("latent statistics", 2 if query_rank else 1, b, "norms of latents"),
    ]
    if query_rank:
        kept.append(SavedTensor("query latent", query_rank, b, "its norm"))
        kept.append(SavedTensor("query latent norm's output", query_rank, b, "same as of keys and values"))
    return kept


def _expert_saved(model: ModelSpec, b: int) -> list[SavedTensor]:
    """Of routing, of the experts a token goes to, and of the shared ones."""
    hidden, chosen = model.hidden_size, model.num_experts_per_token
    kept = [
        SavedTensor("router probabilities", model.num_experts, b, "routing"),
        SavedTensor("expert weights", chosen, b, "combine"),
        SavedTensor("expert numbers", chosen, INDEX_BYTES, "dispatch and combine"),
        SavedTensor("dispatched rows", chosen * hidden, b, "gate_up weight gradient of experts"),
        SavedTensor("experts' output", chosen * hidden, b, "gradient of expert weights"),
        *_mlp_saved(model, chosen * model.expert_intermediate_size, b, "experts' "),
    ]
    if model.shared_intermediate_size:
        kept += _mlp_saved(model, model.shared_intermediate_size, b, "shared ")
    if model.has_shared_gate:
        kept.append(SavedTensor("shared output and its gate", hidden + 1, b, "gating"))
    return kept


def head_saved(model: ModelSpec, dtype: str = "float32") -> tuple[SavedTensor, ...]:
    """What final norm, vocabulary head and loss keep: the logits' log-probabilities are the large one."""
    b = dtype_bytes(dtype)
    capped = (
        (SavedTensor("tanh of logits", model.vocabulary_size, b, "cap"),) if model.final_logit_cap else ()
    )
    return (
        *capped,
        SavedTensor("input", model.hidden_size, b, "final norm"),
        SavedTensor("norm statistics", 2 if model.is_gpt2 else 1, b, "final norm"),
        SavedTensor("norm's output", model.hidden_size, b, "vocabulary weight gradient"),
        SavedTensor("log-probabilities", model.vocabulary_size, b, "loss"),
        SavedTensor("targets", 1, TOKEN_BYTES, "loss"),
    )


def embedding_saved(model: ModelSpec) -> tuple[SavedTensor, ...]:
    """What the embedding keeps: the token numbers, and with learned positions theirs (once for a microbatch,
    counted as if for each of its sequences). Its output is the first block's input.
    """
    tokens = SavedTensor("tokens", 1, TOKEN_BYTES, "scatter into the table")
    positions = SavedTensor("positions", 1, TOKEN_BYTES, "scatter into the table of positions")
    return (tokens, positions) if model.has_learned_positions else (tokens,)


def saved_bytes_per_token(
    model: ModelSpec, layers: StageLayers, dtype: str = "float32", recompute: str = "none"
) -> int:
    """Bytes per token that a stage keeps from F to its backward.

    With recompute "full" F keeps only the stage's input; the rest lives from R to the backward, and its size
    is what recompute "none" gives.
    """
    if recompute == "full":
        return TOKEN_BYTES if layers.has_embedding else boundary_bytes_per_token(model, dtype)
    kept: list[SavedTensor] = []
    for block, count in model.block_kinds(layers.first_block, layers.num_blocks):
        kept += list(block_saved(model, dtype, block)) * count
    if layers.has_embedding:
        kept += embedding_saved(model)
    if layers.has_head:
        kept += head_saved(model, dtype)
    return sum(tensor.bytes_per_token for tensor in kept)


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
    norms = num_norms * (hidden + (2 if model.is_gpt2 else 1))
    projections = 2 * hidden + model.result_size
    if model.has_query_key_norm:  # the projection's output, of q, k and v
        norms += model.qkv_size + model.num_heads + model.num_kv_heads
    if model.has_latent_attention:
        norms += (
            model.query_rank + model.key_value_rank + model.rotary_head_dim + (2 if model.query_rank else 1)
        )
        projections += model.query_rank + model.key_value_rank
    if not model.block_kind(block).has_experts:
        return norms + projections + model.intermediate_size
    routed = model.num_experts_per_token * (hidden + model.expert_intermediate_size)
    return norms + projections + routed + model.shared_intermediate_size


def _gradient_elements(model: ModelSpec, block: int) -> int:
    """Output gradients of a block's projections and norms."""
    hidden, num_norms = model.hidden_size, 4 if model.has_post_norms else 2
    width = 2 if model.has_gated_mlp else 1
    elements = num_norms * hidden + hidden  # the norms', the output projection's
    if model.has_latent_attention:
        unturned = model.num_heads * (model.head_dim - model.rotary_head_dim)
        elements += model.query_size + unturned + model.value_size  # of what widens the latents
        elements += (
            2 * (model.query_rank + model.key_value_rank) + model.rotary_head_dim
        )  # to them; their norms'
    else:
        elements += model.qkv_size * (2 if model.has_query_key_norm else 1)
    if not model.block_kind(block).has_experts:
        return elements + width * model.intermediate_size + hidden
    elements += model.num_experts
    elements += model.num_experts_per_token * (width * model.expert_intermediate_size + hidden)
    if model.shared_intermediate_size:
        elements += width * model.shared_intermediate_size + hidden + (1 if model.has_shared_gate else 0)
    return elements


def pending_gradient_bytes_per_token(model: ModelSpec, layers: StageLayers, dtype: str = "float32") -> int:
    """The part of `pending_bytes_per_token` that I makes: output gradients. The inputs are among the saved tensors."""
    kinds = model.block_kinds(layers.first_block, layers.num_blocks)
    elements = sum(count * _gradient_elements(model, block) for block, count in kinds)
    if layers.has_head:
        elements += model.hidden_size + model.vocabulary_size
    if layers.has_embedding:
        elements += (2 if model.has_learned_positions else 1) * model.hidden_size
    return elements * dtype_bytes(dtype)


def boundary_bytes_per_token(model: ModelSpec, dtype: str = "float32") -> int:
    """Bytes per token of the activation that one stage sends to the next; its gradient is as large."""
    return model.hidden_size * dtype_bytes(dtype)


def num_stage_parameters(model: ModelSpec, layers: StageLayers) -> int:
    """Parameters a stage holds; a table tied between two stages is on both, on one stage it counts once."""
    kinds = model.block_kinds(layers.first_block, layers.num_blocks)
    total = sum(count * model.num_block_parameters(block) for block, count in kinds)
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
