"""Parameters of a decoder: every tensor with its published name, its shape and the layer that holds it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from meshwright.specs.model import ModelSpec

EMBEDDING = "embedding"
HEAD = "head"


class Parameter(NamedTuple):
    """One tensor of parameters.

    `name` is the one a Hugging Face checkpoint uses, `layer` is "embedding", "head" (final norm and
    vocabulary head) or the number of a block as text. `is_matmul` is True when a matrix product with the
    activations uses it, so that each element costs 2 FLOPs a token forward (6 in training).
    """

    name: str
    shape: tuple[int, ...]
    layer: str
    is_matmul: bool

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


def embedding_parameters(model: ModelSpec) -> tuple[Parameter, ...]:
    """Token table, and the table of positions where positions are learned."""
    names = ("transformer.wte", "transformer.wpe") if model.is_gpt2 else ("model.embed_tokens", "")
    table = Parameter(f"{names[0]}.weight", (model.vocabulary_size, model.hidden_size), EMBEDDING, False)
    if not model.has_learned_positions:
        return (table,)
    positions = (model.max_sequence_length, model.hidden_size)
    return (table, Parameter(f"{names[1]}.weight", positions, EMBEDDING, False))


def head_parameters(model: ModelSpec) -> tuple[Parameter, ...]:
    """Final norm, and the vocabulary head where it is not tied to the token table."""
    prefix = "transformer.ln_f" if model.is_gpt2 else "model.norm"
    norm = _norm(model, prefix, HEAD)
    if model.has_tied_embeddings:
        return norm
    return (*norm, Parameter("lm_head.weight", (model.vocabulary_size, model.hidden_size), HEAD, True))


def block_parameters(model: ModelSpec, block: int) -> tuple[Parameter, ...]:
    """Every parameter of block number `block`, in the order of a checkpoint's forward pass."""
    return _gpt2_block(model, block) if model.is_gpt2 else _llama_block(model, block)


def _gpt2_block(model: ModelSpec, block: int) -> tuple[Parameter, ...]:
    """GPT-2 stores its matrices as (inputs, outputs) and gives every one a bias."""
    prefix, layer, hidden, inner = (
        f"transformer.h.{block}",
        str(block),
        model.hidden_size,
        model.intermediate_size,
    )
    matrices = (
        ("attn.c_attn", hidden, 3 * hidden),
        ("attn.c_proj", hidden, hidden),
        ("mlp.c_fc", hidden, inner),
        ("mlp.c_proj", inner, hidden),
    )
    weights = tuple(
        parameter
        for name, num_in, num_out in matrices
        for parameter in (
            Parameter(f"{prefix}.{name}.weight", (num_in, num_out), layer, True),
            Parameter(f"{prefix}.{name}.bias", (num_out,), layer, False),
        )
    )
    norms = _norm(model, f"{prefix}.ln_1", layer) + _norm(model, f"{prefix}.ln_2", layer)
    return norms[:2] + weights[:4] + norms[2:] + weights[4:]


def _llama_block(model: ModelSpec, block: int) -> tuple[Parameter, ...]:
    """Llama, Qwen2 and Qwen3 store (outputs, inputs); they differ in biases and in norms of q and k."""
    prefix, layer, hidden, inner = (
        f"model.layers.{block}",
        str(block),
        model.hidden_size,
        model.intermediate_size,
    )
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    linears = (
        (f"{attention}.q_proj", hidden, model.query_size, model.has_qkv_bias),
        (f"{attention}.k_proj", hidden, model.key_size, model.has_qkv_bias),
        (f"{attention}.v_proj", hidden, model.key_size, model.has_qkv_bias),
        (f"{attention}.o_proj", model.query_size, hidden, model.has_output_bias),
        (f"{mlp}.gate_proj", hidden, inner, model.has_mlp_bias),
        (f"{mlp}.up_proj", hidden, inner, model.has_mlp_bias),
        (f"{mlp}.down_proj", inner, hidden, model.has_mlp_bias),
    )
    found: list[Parameter] = []
    for name, num_in, num_out, has_bias in linears:
        found.append(Parameter(f"{name}.weight", (num_out, num_in), layer, True))
        if has_bias:
            found.append(Parameter(f"{name}.bias", (num_out,), layer, False))
    if model.has_query_key_norm:
        found += [
            Parameter(f"{attention}.{n}.weight", (model.head_dim,), layer, False)
            for n in ("q_norm", "k_norm")
        ]
    found += _norm(model, f"{prefix}.input_layernorm", layer)
    found += _norm(model, f"{prefix}.post_attention_layernorm", layer)
    return tuple(found)


def _norm(model: ModelSpec, name: str, layer: str) -> tuple[Parameter, ...]:
    """RMSNorm has a weight, LayerNorm a weight and a bias."""
    weight = Parameter(f"{name}.weight", (model.hidden_size,), layer, False)
    bias = Parameter(f"{name}.bias", (model.hidden_size,), layer, False)
    return (weight, bias) if model.is_gpt2 else (weight,)
