"""Tiny models with random weights of every family that is served, as folders that transformers wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 500
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    # wide logits: the best token is far from the second, so that rounding decides nothing
    "initializer_range": 0.3,
}
FAMILIES = {
    "llama": {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "mistral": {"sliding_window": 16},
    "gemma3_text": {
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 24,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}


@dataclass(frozen=True)
class TinyModel:
    """A folder, and the same model in transformers."""

    folder: Path
    reference: torch.nn.Module

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Of every token, ``[T, V]``, by transformers in float32."""
        return self.all_logits([tokens])[0]

    def all_logits(self, sequences: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """The same of several; what stands behind a shorter one is not seen by it."""
        longest = max(map(len, sequences))
        padded = [[*tokens, *[0] * (longest - len(tokens))] for tokens in sequences]
        with torch.inference_mode():
            found = self.reference(torch.tensor(padded), use_cache=False).logits.float().numpy()
        return [row[: len(tokens)] for row, tokens in zip(found, sequences)]


def tiny_model(
    folder: Path,
    family: str,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    **changes: object,
) -> TinyModel:
    """Write one; norms and biases are random too, so that nothing that leaves them out is right."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **FAMILIES[family], **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.0 if "bias" in name else 1.0, std=0.2)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard_size)
    return TinyModel(folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
