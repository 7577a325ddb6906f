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
