"""Tensors that a block keeps for its backward, one by one: what the executor's decoder keeps, and what other software does.

Counted as automatic differentiation keeps them; a tensor that two operations keep counts once. Experts keep what
balanced routing gives them; a token has `num_experts_per_token` rows there. With scores kept and dropout the counts are
those of Korthikanti et al. (arXiv 2205.05198, equations 1 to 6), norm statistics added, which they leave out.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.adaptation import trains_table
from meshwright.specs.model.block import Attention, Experts, LatentRanks
from meshwright.specs.model.model import ModelSpec
from meshwright.stage.operator.expert import INDEX_BYTES

TOKEN_BYTES = 8  # token numbers are int64
MASK_BYTES = 1  # a dropout mask has one byte a number
SUM_BYTES = 4  # flash attention keeps the logarithm of each row's sum in float32 (Dao, arXiv 2307.08691)
FLOAT8_BYTES = 1
# What column-parallel products read: with sequence parallelism it is gathered for them.
GATHERED = ("first norm's output", "cross norm's output", "second norm's output", "norm's output")

# What norms give and keep that stand behind the gather, where parts are parallel branches.
OF_BRANCHES = ("first norm's output", "second norm's output")

# Who divides a tensor: "rows" sequence parallelism; "inner", "heads", "keys" tensor parallelism (keys: at least one
# head a device); "experts" both who shares an expert's matrices and who has other rows, which together are those of tp;
# "routed" who has other rows for experts; "whole" nobody.
Division = Literal["rows", "inner", "heads", "keys", "experts", "routed", "whole"]


# The module whose weight gradient reads a tensor, where nothing else does.
INPUT_OF = {
    "first norm's output": (
        *("qkv", "latent_attention.query", "latent_attention.narrow_query"),
        "latent_attention.narrow_key_value",
    ),
    "key-value latent norm's output": ("latent_attention.widen_key_value",),
    "query latent norm's output": ("latent_attention.widen_query",),
    "attention output": ("attention_output",),
    "second norm's output": ("gate_up", "mixture.router", "mixture.shared.gate_up", "mixture.shared_gate"),
    "activation output": ("down",),
    "dispatched rows": ("mixture.expert_gate_up",),
    "experts' activation output": ("mixture.expert_down",),
    "shared activation output": ("mixture.shared.down",),
}


class SavedTensor(NamedTuple):
    """One tensor kept from forward to backward: numbers per token, bytes of one, and who reads it.

    `division`: which degree divides it. `is_core`: of attention's core, which selective recompute makes again.
    `is_elementwise`: made by an elementwise operation that fused kernels make again in their backward.
    `is_product_input`: read by a matrix product's weight gradient only, so that float8 products keep it in float8.
    """

    name: str
    elements_per_token: int
    element_bytes: int
    reader: str
    division: Division = "rows"
    is_core: bool = False
    is_elementwise: bool = False
    is_product_input: bool = False

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token, undivided."""
        return self.elements_per_token * self.element_bytes


class SavingContext(NamedTuple):
    """What decides which tensors are kept, and how much of each on one device.

    Attributes:
        dtype: format of activations.
        recompute: none, selective (attention's core), selective_op (all but attention's result and every second
            product's, which are kept), full (all but the block's input).
        tp, sequence_parallel: degrees as in a plan.
        num_row_parts: parts into which tp devices divide the rows of their tokens that go to experts; 1: each has all of
            them, and its part of every expert's matrices.
        attention: "recomputed" (the executor's: nothing but its inputs), "flash" (a number for each row, too),
            "unfused" (scores, and the probabilities behind dropout).
        is_fused: elementwise kernels keep their inputs only: no SiLU of the gate beside gate and up (Megatron-LM and
            Transformer Engine by hand, torch.compile by itself). Norms keep input and output either way.
        has_dropout: masks behind attention's probabilities, its projection and the MLP. Recipes of today have none.
        keeps_float8: products keep their inputs in float8 (Transformer Engine). Others cast again in the backward.
        keeps_gathered: with sequence parallelism products keep what was gathered for them; else a device's own part is
            kept, and gathered again.
    """

    dtype: str = "float32"
    recompute: str = "none"
    tp: int = 1
    num_row_parts: int = 1
    sequence_parallel: bool = False
    attention: Literal["recomputed", "flash", "unfused"] = "recomputed"
    is_fused: bool = False
    has_dropout: bool = False
    keeps_float8: bool = False
    keeps_gathered: bool = False


