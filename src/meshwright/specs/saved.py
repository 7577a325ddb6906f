"""Bytes a stage keeps per token: for the backward (with and without recompute), for W, and on its boundary.

Counted per tensor for the decoder that `executor` runs, as automatic differentiation keeps them; parameters
and what lives only inside one operation are not counted. A tensor that two operations keep counts once.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.layers import StageLayers
from meshwright.specs.model import ModelSpec

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


def block_saved(model: ModelSpec, dtype: str = "float32") -> tuple[SavedTensor, ...]:
    """What one block keeps for its backward, nothing recomputed.

    The block's input belongs to this block; its output is the next layer's input. Attention keeps q, k and v
    by heads, turned and scaled, so the projection's own output goes, except where a norm of q and k needs it.
    Attention's probabilities are computed again in the backward.
    """
    b = dtype_bytes(dtype)
    hidden, inner = model.hidden_size, model.intermediate_size
    num_statistics = 2 if model.is_gpt2 else 1
    kept = [
        SavedTensor("input", hidden, b, "first norm"),
        SavedTensor("norm statistics", 2 * num_statistics, b, "both norms"),
        SavedTensor("first norm's output", hidden, b, "qkv weight gradient"),
        SavedTensor("q, k, v by heads", model.qkv_size, b, "attention"),
        SavedTensor("attention output", model.query_size, b, "output weight gradient"),
        SavedTensor("middle residual", hidden, b, "second norm"),
        SavedTensor("second norm's output", hidden, b, "up weight gradient"),
        SavedTensor("activation output", inner, b, "down weight gradient"),
    ]
    if model.has_query_key_norm:
        kept.append(SavedTensor("qkv", model.qkv_size, b, "norm of q and k"))
        kept.append(SavedTensor("q and k statistics", model.num_heads + model.num_kv_heads, b, "same"))
    if model.has_gated_mlp:
        kept.append(SavedTensor("gate and up", 2 * inner, b, "activation"))
        kept.append(SavedTensor("SiLU of gate", inner, b, "activation's product"))
    else:
        kept.append(SavedTensor("up", inner, b, "GELU"))
    return tuple(kept)


def head_saved(model: ModelSpec, dtype: str = "float32") -> tuple[SavedTensor, ...]:
    """What final norm, vocabulary head and loss keep: the logits' log-probabilities are the large one."""
    b = dtype_bytes(dtype)
    return (
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
    kept = list(block_saved(model, dtype)) * layers.num_blocks
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
    elements = layers.num_blocks * _pending_block_elements(model)
    if layers.has_head:  # final norm and vocabulary head
        elements += 3 * model.hidden_size + (2 if model.is_gpt2 else 1) + model.vocabulary_size
    num_tables = (2 if model.has_learned_positions else 1) if layers.has_embedding else 0
    elements += num_tables * model.hidden_size
    return elements * b + num_tables * TOKEN_BYTES


def _pending_block_elements(model: ModelSpec) -> int:
    """Two norms: input, output gradient, statistics; four projections: input, output gradient."""
    hidden, inner = model.hidden_size, model.intermediate_size
    norms = 2 * (2 * hidden + (2 if model.is_gpt2 else 1))
    inputs = 2 * hidden + model.query_size + inner
    gradients = model.qkv_size + 2 * hidden + (2 * inner if model.has_gated_mlp else inner)
    if model.has_query_key_norm:  # input: the projection's output; gradient: attention's, of q, k and v
        norms += 2 * model.qkv_size + model.num_heads + model.num_kv_heads
    return norms + inputs + gradients


def pending_gradient_bytes_per_token(model: ModelSpec, layers: StageLayers, dtype: str = "float32") -> int:
    """The part of `pending_bytes_per_token` that I makes: output gradients. The inputs are among the saved tensors."""
    hidden, inner = model.hidden_size, model.intermediate_size
    per_block = model.qkv_size + 4 * hidden + (2 * inner if model.has_gated_mlp else inner)
    if model.has_query_key_norm:
        per_block += model.qkv_size
    elements = layers.num_blocks * per_block
    if layers.has_head:
        elements += hidden + model.vocabulary_size
    if layers.has_embedding:
        elements += (2 if model.has_learned_positions else 1) * hidden
    return elements * dtype_bytes(dtype)


def boundary_bytes_per_token(model: ModelSpec, dtype: str = "float32") -> int:
    """Bytes per token of the activation that one stage sends to the next; its gradient is as large."""
    return model.hidden_size * dtype_bytes(dtype)


def num_stage_parameters(model: ModelSpec, layers: StageLayers) -> int:
    """Parameters a stage holds; a table tied between two stages is on both, on one stage it counts once."""
    total = layers.num_blocks * model.num_block_parameters
    if layers.has_embedding:
        total += model.num_embedding_parameters
    if layers.has_head:
        shares_table = layers.has_embedding and model.has_tied_embeddings
        total += model.num_norm_parameters + (0 if shares_table else model.num_head_parameters)
    return total
