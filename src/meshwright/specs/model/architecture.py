"""Architectures: the families of decoders whose blocks are known here, by the name that their `config.json` has."""

from __future__ import annotations

from typing import Literal, get_args

Architecture = Literal[
    "gpt2",
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
