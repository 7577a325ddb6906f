"""The model that Megatron-LM's options describe, as a ModelSpec."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from meshwright.interop.option_set import OptionSet
from meshwright.specs.config.source import load_model, model_presets
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.model.model import ModelSpec

# Defaults of `megatron/training/arguments.py` and `transformer_config.py`.
FFN_RATIO = 4  # ffn-hidden-size left out is 4 hidden sizes, and 2/3 of it with a gate, in steps of 64
GATED_SHARE, GATED_STEP = 2 / 3, 64
VOCABULARY_STEP = 128  # make-vocab-size-divisible-by, times the tensor-parallel degree
MOE_TOPK = 2
ROTARY_BASE, NORM_EPSILON = 10000.0, 1e-5
QUERY_HEAD_DIM, ROTARY_HEAD_DIM, VALUE_HEAD_DIM, KEY_VALUE_RANK = 128, 64, 128, 512  # of latent attention
TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}  # tokens, by --tokenizer-type
_FREQUENCY = re.compile(r"\[([01](?:\s*,\s*[01])*)\](?:\s*\*\s*(\d+))?")


def megatron_model(options: OptionSet, tp: int) -> ModelSpec | None:
    """The model, or None where the options give no sizes. Raises PlanError where some are missing."""
    if "num-layers" not in options and "hidden-size" not in options:
        return None
    draft = options.draft
    layers = _required(options, "num-layers", "num_layers = {value}")
    hidden = _required(options, "hidden-size", "hidden_size = {value}")
    heads = _required(options, "num-attention-heads", "num_heads = {value}")
    is_gated = options.flags(("swiglu", "quick-geglu"), "gated MLP (three matrices)")
    intermediate = options.integer("ffn-hidden-size", "intermediate_size = {value}")
    if intermediate is None:
        whole = FFN_RATIO * hidden
        intermediate = int(whole * GATED_SHARE / GATED_STEP) * GATED_STEP if is_gated else whole
    fields: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": _kv_heads(options, heads),
        "head_dim": options.integer("kv-channels", "head_dim = {value}", hidden // heads),
        "intermediate_size": intermediate,
        "vocabulary_size": _vocabulary(options, tp),
        "max_sequence_length": options.integer("max-position-embeddings", "max_sequence_length = {value}")
        or draft.sequence_length
        or 1,
        "has_tied_embeddings": not options.flag(
            "untie-embeddings-and-output-weights", "has_tied_embeddings = false"
        ),
        "has_query_key_norm": options.flag("qk-layernorm", "has_query_key_norm = true"),
    }
    # constants: they change no step, and an export that lost them would train another model
    fields["rope_theta"] = options.number("rotary-base", "rope_theta = {value}", ROTARY_BASE)
    for name in ("norm-epsilon", "layernorm-epsilon"):
        if name in options:
            fields["norm_epsilon"] = options.number(name, "norm_epsilon = {value}", NORM_EPSILON)
    has_bias = not options.flag("disable-bias-linear", "no biases")
    fields |= _attention(options, heads)
    fields |= _experts(options, layers, intermediate)
    fields |= _family(options, fields, is_gated, has_bias)
    fields["has_qkv_bias"] |= options.flag("add-qkv-bias", "has_qkv_bias = true")
    try:
        return _named(ModelSpec.of_dimensions(name="model", source=draft.where, **fields))
    except SpecError as error:
        raise PlanError(f"{draft.where}: {error.given}", allowed=error.allowed, next=error.next) from None


def _required(options: OptionSet, name: str, meaning: str) -> int:
    found = options.integer(name, meaning)
    if found is None:
        raise PlanError(f"{options.draft.where} has no --{name}", next=f"add --{name}, or give --model")
    return found


def _kv_heads(options: OptionSet, heads: int) -> int:
    """--num-query-groups counts only with --group-query-attention."""
    if not options.flag("group-query-attention", "keys and values are shared by groups of heads"):
        return heads
    return options.count("num-query-groups", "num_kv_heads = {value}", 1)


def _vocabulary(options: OptionSet, tp: int) -> int:
    """Rows of the token table: padded as Megatron does. Raises PlanError where only a tokenizer's files would say."""
    padded = options.integer("padded-vocab-size", "vocabulary_size = {value}")
    if padded is not None:
        return padded
    step = options.count(
        "make-vocab-size-divisible-by", "the vocabulary is padded to {value} x tp", VOCABULARY_STEP
    )
    size = options.integer("vocab-size", "{value} tokens, padded")
    size = options.draft.given.vocabulary_size or size or _tokens_of_tokenizer(options)
    if size is None:
        raise options.draft.missing("how many tokens the vocabulary has", "--vocab", "--vocab-size")
    rows = -(-size // (step * tp)) * step * tp  # of whole numbers: a quotient may be more than a float holds
    if rows != size:
        options.draft.assumptions.append(f"the vocabulary of {size} tokens is padded to {rows}")
    return rows


def _tokens_of_tokenizer(options: OptionSet) -> int | None:
    """The vocabulary that a tokenizer's name tells."""
    kind = " ".join(options.values.get("tokenizer-type", []))
    if kind in TOKENIZERS:
        return TOKENIZERS[kind]
    name = " ".join(options.values.get("tokenizer-model", [])).rsplit("/", 1)[-1].lower()
    near = next((preset for preset in model_presets() if name and name == preset.lower()), None)
    return None if near is None else load_model(near).vocabulary_size


def _attention(options: OptionSet, heads: int) -> dict[str, Any]:
    """Latent attention's ranks and widths; nothing for an ordinary one."""
    if not options.flag("multi-latent-attention", "latent attention (MLA)"):
        return {}
    plain = options.count("qk-head-dim", "unturned part of head_dim = {value}", QUERY_HEAD_DIM)
    turned = options.count("qk-pos-emb-head-dim", "rotary_head_dim = {value}", ROTARY_HEAD_DIM)
    return {
        "num_kv_heads": heads,
        "head_dim": plain + turned,
        "rotary_head_dim": turned,
        "value_head_dim": options.count("v-head-dim", "value_head_dim = {value}", VALUE_HEAD_DIM),
        "key_value_rank": options.count("kv-lora-rank", "key_value_rank = {value}", KEY_VALUE_RANK),
        "query_rank": options.count("q-lora-rank", "query_rank = {value}", 0),
    }


def _experts(options: OptionSet, layers: int, intermediate: int) -> dict[str, Any]:
    num_experts = options.count("num-experts", "num_experts = {value}", 0)
    if not num_experts:
        return {}
    inner = options.count("moe-ffn-hidden-size", "expert_intermediate_size = {value}", intermediate)
    shared = options.count("moe-shared-expert-intermediate-size", "shared_intermediate_size = {value}", 0)
    return {
        "num_experts": num_experts,
        "num_experts_per_token": options.count(
            "moe-router-topk", "num_experts_per_token = {value}", MOE_TOPK
        ),
        "expert_intermediate_size": inner,
        "shared_intermediate_size": shared,
        "dense_layers": _dense_layers(options, layers),
    }


def _dense_layers(options: OptionSet, layers: int) -> tuple[int, ...]:
    """--moe-layer-freq: every n-th block has experts, or a list such as ([0]*3+[1]*58), 1 for experts."""
    text = options.text("moe-layer-freq", "blocks with experts: {value}").strip("'\"")
    if not text:
        return ()
    if text.isdigit() and int(text):
        return tuple(block for block in range(layers) if block % int(text))
    flags = [
        digit
        for digits, times in _FREQUENCY.findall(text)
        for digit in re.findall("[01]", digits) * int(times or 1)
    ]
    if len(flags) != layers:
        raise PlanError(
            f"{options.draft.where}: --moe-layer-freq {text!r} speaks of {len(flags)} blocks, the model has {layers}",
            allowed="a number, or a list of 0 and 1 such as ([0]*3+[1]*58)",
        )
    return tuple(block for block, flag in enumerate(flags) if flag == "0")


def _family(options: OptionSet, fields: dict[str, Any], is_gated: bool, has_bias: bool) -> dict[str, Any]:
    """Architecture, biases and, where no family has such an MLP, the nearest one, which is then stated."""
    norm = options.text("normalization", "norm: {value}", "LayerNorm")
    positions = options.text("position-embedding-type", "positions: {value}", "learned_absolute")
    for flag in ("squared-relu", "openai-gelu"):
        options.flag(flag, "activation of an MLP of two matrices")
    is_plain = not fields.get("num_experts") and not fields.get("key_value_rank")
    if is_plain and not is_gated and fields["num_kv_heads"] == fields["num_heads"]:
        if positions != "learned_absolute" or norm != "LayerNorm":
            options.draft.assumptions.append(f"norm {norm} and positions {positions} are counted as GPT-2's")
        return {"architecture": "gpt2", "has_qkv_bias": True, "has_output_bias": True, "has_mlp_bias": True}
    found: dict[str, Any] = {
        "architecture": _architecture(fields),
        "has_qkv_bias": has_bias,
        "has_output_bias": has_bias,
    }
    if not is_gated:
        for name in ("intermediate_size", "expert_intermediate_size"):
            if fields.get(name):
                found[name] = round(fields[name] * GATED_SHARE)
        options.draft.assumptions.append(
            "an MLP of two matrices is counted as a gated one with as many parameters (two thirds as wide)"
        )
    return found


def _architecture(fields: dict[str, Any]) -> str:
    """The family whose blocks have these parts."""
    if fields.get("key_value_rank"):
        return "deepseek_v3" if fields.get("num_experts") else "deepseek_v2"
    if not fields.get("num_experts"):
        return "qwen3" if fields["has_query_key_norm"] else "llama"
    if fields["shared_intermediate_size"]:
        return "qwen2_moe"
    return "qwen3_moe" if fields["has_query_key_norm"] else "mixtral"


def _named(model: ModelSpec) -> ModelSpec:
    """The same model with a name for people: its parameters in billions."""
    size = f"{model.num_parameters / 1e9:.3g}B"
    return replace(model, name=f"megatron-{size}")