def tensor_bytes(model: ModelSpec, tensor: SavedTensor, context: SavingContext) -> float:
    """Bytes per token of a tensor on one device."""
    divisors: dict[str, int] = {
        "rows": context.tp if context.sequence_parallel else 1,
        "inner": context.tp,
        "heads": context.tp,
        "keys": context.tp,
        "experts": context.tp,
        "routed": context.num_row_parts,
        "whole": 1,
    }
    is_gathered = context.keeps_gathered and tensor.name in GATHERED
    is_gathered |= model.has_parallel_branches and tensor.name in OF_BRANCHES
    divisor = 1 if is_gathered else divisors[tensor.division]
    is_small = context.keeps_float8 and tensor.is_product_input
    each = min(FLOAT8_BYTES, tensor.element_bytes) if is_small else tensor.element_bytes
    return tensor.elements_per_token * each / divisor


def context_saved(
    model: ModelSpec, context: SavingContext, block: int = 0, sequence_length: int = 0
) -> tuple[SavedTensor, ...]:
    """What block number `block` keeps in the software that `context` describes; see `tensor_bytes` for one device."""
    b, hidden = dtype_bytes(context.dtype), model.hidden_size
    if context.recompute == "full":
        return (SavedTensor("input", hidden, b, "recompute"),)
    if context.recompute == "selective_op":
        return _kept_results(model, context, block)
    attention = model.layers[block].attention
    kept = [*block_saved(model, context.dtype, block), *_core_saved(attention, context, sequence_length)]
    if context.attention != "recomputed" and not any(tensor.name == "attention output" for tensor in kept):
        kept.append(SavedTensor("attention output", attention.result_size, b, "attention", "heads"))
    if context.has_dropout:
        kept.append(SavedTensor("masks of attention and MLP", 2 * hidden, MASK_BYTES, "dropout"))
    return tuple(
        tensor
        for tensor in kept
        if not (context.is_fused and tensor.is_elementwise)
        and not (context.recompute == "selective" and tensor.is_core)
    )


def _core_saved(attention: Attention, context: SavingContext, sequence_length: int) -> list[SavedTensor]:
    """What attention keeps between its two products: a number for each row, or a score for each pair."""
    b, heads = dtype_bytes(context.dtype), attention.num_heads
    if context.attention == "recomputed":
        return []
    if context.attention == "flash":
        return [SavedTensor("logarithms of sums", heads, SUM_BYTES, "attention", "heads")]
    pairs = heads * sequence_length
    kept = [SavedTensor("probabilities", pairs, b, "softmax", "heads", is_core=True)]
    if context.has_dropout:
        kept.append(SavedTensor("mask of probabilities", pairs, MASK_BYTES, "dropout", "heads", is_core=True))
        kept.append(SavedTensor("probabilities behind dropout", pairs, b, "values", "heads", is_core=True))
    return kept


def _kept_results(model: ModelSpec, context: SavingContext, block: int) -> tuple[SavedTensor, ...]:
    """With recompute by operation: the input, attention's result and the first, third, ... product's.

    This is torchtitan's policy ("op"): results of attention and of scattering sums are saved, those of plain products
    every second time, beginning with the first. Grouped products of experts are no plain products.
    """
    b, hidden, attention = dtype_bytes(context.dtype), model.hidden_size, model.layers[block].attention
    kept = [
        SavedTensor("input", hidden, b, "recompute"),
        SavedTensor("attention output", attention.result_size, b, "output projection", "heads"),
        SavedTensor("logarithms of sums", attention.num_heads, SUM_BYTES, "attention", "heads"),
    ]
    for name, width, division in block_products(model, block)[::2]:
        kept.append(SavedTensor(f"result of {name}", width, b, "the operation behind it", division))
    if context.sequence_parallel:
        kept.append(SavedTensor("results of scattering sums", 2 * hidden, b, "residuals"))
    return tuple(kept)


def block_products(model: ModelSpec, block: int) -> tuple[tuple[str, int, Division], ...]:
    """Plain products of a block in the order of its forward, with the width of what they give and who divides that."""
    hidden, attention, experts = model.hidden_size, model.layers[block].attention, model.layers[block].experts
    found: list[tuple[str, int, Division]]
    if latent := attention.latent:
        unturned = attention.num_heads * (attention.head_dim - latent.rotary_head_dim)
        found = [("narrowed query", latent.query_rank, "whole")] if latent.query_rank else []
        found += [
            ("query", attention.query_size, "heads"),
            ("narrowed keys and values", latent.key_value_rank + latent.rotary_head_dim, "whole"),
            ("keys and values", unturned + attention.value_size, "heads"),
        ]
    elif model.is_gpt2:
        found = [("query, key and value", attention.qkv_size, "heads")]
    else:
        found = [
            ("query", attention.query_size, "heads"),
            ("key", attention.key_size, "keys"),
            ("value", attention.value_size, "keys"),
        ]
    found.append(("output projection", hidden, "rows"))
    inner = model.layers[block].feed_forward.intermediate_size
    if experts:
        rank = experts.routing_in(model.architecture).cosine_rank
        found += [("router projection", rank, "rows")] if rank else []
        found.append(("router", experts.num_experts, "rows"))
        inner = experts.shared_intermediate_size
        if inner == 0:
            return tuple(found)
    if model.has_gated_mlp:
        return (*found, ("gate", inner, "inner"), ("up", inner, "inner"), ("down", hidden, "rows"))
    return (*found, ("up", inner, "inner"), ("down", hidden, "rows"))


