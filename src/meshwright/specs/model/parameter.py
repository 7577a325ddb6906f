"""Parameters of a decoder: every tensor with its name, its shape and the layer that holds it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from meshwright.specs.model.model import ModelSpec

EMBEDDING = "embedding"
HEAD = "head"


class Parameter(NamedTuple):
    """One tensor of parameters.

    `name` and `shape` are those of `AutoModelForCausalLM` (transformers 5, which holds a block's experts in one
    tensor), `layer` is "embedding", "head" (final norm and vocabulary head) or the number of a block as text.
    `is_matmul` is True when a matrix product with the activations uses it, so that each element costs 2 FLOPs
    a token forward (6 in training). `is_expert`: the first dimension counts experts, of which a token uses a few.
    """

    name: str
    shape: tuple[int, ...]
    layer: str
    is_matmul: bool
    is_expert: bool = False

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
    if model.is_gpt2:
        return _gpt2_block(model, block)
    prefix, layer = f"model.layers.{block}", str(block)
    linears = (
        *_attention_linears(model, f"{prefix}.self_attn"),
        *_mlp_linears(model, block, f"{prefix}.mlp"),
    )
    weights = tuple(parameter for linear in linears for parameter in linear.parameters(layer))
    experts = _experts(model, f"{prefix}.mlp", layer) if model.block_kind(block).has_experts else ()
    return (
        *weights,
        *experts,
        *_attention_vectors(model, f"{prefix}.self_attn", layer),
        *(norm for name in _norm_names(model) for norm in _norm(model, f"{prefix}.{name}", layer)),
    )


class _Linear(NamedTuple):
    """A projection that stores (outputs, inputs), as all families but GPT-2 do."""

    name: str
    num_in: int
    num_out: int
    has_bias: bool = False

    def parameters(self, layer: str) -> tuple[Parameter, ...]:
        """Weight, and bias where there is one."""
        weight = Parameter(f"{self.name}.weight", (self.num_out, self.num_in), layer, True)
        return (
            (weight, Parameter(f"{self.name}.bias", (self.num_out,), layer, False))
            if self.has_bias
            else (weight,)
        )


def _attention_linears(model: ModelSpec, prefix: str) -> tuple[_Linear, ...]:
    hidden, has_bias = model.hidden_size, model.has_qkv_bias
    output = _Linear(f"{prefix}.o_proj", model.result_size, hidden, model.has_output_bias)
    if not model.has_latent_attention:
        return (
            _Linear(f"{prefix}.q_proj", hidden, model.query_size, has_bias),
            _Linear(f"{prefix}.k_proj", hidden, model.key_size, has_bias),
            _Linear(f"{prefix}.v_proj", hidden, model.value_size, has_bias),
            output,
        )
    rank, turned = model.key_value_rank, model.rotary_head_dim
    unturned_size = model.num_heads * (model.head_dim - turned)
    queries: tuple[_Linear, ...] = (_Linear(f"{prefix}.q_proj", hidden, model.query_size),)
    if model.query_rank:
        queries = (
            _Linear(f"{prefix}.q_a_proj", hidden, model.query_rank, has_bias),
            _Linear(f"{prefix}.q_b_proj", model.query_rank, model.query_size),
        )
    return (
        *queries,
        _Linear(f"{prefix}.kv_a_proj_with_mqa", hidden, rank + turned, has_bias),
        _Linear(f"{prefix}.kv_b_proj", rank, unturned_size + model.value_size),
        output,
    )


def _mlp_linears(model: ModelSpec, block: int, prefix: str) -> tuple[_Linear, ...]:
    """The dense MLP, or in a block with experts the shared one."""
    hidden, inner = model.hidden_size, model.intermediate_size
    gates: tuple[_Linear, ...] = ()
    if model.block_kind(block).has_experts:
        inner = model.shared_intermediate_size
        if inner == 0:
            return ()
        if model.has_shared_gate:
            gates = (_Linear(f"{prefix}.shared_expert_gate", hidden, 1),)
        prefix += ".shared_expert" if model.architecture == "qwen2_moe" else ".shared_experts"
    return (
        _Linear(f"{prefix}.gate_proj", hidden, inner, model.has_mlp_bias),
        _Linear(f"{prefix}.up_proj", hidden, inner, model.has_mlp_bias),
        _Linear(f"{prefix}.down_proj", inner, hidden, model.has_mlp_bias),
        *gates,
    )


def _experts(model: ModelSpec, prefix: str, layer: str) -> tuple[Parameter, ...]:
    """Router, and the experts' two matrices, gate and up in one; GPT-OSS stores them (inputs, outputs)."""
    num, hidden, inner = model.num_experts, model.hidden_size, model.expert_intermediate_size
    if not model.has_expert_bias:
        return (
            Parameter(f"{prefix}.gate.weight", (num, hidden), layer, True),
            Parameter(f"{prefix}.experts.gate_up_proj", (num, 2 * inner, hidden), layer, True, True),
            Parameter(f"{prefix}.experts.down_proj", (num, hidden, inner), layer, True, True),
        )
    return (
        Parameter(f"{prefix}.router.weight", (num, hidden), layer, True),
        Parameter(f"{prefix}.router.bias", (num,), layer, False),
        Parameter(f"{prefix}.experts.gate_up_proj", (num, hidden, 2 * inner), layer, True, True),
        Parameter(f"{prefix}.experts.gate_up_proj_bias", (num, 2 * inner), layer, False, True),
        Parameter(f"{prefix}.experts.down_proj", (num, inner, hidden), layer, True, True),
        Parameter(f"{prefix}.experts.down_proj_bias", (num, hidden), layer, False, True),
    )


def _attention_vectors(model: ModelSpec, prefix: str, layer: str) -> tuple[Parameter, ...]:
    """Norms inside attention, and its sinks."""
    sizes: dict[str, int] = {}
    if model.has_query_key_norm:
        sizes |= {"q_norm.weight": model.head_dim, "k_norm.weight": model.head_dim}
    if model.query_rank:
        sizes["q_a_layernorm.weight"] = model.query_rank
    if model.has_latent_attention:
        sizes["kv_a_layernorm.weight"] = model.key_value_rank
    if model.has_attention_sinks:
        sizes["sinks"] = model.num_heads
    return tuple(Parameter(f"{prefix}.{name}", (size,), layer, False) for name, size in sizes.items())


def _norm_names(model: ModelSpec) -> tuple[str, ...]:
    names = ("input_layernorm", "post_attention_layernorm")
    if model.has_post_norms:
        return (*names, "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return names


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


def _norm(model: ModelSpec, name: str, layer: str) -> tuple[Parameter, ...]:
    """RMSNorm has a weight, LayerNorm a weight and a bias."""
    weight = Parameter(f"{name}.weight", (model.hidden_size,), layer, False)
    bias = Parameter(f"{name}.bias", (model.hidden_size,), layer, False)
    return (weight, bias) if model.is_gpt2 else (weight,)
