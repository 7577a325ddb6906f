"""The executor's names of a decoder's modules by those of Hugging Face, for every family that it runs.

Weight and bias have the same names on both sides; {} is the number of the block. The matrices of a block's experts are one
tensor here and in a running model of transformers 5, and one by one in its files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from meshwright.specs.error import PlanError

LLAMA_MODULES: Mapping[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens",),
    "layers.{}.attention_norm": ("model.layers.{}.input_layernorm",),
    "layers.{}.qkv": tuple(f"model.layers.{{}}.self_attn.{part}_proj" for part in "qkv"),
    "layers.{}.query_norm": ("model.layers.{}.self_attn.q_norm",),
    "layers.{}.key_norm": ("model.layers.{}.self_attn.k_norm",),
    "layers.{}.attention_output": ("model.layers.{}.self_attn.o_proj",),
    "layers.{}.mlp_norm": ("model.layers.{}.post_attention_layernorm",),
    "layers.{}.gate_up": ("model.layers.{}.mlp.gate_proj", "model.layers.{}.mlp.up_proj"),
    "layers.{}.down": ("model.layers.{}.mlp.down_proj",),
    "final_norm": ("model.norm",),
    "head": ("lm_head",),
}
_MLP = "model.layers.{}.mlp"
MIXTURE_MODULES: Mapping[str, tuple[str, ...]] = {
    "layers.{}.mixture.router": (f"{_MLP}.gate",),
    "layers.{}.mixture.expert_gate_up": (f"{_MLP}.experts.gate_up_proj",),
    "layers.{}.mixture.expert_down": (f"{_MLP}.experts.down_proj",),
    "layers.{}.mixture.shared.gate_up": (f"{_MLP}.shared_expert.gate_proj", f"{_MLP}.shared_expert.up_proj"),
    "layers.{}.mixture.shared.down": (f"{_MLP}.shared_expert.down_proj",),
    "layers.{}.mixture.shared_gate": (f"{_MLP}.shared_expert_gate",),
}
_SHARED = f"{_MLP}.shared_experts"
DEEPSEEK_MIXTURE_MODULES: Mapping[str, tuple[str, ...]] = {
    **{ours: theirs for ours, theirs in MIXTURE_MODULES.items() if ".shared" not in ours},
    "layers.{}.mixture.shared.gate_up": (f"{_SHARED}.gate_proj", f"{_SHARED}.up_proj"),
    "layers.{}.mixture.shared.down": (f"{_SHARED}.down_proj",),
}
_ATTENTION = "model.layers.{}.self_attn"
LATENT_MODULES: Mapping[str, tuple[str, ...]] = {
    "layers.{}.latent_attention.query": (f"{_ATTENTION}.q_proj",),
    "layers.{}.latent_attention.narrow_query": (f"{_ATTENTION}.q_a_proj",),
    "layers.{}.latent_attention.narrow_query_norm": (f"{_ATTENTION}.q_a_layernorm",),
    "layers.{}.latent_attention.widen_query": (f"{_ATTENTION}.q_b_proj",),
    "layers.{}.latent_attention.narrow_key_value": (f"{_ATTENTION}.kv_a_proj_with_mqa",),
    "layers.{}.latent_attention.narrow_key_value_norm": (f"{_ATTENTION}.kv_a_layernorm",),
    "layers.{}.latent_attention.widen_key_value": (f"{_ATTENTION}.kv_b_proj",),
}
GPT_OSS_MODULES: Mapping[str, tuple[str, ...]] = {
    **LLAMA_MODULES,
    "layers.{}.sinks": (f"{_ATTENTION}.sinks",),
    "layers.{}.mixture.router": (f"{_MLP}.router",),
    "layers.{}.mixture.expert_gate_up": (f"{_MLP}.experts.gate_up_proj",),
    "layers.{}.mixture.expert_down": (f"{_MLP}.experts.down_proj",),
}
_CROSS = "model.layers.{}.cross_attn"
# Of an encoder-decoder, whose names are ours alone.
CROSS_MODULES: Mapping[str, tuple[str, ...]] = {
    "layers.{}.cross_norm": ("model.layers.{}.cross_attention_layernorm",),
    "layers.{}.cross_query": (f"{_CROSS}.q_proj",),
    "layers.{}.cross_key_value": (f"{_CROSS}.k_proj", f"{_CROSS}.v_proj"),
    "layers.{}.cross_attention_output": (f"{_CROSS}.o_proj",),
    "encoder_norm": ("model.encoder_norm",),
    "target_embedding": ("model.embed_targets",),
}
GPT2_MODULES: Mapping[str, tuple[str, ...]] = {
    "embedding": ("transformer.wte",),
    "positions": ("transformer.wpe",),
    "layers.{}.attention_norm": ("transformer.h.{}.ln_1",),
    "layers.{}.qkv": ("transformer.h.{}.attn.c_attn",),
    "layers.{}.attention_output": ("transformer.h.{}.attn.c_proj",),
    "layers.{}.mlp_norm": ("transformer.h.{}.ln_2",),
    "layers.{}.gate_up": ("transformer.h.{}.mlp.c_fc",),
    "layers.{}.down": ("transformer.h.{}.mlp.c_proj",),
    "final_norm": ("transformer.ln_f",),
    "head": ("lm_head",),
}
MODULES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), LLAMA_MODULES),
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe"), {**LLAMA_MODULES, **MIXTURE_MODULES}),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3"),
        {
            **{ours: theirs for ours, theirs in LLAMA_MODULES.items() if ours != "layers.{}.qkv"},
            **LATENT_MODULES,
            **DEEPSEEK_MIXTURE_MODULES,
        },
    ),
    "gpt2": GPT2_MODULES,
    "gpt_oss": GPT_OSS_MODULES,
}
# What is no parameter, and stands beside them: constants, ours and theirs.
CONSTANTS: Mapping[str, str] = {"layers.{}.mixture.correction": f"{_MLP}.gate.e_score_correction_bias"}
STACKED = (
    ".experts.gate_up_proj",
    ".experts.down_proj",
)  # one tensor of all experts, whose name says no attribute
SINKS = ".self_attn.sinks"  # nor does this one's
STACKED_BIAS = "_proj_bias"  # of such a tensor: what the attribute is called
_BLOCK = re.compile(r"\.(\d+)\.")


def executed_name(architecture: str, name: str) -> str:
    """The executor's name of a checkpoint's parameter: "layers.3.qkv.weight" of "model.layers.3.self_attn.k_proj.weight".

    Raises PlanError for a family that the executor does not have: nobody knows which part of a block uses what.
    """
    name += ".weight" if name.endswith((*STACKED, SINKS)) else ""
    name = f"{name.removesuffix(STACKED_BIAS)}_proj.bias" if name.endswith(STACKED_BIAS) else name
    number = _BLOCK.search(name)
    module, _, attribute = _BLOCK.sub(".{}.", name, count=1).rpartition(".")
    ours = _executed_modules(architecture)[module]
    return f"{ours.format(number.group(1) if number else '')}.{attribute}"


@lru_cache(maxsize=16)
def _executed_modules(architecture: str) -> dict[str, str]:
    if architecture not in MODULES:
        raise PlanError(
            f"a {architecture} model has no modules in the executor, so its stages are no chains of segments",
            allowed=", ".join(MODULES),
            next="predict it composed, without segments",
        )
    modules = {**MODULES[architecture], **CROSS_MODULES}
    return {part: ours for ours, parts in modules.items() for part in parts}