def block_saved(model: ModelSpec, dtype: str = "float32", block: int = 0) -> tuple[SavedTensor, ...]:
    """What block number `block` of the executor's decoder keeps for its backward, nothing recomputed.

    The block's input belongs to this block; its output is the next layer's input. Attention keeps q, k and v
    by heads, turned and scaled, so the projection's own output goes, except where a norm of q and k needs it.
    Attention's probabilities are computed again in the backward.
    """
    b, hidden, attention = dtype_bytes(dtype), model.hidden_size, model.layers[block].attention
    num_statistics = (2 if model.is_gpt2 else 1) * (4 if model.has_post_norms else 2)
    kept = [
        SavedTensor("input", hidden, b, "first norm"),
        SavedTensor("norm statistics", num_statistics, b, "the block's norms"),
        SavedTensor("first norm's output", hidden, b, "qkv weight gradient", is_product_input=True),
        SavedTensor("queries by heads", attention.query_size, b, "attention", "heads"),
        SavedTensor(
            "keys and values by heads", attention.key_size + attention.value_size, b, "attention", "keys"
        ),
        SavedTensor(
            "attention output", attention.result_size, b, "output weight gradient, attention", "heads"
        ),
        SavedTensor("middle residual", hidden, b, "second norm"),
        SavedTensor("second norm's output", hidden, b, "up weight gradient", is_product_input=True),
    ]
    if model.has_parallel_branches:
        # all parts read one stream, which the first block keeps (behind a boundary it is what was received)
        ours = ("middle residual",) if block == 0 else ("middle residual", "input")
        kept = [tensor for tensor in kept if tensor.name not in ours]
    if attention.has_query_key_norm:
        num_heads = attention.num_heads + attention.num_kv_heads
        kept.append(SavedTensor("qkv", attention.qkv_size, b, "norm of q and k", "heads"))
        kept.append(SavedTensor("q and k statistics", num_heads, b, "same", "heads"))
    if attention.latent:
        kept += _latent_saved(attention.latent, b)
    if model.layers[block].half == "decoder":
        kept += _crossed_saved(model, attention, b)
    if model.has_post_norms:
        kept.append(SavedTensor("output projection's output", hidden, b, "norm after attention"))
        kept.append(SavedTensor("MLP's output", hidden, b, "norm after the MLP"))
    if experts := model.layers[block].experts:
        kept += _expert_saved(model, experts, b)
    else:
        kept += _mlp_saved(model, model.layers[block].feed_forward.intermediate_size, b)
    return tuple(_adapted_saved(model, kept, block, b) if model.is_adapted else kept)


def encoded_saved(model: ModelSpec, dtype: str = "float32") -> SavedTensor:
    """What an encoder has made, which the products of all blocks of a decoder's stage read: one tensor, whole."""
    return SavedTensor(
        "encoded", model.hidden_size, dtype_bytes(dtype), "cross key_value weight gradients", "whole"
    )


def encoder_end_saved(model: ModelSpec, dtype: str = "float32") -> tuple[SavedTensor, ...]:
    """What the norm behind an encoder keeps."""
    b = dtype_bytes(dtype)
    return (
        SavedTensor("input", model.hidden_size, b, "encoder norm"),
        SavedTensor("norm statistics", 1, b, "encoder norm"),
    )


def _crossed_saved(model: ModelSpec, attention: Attention, b: int) -> list[SavedTensor]:
    """Of cross attention and its norm."""
    hidden, keys = model.hidden_size, attention.key_size + attention.value_size
    return [
        SavedTensor("cross residual", hidden, b, "cross norm"),
        SavedTensor("cross norm statistics", 1, b, "cross norm"),
        SavedTensor("cross norm's output", hidden, b, "cross query weight gradient", is_product_input=True),
        SavedTensor("cross queries", attention.query_size, b, "cross attention", "heads"),
        SavedTensor("cross keys and values", keys, b, "cross attention", "keys"),
        SavedTensor(
            "cross attention output", attention.result_size, b, "cross output weight gradient", "heads"
        ),
    ]


def _adapted_saved(model: ModelSpec, kept: list[SavedTensor], block: int, b: int) -> list[SavedTensor]:
    """Without the inputs of matrices that neither train nor have an addition; with what the additions keep."""
    trained = model.block_kind(block).trained or ()
    read = {*model.lora_targets, *(name.rpartition(".")[0] for name in trained)}
    used = [each for each in kept if each.name not in INPUT_OF or read.intersection(INPUT_OF[each.name])]
    return used + [
        SavedTensor(f"{target} narrowed", model.lora_rank, b, "weight gradient of what widens it", "whole")
        for target in model.lora_targets
    ]


