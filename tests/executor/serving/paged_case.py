"""Tiny models of transformers with random weights, of every family that is served; what tests of runners share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.executor.serving.scattered_blocks import VOCABULARY
from torch import Tensor

transformers = pytest.importorskip("transformers")

BLOCK_TOKENS, NUM_BLOCKS = 4, 96
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
DEEPSEEK = {
    **SIZES, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 12, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
LATENT_YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 0.5,
}  # fmt: skip
CORRECTION = "e_score_correction_bias"  # no parameter, and zero at first
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", **GPT2},
    "llama": {"model_type": "llama", **SIZES, "rope_scaling": LLAMA3, "rope_theta": 500.0},
    "llama tied": {"model_type": "llama", **SIZES, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": 7, "head_dim": 16},
    "qwen2": {
        "model_type": "qwen2", **SIZES, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 16, "tie_word_embeddings": True},
    "gemma3": {
        "model_type": "gemma3_text", **SIZES, "num_hidden_layers": 3, "head_dim": 16, "sliding_window": 7,
        "sliding_window_pattern": 3, "query_pre_attn_scalar": 24, "rope_local_base_freq": 300.0, "rope_theta": 5000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "mixtral": {"model_type": "mixtral", **SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "model_type": "qwen2_moe", **SIZES, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 20,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", **SIZES, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "head_dim": 16, "norm_topk_prob": True,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    },
    "deepseek_v2": {
        **DEEPSEEK, "model_type": "deepseek_v2", "q_lora_rank": None, "n_shared_experts": 2, "n_group": 3, "topk_group": 2,
        "topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0,
    },
    "deepseek_v3": {**DEEPSEEK, "model_type": "deepseek_v3", "n_group": 3, "topk_group": 2, "rope_scaling": LATENT_YARN},
    "gpt_oss": {
        "model_type": "gpt_oss", **SIZES, "head_dim": 12, "num_local_experts": 6, "num_experts_per_tok": 2,
        "sliding_window": 7,
    },
}  # fmt: skip


def their_model(config: dict[str, Any], folder: Path, seed: int = 5) -> Any:
    """A model of transformers with every parameter away from zero and one, also as a folder; of one seed always the same,
    whatever was drawn in this process before."""
    fields = {key: value for key, value in config.items() if key != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **json.loads(json.dumps(fields)))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(made).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name.endswith(CORRECTION):
                buffer.add_(0.15 * torch.randn(buffer.shape, generator=generator))
    model.save_pretrained(folder)
    return model


def their_logits(model: Any, tokens: Sequence[int]) -> Tensor:
    """Of all positions of one sequence: [S, V]."""
    with torch.no_grad():
        found: Tensor = model(torch.tensor([list(tokens)])).logits[0]
    return found
