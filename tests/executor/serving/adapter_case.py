"""Folders of PEFT with random factors, and models of transformers with these added to their matrices."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ATTENTION = ("q_proj", "v_proj", "o_proj")
GPT2 = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def targets_of(family: str) -> tuple[str, ...]:
    """All modules of a family that may be added to."""
    if family == "gpt2":
        return GPT2
    if family.startswith(
        "deepseek"
    ):  # of latent attention its last product, and of the dense first layer its MLP
        return ("o_proj", "layers.0.mlp.gate_proj", "layers.0.mlp.up_proj", "layers.0.mlp.down_proj")
    return ATTENTION if "moe" in family or family in ("mixtral", "gpt_oss") else ALL


def write_adapter(
    model: Any, folder: Path, targets: Sequence[str], rank: int, seed: int, **config: Any
) -> Any:
    """A folder with additions to these modules of every layer; gives their model with the additions in its matrices."""
    merged, factors = copy.deepcopy(model), {}
    generator = torch.Generator().manual_seed(seed)
    alpha = 2.0 * rank
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    with torch.no_grad():
        for name, module in merged.named_modules():
            if not name.endswith(tuple(targets)):
                continue
            is_stored_transposed = type(module).__name__ == "Conv1D"
            num_out, num_in = module.weight.shape[::-1] if is_stored_transposed else module.weight.shape
            a, b = (
                0.3 * torch.randn(shape, generator=generator) for shape in ((rank, num_in), (num_out, rank))
            )
            more = scale * b @ a
            module.weight += more.t() if is_stored_transposed else more
            factors |= {
                f"base_model.model.{name}.lora_A.weight": a,
                f"base_model.model.{name}.lora_B.weight": b,
            }
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    told = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps({**told, **config}))
    return merged