def _mlp_saved(
    model: ModelSpec, inner: int, b: int, prefix: str = "", division: Division = "inner"
) -> list[SavedTensor]:
    """Of an MLP `inner` wide; its input is the second norm's output."""
    name = f"{prefix}activation output"
    kept = [SavedTensor(name, inner, b, "down weight gradient", division, is_product_input=True)]
    if model.has_gated_mlp:
        kept.append(SavedTensor(f"{prefix}gate and up", 2 * inner, b, "activation", division))
        name = f"{prefix}{'GELU' if model.is_gemma else 'SiLU'} of gate"
        kept.append(SavedTensor(name, inner, b, "activation's product", division, is_elementwise=True))
    else:
        kept.append(SavedTensor(f"{prefix}up", inner, b, "GELU", division))
    return kept


def _latent_saved(latent: LatentRanks, b: int) -> list[SavedTensor]:
    """Latents before and after their norms, and the statistics of these."""
    rank, query_rank = latent.key_value_rank, latent.query_rank
    kept = [
        SavedTensor("key-value latent", rank + latent.rotary_head_dim, b, "its norm"),
        SavedTensor("key-value latent norm's output", rank, b, "weight gradient of what it is widened by"),
        SavedTensor("latent statistics", 2 if query_rank else 1, b, "norms of latents"),
    ]
    if query_rank:
        kept.append(SavedTensor("query latent", query_rank, b, "its norm"))
        kept.append(SavedTensor("query latent norm's output", query_rank, b, "same as of keys and values"))
    return kept


def _cosine_saved(rank: int, num_experts: int, b: int) -> list[SavedTensor]:
    """Of routers whose logits are cosines: narrowed tokens of length one, their lengths, and the logits."""
    return [SavedTensor("router's narrowed tokens", rank + 1 + num_experts, b, "cosines")] if rank else []


def _expert_saved(model: ModelSpec, experts: Experts, b: int) -> list[SavedTensor]:
    """Of routing, of the experts a token goes to, and of the shared ones."""
    hidden, chosen, inner = model.hidden_size, experts.num_experts_per_token, experts.intermediate_size
    kept = [
        SavedTensor("router probabilities", experts.num_experts, b, "routing"),
        *_cosine_saved(experts.routing_in(model.architecture).cosine_rank, experts.num_experts, b),
        SavedTensor("expert weights", chosen, b, "combine"),
        SavedTensor("expert numbers", chosen, INDEX_BYTES, "dispatch and combine"),
        SavedTensor("dispatched rows", chosen * hidden, b, "gate_up gradient of experts", "routed", is_product_input=True),
        SavedTensor("experts' output", chosen * hidden, b, "gradient of expert weights", "routed"),
        *_mlp_saved(model, chosen * inner, b, "experts' ", "experts"),
    ]  # fmt: skip
    if experts.shared_intermediate_size:
        kept += _mlp_saved(model, experts.shared_intermediate_size, b, "shared ")
    if model.has_shared_gate:
        kept.append(SavedTensor("shared output and its gate", hidden + 1, b, "gating"))
    return kept


def head_saved(model: ModelSpec, dtype: str = "float32") -> tuple[SavedTensor, ...]:
    """What final norm, vocabulary head and loss keep: the logits' log-probabilities are the large one."""
    b = dtype_bytes(dtype)
    output = SavedTensor("norm's output", model.hidden_size, b, "vocabulary weight gradient")
    capped = (
        (SavedTensor("tanh of logits", model.vocabulary_size, b, "cap"),) if model.final_logit_cap else ()
    )
    return (
        *capped,
        SavedTensor("input", model.hidden_size, b, "final norm"),
        SavedTensor("norm statistics", 2 if model.is_gpt2 else 1, b, "final norm"),
        *((output,) if trains_table(model, of_head=True) else ()),
        SavedTensor("log-probabilities", model.vocabulary_size, b, "loss"),
        SavedTensor("targets", 1, TOKEN_BYTES, "loss", "whole"),
    )


def embedding_saved(model: ModelSpec) -> tuple[SavedTensor, ...]:
    """What the embedding keeps: the token numbers, and with learned positions theirs (once for a microbatch,
    counted as if for each of its sequences). Its output is the first block's input.
    """
    tokens = SavedTensor("tokens", 1, TOKEN_BYTES, "scatter into the table", "whole")
    positions = SavedTensor("positions", 1, TOKEN_BYTES, "scatter into the table of positions", "whole")
    return (tokens, positions) if model.has_learned_positions else (tokens,)
