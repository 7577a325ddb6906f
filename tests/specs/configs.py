"""Small config.json contents that several tests share."""

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
QWEN2, QWEN3 = {**LLAMA, "model_type": "qwen2"}, {**LLAMA, "model_type": "qwen3", "head_dim": 16}
GPT2 = {"model_type": "gpt2", "vocab_size": 101, "n_positions": 33, "n_embd": 40, "n_layer": 3, "n_head": 5}
# Families with windows, experts and latent attention: every odd shape is meant (head_dim is not hidden / heads, ...).
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 8}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2}
QWEN2_MOE = {
    **LLAMA,
    "model_type": "qwen2_moe",
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
}
QWEN3_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "head_dim": 14,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
DEEPSEEK_V2 = {
    **LLAMA,
    "model_type": "deepseek_v2",
    "num_hidden_layers": 4,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 18,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
}
DEEPSEEK_V3 = {
    **DEEPSEEK_V2,
    "model_type": "deepseek_v3",
    "n_shared_experts": 1,
    "first_k_dense_replace": 2,
    "q_lora_rank": 26,
    "n_group": 2,
    "topk_group": 1,
}
GEMMA = {**LLAMA, "model_type": "gemma", "head_dim": 22, "num_key_value_heads": 1}
GEMMA2 = {**LLAMA, "model_type": "gemma2", "head_dim": 12, "sliding_window": 5}
GEMMA3 = {**LLAMA, "model_type": "gemma3_text", "head_dim": 10, "num_hidden_layers": 7, "sliding_window": 6}
GPT_OSS = {
    **LLAMA,
    "model_type": "gpt_oss",
    "head_dim": 12,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 4,
}
NEW_FAMILIES = (
    *(MISTRAL, MIXTRAL, QWEN2_MOE, QWEN3_MOE, DEEPSEEK_V2, DEEPSEEK_V3, GEMMA, GEMMA2, GEMMA3, GPT_OSS),
)
