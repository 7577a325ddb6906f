"""A model in Megatron-LM's options; what its blocks have no option for is refused."""

from __future__ import annotations

from itertools import groupby

from meshwright.interop.exported import Export
from meshwright.specs.model.model import ModelSpec

Options = list[tuple[str, str]]


def model_options(export: Export) -> Options:
    """Sizes, norms, positions and biases; experts and latent attention where the model has them."""
    model = export.plan.model
    _check(export)
    sizes = {
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden_size,
        "--ffn-hidden-size": model.intermediate_size,
        "--num-attention-heads": model.num_heads,
        "--max-position-embeddings": model.max_sequence_length,
        "--vocab-size": model.vocabulary_size,
        "--make-vocab-size-divisible-by": 1,  # the vocabulary of a plan is padded already
    }
    found = [(name, str(value)) for name, value in sizes.items()]
    found += _latent(model) if model.has_latent_attention else _attention(model)
    if model.num_experts:
        found += _experts(model)
    return found + _blocks(model)


def _check(export: Export) -> None:
    model, plan = export.plan.model, export.plan
    missing = {
        "a sliding window": bool(model.sliding_layers),
        "caps of scores or logits": model.attention_logit_cap > 0 or model.final_logit_cap > 0,
        "attention sinks and biases of experts": model.has_attention_sinks,
        f"{model.architecture}'s norms and scaled embedding": model.is_gemma,
        "a gate of the shared expert": model.has_shared_gate,
        "biases of some linear layers only": not model.is_gpt2
        and (model.has_output_bias or model.has_mlp_bias),
    }
    for what, is_there in missing.items():
        export.need(not is_there, f"model {model.name}", f"no option that is read back says {what}")
    export.need(
        model.vocabulary_size % plan.tp == 0,
        f"tp = {plan.tp}",
        f"it does not divide the vocabulary of {model.vocabulary_size}",
    )
    length = plan.workload.sequence_length
    export.need(
        length <= model.max_sequence_length,
        f"sequence_length = {length}",
        f"{model.name} has {model.max_sequence_length} positions",
    )


def _attention(model: ModelSpec) -> Options:
    found = [("--kv-channels", str(model.head_dim))]
    if model.num_kv_heads != model.num_heads:
        found += [("--group-query-attention", ""), ("--num-query-groups", str(model.num_kv_heads))]
    return found


def _latent(model: ModelSpec) -> Options:
    found = [
        ("--multi-latent-attention", ""),
        ("--qk-head-dim", str(model.head_dim - model.rotary_head_dim)),
        ("--qk-pos-emb-head-dim", str(model.rotary_head_dim)),
        ("--v-head-dim", str(model.value_head_dim)),
        ("--kv-lora-rank", str(model.key_value_rank)),
    ]
    return found + ([("--q-lora-rank", str(model.query_rank))] if model.query_rank else [])


def _experts(model: ModelSpec) -> Options:
    found = [
        ("--num-experts", str(model.num_experts)),
        ("--moe-router-topk", str(model.num_experts_per_token)),
        ("--moe-ffn-hidden-size", str(model.expert_intermediate_size)),
        ("--moe-grouped-gemm", ""),
    ]
    if model.shared_intermediate_size:
        found.append(("--moe-shared-expert-intermediate-size", str(model.shared_intermediate_size)))
    if model.dense_layers:
        flags = [int(block not in model.dense_layers) for block in range(model.num_layers)]
        runs = "+".join(f"[{flag}]*{len(list(run))}" for flag, run in groupby(flags))
        found.append(("--moe-layer-freq", f"'({runs})'"))
    return found


def _blocks(model: ModelSpec) -> Options:
    """Norms, activation, positions, biases, and whether the head has a table of its own."""
    found: Options = [("--norm-epsilon", str(model.norm_epsilon))]
    if model.is_gpt2:
        found += [("--normalization", "LayerNorm"), ("--position-embedding-type", "learned_absolute")]
    else:
        found += [("--normalization", "RMSNorm"), ("--position-embedding-type", "rope")]
        found += [
            ("--rotary-base", f"{model.rope_theta:.0f}"),
            ("--swiglu", ""),
            ("--disable-bias-linear", ""),
        ]
    flags = {
        "--add-qkv-bias": model.has_qkv_bias and not model.is_gpt2,
        "--qk-layernorm": model.has_query_key_norm,
        "--untie-embeddings-and-output-weights": not model.has_tied_embeddings,
    }
    return found + [(name, "") for name, is_there in flags.items() if is_there]
