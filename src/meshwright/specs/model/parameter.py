"""Parameters of a decoder: every tensor with its name, its shape and the layer that holds it."""

from __future__ import annotations

import math
from typing import NamedTuple

from meshwright.specs.model.block import Attention, BlockSpec, Experts
from meshwright.specs.model.shape import ModelShape

EMBEDDING = "embedding"
ENCODER_END, DECODER_BEGIN = "encoder_end", "decoder_begin"  # of an encoder-decoder
HEAD = "head"


class Parameter(NamedTuple):
    """One tensor of parameters.

    `name` and `shape` are those of `AutoModelForCausalLM` (transformers 5, which holds a block's experts in one
    tensor), `layer` is "embedding", "head" (final norm and vocabulary head), the number of a block as text, or of an
    encoder-decoder, which that class does not know, the "encoder_end" or the "decoder_begin".
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

    @property
    def is_attention(self) -> bool:
        """Is it of a block's attention to its own sequence?"""
        return ".self_attn." in self.name or ".attn." in self.name


def embedding_parameters(model: ModelShape) -> tuple[Parameter, ...]:
    """Token table, and the table of positions where positions are learned."""
    names = ("transformer.wte", "transformer.wpe") if model.is_gpt2 else ("model.embed_tokens", "")
    table = Parameter(f"{names[0]}.weight", (model.vocabulary_size, model.hidden_size), EMBEDDING, False)
    if not model.has_learned_positions:
        return (table,)
    positions = (model.max_sequence_length, model.hidden_size)
    return (table, Parameter(f"{names[1]}.weight", positions, EMBEDDING, False))


def head_parameters(model: ModelShape) -> tuple[Parameter, ...]:
    """Final norm, and the vocabulary head where it is not tied to the token table."""
    prefix = "transformer.ln_f" if model.is_gpt2 else "model.norm"
    norm = _norm(model, prefix, HEAD)
    if model.has_tied_embeddings:
        return norm
    return (*norm, Parameter("lm_head.weight", (model.vocabulary_size, model.hidden_size), HEAD, True))


def encoder_end_parameters(model: ModelShape) -> tuple[Parameter, ...]:
    """The norm behind an encoder, where there is one."""
    return _norm(model, "model.encoder_norm", ENCODER_END) if model.num_encoder_layers else ()


def decoder_begin_parameters(model: ModelShape) -> tuple[Parameter, ...]:
    """The table of the tokens that a decoder behind an encoder goes on with, where it is not the tied one."""
    if not model.num_encoder_layers or model.has_tied_embeddings:
        return ()
    shape = (model.vocabulary_size, model.hidden_size)
    return (Parameter("model.embed_targets.weight", shape, DECODER_BEGIN, False),)


def block_parameters(model: ModelShape, number: int) -> tuple[Parameter, ...]:
    """Every parameter of block `number`, in the order of a checkpoint's forward pass."""
    if model.is_gpt2:
        return _gpt2_block(model, number)
    prefix, layer, block = f"model.layers.{number}", str(number), model.layers[number]
    is_crossed = block.half == "decoder"
    linears = (
        *_attention_linears(model.hidden_size, block.attention, f"{prefix}.self_attn"),
        *(_cross_linears(model.hidden_size, block.attention, f"{prefix}.cross_attn") if is_crossed else ()),
        *_mlp_linears(model, block, f"{prefix}.mlp"),
    )
    weights = tuple(parameter for linear in linears for parameter in linear.parameters(layer))
    return (
        *weights,
        *(_experts(model, block.experts, f"{prefix}.mlp", layer) if block.experts else ()),
        *_attention_vectors(model, block.attention, f"{prefix}.self_attn", layer),
        *(_norm(model, f"{prefix}.cross_attention_layernorm", layer) if is_crossed else ()),
        *(norm for name in _norm_names(model) for norm in _norm(model, f"{prefix}.{name}", layer)),
    )


def all_parameters(model: ModelShape) -> tuple[Parameter, ...]:
    """Every parameter in checkpoint names: embedding, blocks, head (a tied head has no matrix)."""
    blocks = (p for number in range(model.num_layers) for p in block_parameters(model, number))
    between = (*encoder_end_parameters(model), *decoder_begin_parameters(model))
    return (*embedding_parameters(model), *blocks, *between, *head_parameters(model))


def num_embedding_parameters(model: ModelShape) -> int:
    """Parameters of the token table and of learned positions."""
    return sum(parameter.num_elements for parameter in embedding_parameters(model))


def num_block_parameters(model: ModelShape, number: int = 0) -> int:
    """Parameters of one block, all its experts included."""
    return sum(parameter.num_elements for parameter in block_parameters(model, number))


def num_parameters(model: ModelShape) -> int:
    """All parameters, a tied table counted once: what AutoModelForCausalLM holds."""
    head = 0 if model.has_tied_embeddings else model.num_head_parameters
    blocks = sum(count * num_block_parameters(model, first) for first, _, count in model.runs())
    between = (*encoder_end_parameters(model), *decoder_begin_parameters(model))
    ends = num_embedding_parameters(model) + sum(parameter.num_elements for parameter in between)
    return ends + blocks + model.num_norm_parameters + head


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


