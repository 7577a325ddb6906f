"""Writing a model's dimensions as a Hugging Face config.json, and which of its fields change what is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.specs.config.family import FULL, GREEDY, GROUP_GREEDY, SLIDING
from meshwright.specs.config.hugging_face import model_from_config
from meshwright.specs.config.reader import DECODER_FIELDS, GPT2_FIELDS
from meshwright.specs.config.rotary import rotary_config
from meshwright.specs.error import SpecError
from meshwright.specs.model.block import Attention, Experts, LatentRanks
from meshwright.specs.model.dimension import model_differences
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.rotary_scaling import ROTARY_SCALINGS

CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
# What readers of those families look at: the fields that `model_from_config` takes.
_READ = {
    *(
        "model_type",
        "tie_word_embeddings",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
    ),
    *("hidden_act", "rms_norm_eps"),
}
_READ_WINDOWS = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
_READ_EXPERTS = {"decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"}
_READ_DEEPSEEK = {
    *("attention_bias", "qk_nope_head_dim", "first_k_dense_replace", "moe_layer_freq", "n_shared_experts"),
    *("scoring_func", "topk_method", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor"),
}
_READ_BY_FAMILY = {
    "gpt2": {
        *("model_type", "tie_word_embeddings", "layer_norm_epsilon", "activation_function"),
        *("add_cross_attention", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
    },
    "llama": {*_READ, "attention_bias", "mlp_bias"},
    "mistral": {*_READ, "sliding_window"},
    "qwen2": {*_READ, *_READ_WINDOWS},
    "qwen3": {*_READ, *_READ_WINDOWS, "attention_bias"},
    "mixtral": {*_READ, "sliding_window"},
    "deepseek_v2": {*_READ, *_READ_DEEPSEEK, "mlp_bias"},
    "deepseek_v3": {*_READ, *_READ_DEEPSEEK, "rope_interleave"},
    "qwen2_moe": {*_READ, *_READ_WINDOWS, *_READ_EXPERTS, "qkv_bias"},
    "qwen3_moe": {*_READ, *_READ_WINDOWS, *_READ_EXPERTS, "attention_bias"},
    "gpt_oss": {
        *(*_READ, "attention_bias", "sliding_window", "layer_types", "swiglu_alpha", "swiglu_limit"),
        *("experts_per_token", "initial_context_length"),  # two that are there by other names, too
    },
    "gemma3_text": {  # served, not trained: see `executor.serving.gemma`
        *(
            *_READ,
            "attention_bias",
            "hidden_activation",
            "sliding_window",
            "sliding_window_pattern",
            "layer_types",
        ),
        *("_sliding_window_pattern", "query_pre_attn_scalar", "rope_local_base_freq", "cache_implementation"),
    },
}
# Fields that say something about files, training, generation or tokens, nothing about logits in evaluation.
_WITHOUT_EFFECT = {
    *("architectures", "_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype"),
    *(
        "use_cache",
        "initializer_range",
        "attention_dropout",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "n_ctx",
    ),
    *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id"),
    *("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "pretraining_tp"),
    *("reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation"),
    *("summary_proj_to_labels", "summary_first_dropout", "task_specific_params", "id2label", "label2id"),
    *(
        "num_labels",
        "problem_type",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "torchscript",
    ),
    *("gradient_checkpointing", "chunk_size_feed_forward", "is_decoder", "attn_implementation"),
    *("_attn_implementation", "_attn_implementation_autoset", "do_sample", "temperature", "top_k", "top_p"),
    *("typical_p", "repetition_penalty", "length_penalty", "max_length", "min_length", "num_beams"),
    *("num_beam_groups", "num_return_sequences", "diversity_penalty", "no_repeat_ngram_size"),
    *("encoder_no_repeat_ngram_size", "bad_words_ids", "early_stopping", "remove_invalid_values"),
    *("return_dict_in_generate", "output_scores", "exponential_decay_length_penalty", "suppress_tokens"),
    *("qk_head_dim", "num_nextn_predict_layers", "num_mtp_layers", "seq_aux", "aux_loss_alpha", "ep_size"),
    *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
    *("begin_suppress_tokens", "prefix", "finetuning_task", "tokenizer_class", "unsloth_version"),
}


def check_weights_config(config: Mapping[str, Any], architecture: str, where: str) -> None:
    """Refuse a file with a field that may change what the model computes and that is not read here. Fields that are null,
    false or empty are off.

    Raises:
        SpecError: the field, its value, and what to do.
    """
    if architecture not in _READ_BY_FAMILY:
        raise SpecError(
            f"{where}: weights of {architecture!r} models are not read", allowed=", ".join(_READ_BY_FAMILY)
        )
    dimensions = GPT2_FIELDS if architecture == "gpt2" else DECODER_FIELDS
    known = {name for names in dimensions.values() for name in names}
    known |= _READ_BY_FAMILY[architecture] | _WITHOUT_EFFECT
    for name, value in config.items():
        if name not in known and value:
            raise SpecError(
                f"{where}: field {name!r} is {value!r}, and what it changes in a {architecture} model is not known here",
                allowed="the fields of transformers' own configuration of that family",
                next=f"remove {name!r} from a copy of the file if the model computes the same without it",
            )


def config_from_model(model: ModelSpec) -> dict[str, Any]:
    """The fields of a config.json that transformers 4 and 5 read as this model.

    Raises:
        SpecError: the family's configuration cannot say what this model has.
    """
    if model.architecture not in CLASSES:
        raise SpecError(
            f"{model.name}: {model.architecture} models are not written", allowed=", ".join(CLASSES)
        )
    scaling = model.rotary_scaling
    if scaling and scaling.kind not in ROTARY_SCALINGS:  # a model keeps its name, not its numbers
        raise SpecError(
            f"{model.name}: {scaling.kind} rotary scaling is not written",
            allowed=", ".join(ROTARY_SCALINGS),
        )
    config = _gpt2_config(model) if model.is_gpt2 else _decoder_config(model)
    config = {"architectures": [CLASSES[model.architecture]], "model_type": model.architecture, **config}
    for name, (lost, said) in model_differences(model, model_from_config(config, name=model.name)).items():
        raise SpecError(
            f"{model.name}: a {model.architecture} configuration cannot say {name} = {lost!r}",
            allowed=f"{name} = {said!r}, or another architecture",
        )
    return config


def _gpt2_config(model: ModelSpec) -> dict[str, Any]:
    return {
        "n_embd": model.hidden_size,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_inner": model.intermediate_size,
        "n_positions": model.max_sequence_length,
        "vocab_size": model.vocabulary_size,
        "layer_norm_epsilon": model.norm_epsilon,
        "activation_function": (model.mlp and model.mlp.activation) or "gelu_new",
        "tie_word_embeddings": model.has_tied_embeddings,
    }


def _decoder_config(model: ModelSpec) -> dict[str, Any]:
    config: dict[str, Any] = {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.max_sequence_length,
        "vocab_size": model.vocabulary_size,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.has_tied_embeddings,
    }
    if model.rotary_scaling is not None:
        config["rope_scaling"] = rotary_config(model.rotary_scaling)
    if model.architecture in ("llama", "qwen3", "qwen3_moe"):
        config["attention_bias"] = model.attention.has_qkv_bias
    if model.architecture == "llama":
        config["mlp_bias"] = bool(model.mlp and model.mlp.has_bias)
    if model.architecture == "gpt_oss":
        config |= _gpt_oss_config(model)
    if model.architecture in ("mistral", "mixtral"):
        config["sliding_window"] = _windows(model)[0] or None
    if model.architecture.startswith("qwen"):
        config |= _qwen_window(model)
    if model.attention.latent and model.experts:
        config |= _deepseek_config(model, model.attention, model.attention.latent, model.experts)
    elif model.experts:
        config |= _expert_config(model, model.experts)
    return config


def _expert_config(model: ModelSpec, experts: Experts) -> dict[str, Any]:
    """Mixtral's experts are in all blocks, and their gates always sum to one."""
    config: dict[str, Any] = {"num_experts_per_tok": experts.num_experts_per_token}
    if model.architecture in ("mixtral", "gpt_oss"):
        return {**config, "num_local_experts": experts.num_experts}
    if model.architecture == "qwen2_moe":
        config["qkv_bias"] = model.attention.has_qkv_bias
        config["shared_expert_intermediate_size"] = experts.shared_intermediate_size
    return {
        **config,
        "num_experts": experts.num_experts,
        "moe_intermediate_size": experts.intermediate_size,
        "norm_topk_prob": experts.routing_in(model.architecture).has_unit_sum,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, block in enumerate(model.layers) if not block.experts],
    }