def _attention_linears(hidden: int, attention: Attention, prefix: str) -> tuple[_Linear, ...]:
    has_bias, latent = attention.has_qkv_bias, attention.latent
    output = _Linear(f"{prefix}.o_proj", attention.result_size, hidden, attention.has_output_bias)
    if latent is None:
        return (
            _Linear(f"{prefix}.q_proj", hidden, attention.query_size, has_bias),
            _Linear(f"{prefix}.k_proj", hidden, attention.key_size, has_bias),
            _Linear(f"{prefix}.v_proj", hidden, attention.value_size, has_bias),
            output,
        )
    rank, turned = latent.key_value_rank, latent.rotary_head_dim
    unturned_size = attention.num_heads * (attention.head_dim - turned)
    queries: tuple[_Linear, ...] = (_Linear(f"{prefix}.q_proj", hidden, attention.query_size),)
    if latent.query_rank:
        queries = (
            _Linear(f"{prefix}.q_a_proj", hidden, latent.query_rank, has_bias),
            _Linear(f"{prefix}.q_b_proj", latent.query_rank, attention.query_size),
        )
    return (
        *queries,
        _Linear(f"{prefix}.kv_a_proj_with_mqa", hidden, rank + turned, has_bias),
        _Linear(f"{prefix}.kv_b_proj", rank, unturned_size + attention.value_size),
        output,
    )


def _cross_linears(hidden: int, attention: Attention, prefix: str) -> tuple[_Linear, ...]:
    """Of attention to what an encoder has made: no biases."""
    return (
        _Linear(f"{prefix}.q_proj", hidden, attention.query_size),
        _Linear(f"{prefix}.k_proj", hidden, attention.key_size),
        _Linear(f"{prefix}.v_proj", hidden, attention.value_size),
        _Linear(f"{prefix}.o_proj", attention.result_size, hidden),
    )


def _mlp_linears(model: ModelShape, block: BlockSpec, prefix: str) -> tuple[_Linear, ...]:
    """The dense MLP, or in a block with experts the shared one."""
    hidden, has_bias = model.hidden_size, block.feed_forward.has_bias
    inner = block.feed_forward.intermediate_size
    gates: tuple[_Linear, ...] = ()
    if block.experts:
        inner = block.experts.shared_intermediate_size
        if inner == 0:
            return ()
        if model.has_shared_gate:
            gates = (_Linear(f"{prefix}.shared_expert_gate", hidden, 1),)
        prefix += ".shared_expert" if model.architecture == "qwen2_moe" else ".shared_experts"
    return (
        _Linear(f"{prefix}.gate_proj", hidden, inner, has_bias),
        _Linear(f"{prefix}.up_proj", hidden, inner, has_bias),
        _Linear(f"{prefix}.down_proj", inner, hidden, has_bias),
        *gates,
    )


def _experts(model: ModelShape, experts: Experts, prefix: str, layer: str) -> tuple[Parameter, ...]:
    """Router, and the experts' two matrices, gate and up in one; GPT-OSS stores them (inputs, outputs)."""
    num, hidden, inner = experts.num_experts, model.hidden_size, experts.intermediate_size
    if not model.has_expert_bias:
        return (
            *_router(
                experts.routing_in(model.architecture).cosine_rank, num, hidden, f"{prefix}.gate", layer
            ),
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


def _router(rank: int, num: int, hidden: int, name: str, layer: str) -> tuple[Parameter, ...]:
    """A matrix; or where logits are cosines embeddings of experts, what narrows tokens, and a temperature: names of ours."""
    weight = Parameter(f"{name}.weight", (num, rank or hidden), layer, True)
    if not rank:
        return (weight,)
    projection = Parameter(f"{name}.projection", (rank, hidden), layer, True)
    return (weight, projection, Parameter(f"{name}.temperature", (1,), layer, False))


def _attention_vectors(
    model: ModelShape, attention: Attention, prefix: str, layer: str
) -> tuple[Parameter, ...]:
    """Norms inside attention, and its sinks."""
    sizes: dict[str, int] = {}
    if attention.has_query_key_norm:
        sizes |= {"q_norm.weight": attention.head_dim, "k_norm.weight": attention.head_dim}
    if attention.latent and attention.latent.query_rank:
        sizes["q_a_layernorm.weight"] = attention.latent.query_rank
    if attention.latent:
        sizes["kv_a_layernorm.weight"] = attention.latent.key_value_rank
    if model.has_attention_sinks:
        sizes["sinks"] = attention.num_heads
    return tuple(Parameter(f"{prefix}.{name}", (size,), layer, False) for name, size in sizes.items())


def _norm_names(model: ModelShape) -> tuple[str, ...]:
    names = ("input_layernorm", "post_attention_layernorm")
    if model.has_post_norms:
        return (*names, "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return names


def _gpt2_block(model: ModelShape, number: int) -> tuple[Parameter, ...]:
    """GPT-2 stores its matrices as (inputs, outputs) and gives every one a bias."""
    prefix, layer, hidden, inner = (
        f"transformer.h.{number}",
        str(number),
        model.hidden_size,
        model.layers[number].feed_forward.intermediate_size,
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


def _norm(model: ModelShape, name: str, layer: str) -> tuple[Parameter, ...]:
    """RMSNorm has a weight, LayerNorm a weight and a bias."""
    weight = Parameter(f"{name}.weight", (model.hidden_size,), layer, False)
    bias = Parameter(f"{name}.bias", (model.hidden_size,), layer, False)
    return (weight, bias) if model.is_gpt2 else (weight,)