def _deepseek_config(
    model: ModelSpec, attention: Attention, latent: LatentRanks, experts: Experts
) -> dict[str, Any]:
    routing = experts.routing_in(model.architecture)
    config: dict[str, Any] = {
        "attention_bias": attention.has_qkv_bias,
        "head_dim": latent.rotary_head_dim,  # what turns, in transformers
        "qk_nope_head_dim": attention.head_dim - latent.rotary_head_dim,
        "qk_rope_head_dim": latent.rotary_head_dim,
        "v_head_dim": latent.value_head_dim,
        "kv_lora_rank": latent.key_value_rank,
        "q_lora_rank": latent.query_rank or None,
        "n_routed_experts": experts.num_experts,
        "n_shared_experts": experts.shared_intermediate_size // experts.intermediate_size,
        "num_experts_per_tok": experts.num_experts_per_token,
        "moe_intermediate_size": experts.intermediate_size,
        "first_k_dense_replace": sum(not block.experts for block in model.layers),
        "routed_scaling_factor": routing.gate_scale,
        "norm_topk_prob": routing.has_unit_sum,
    }
    groups = {"n_group": routing.num_groups, "topk_group": routing.num_groups_per_token}
    if model.architecture == "deepseek_v3":
        return {**config, **groups}
    config["topk_method"] = GREEDY if routing.num_groups == 1 else GROUP_GREEDY
    return {**config, **groups, "mlp_bias": bool(model.mlp and model.mlp.has_bias)}


def _gpt_oss_config(model: ModelSpec) -> dict[str, Any]:
    """Where a file says nothing of rotary positions, the family's are scaled."""
    windows = _windows(model)
    config: dict[str, Any] = {
        "attention_bias": model.attention.has_qkv_bias,
        "sliding_window": max(windows) or None,
        "layer_types": [SLIDING if window else FULL for window in windows],
    }
    if model.rotary_scaling is None:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": model.rope_theta}
    return config


def _qwen_window(model: ModelSpec) -> dict[str, Any]:
    windows = _windows(model)
    if not any(windows):
        return {"use_sliding_window": False, "sliding_window": None}
    return {
        "use_sliding_window": True,
        "sliding_window": max(windows),
        "layer_types": [SLIDING if window else FULL for window in windows],
    }


def _windows(model: ModelSpec) -> list[int]:
    """Of every layer its window; 0: none."""
    return [block.attention.window for block in model.layers]
