"""Parameters that a step of a chain uses, by their names in the executor, and those of them that train."""

from __future__ import annotations

from functools import lru_cache

from meshwright.specs.model.adaptation import lora_parameters, trains
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter import block_parameters
from meshwright.specs.model.parameter_name import executed_name
from meshwright.stage.chain.chain import ChainStep, Segment

EXPERT_MATRICES = ("expert_gate_up", "expert_down")  # one matrix of every expert
TABLE, HEAD = "embedding.weight", "head.weight"
TARGET_TABLE = "target_embedding.weight"  # of the decoder behind an encoder
# ChainStep -> the modules of its block whose parameters it uses.
MODULES = {
    "attention_norm": ("attention_norm",),
    "attention": ("qkv", "query_norm", "key_norm", "latent_attention", "sinks", "attention_output"),
    "causal_attention": ("sinks",),
    **dict.fromkeys(
        ("qkv", "heads", "separate_heads", "head_parts"),
        ("qkv", "query_norm", "key_norm", "latent_attention"),
    ),
    **dict.fromkeys(("attention_core", "attention_of_heads", "chunk_attention"), ()),
    **dict.fromkeys(("full_scores", "weighted_values", "heads_of_group", "tokens_of_group"), ()),
    **dict.fromkeys(("attention_output", "output_of_parts"), ("attention_output",)),
    "cross_attention": ("cross_query", "cross_key_value", "cross_attention_output"),
    **{name: (name,) for name in ("cross_norm", "cross_query", "cross_key_value")},
    "cross_core": (),
    "cross_output": ("cross_attention_output",),
    "mlp_norm": ("mlp_norm",),
    "mlp": ("gate_up", "down", "mixture"),
    **{name: (name,) for name in ("gate_up", "down")},
    "router": ("router",),
    "shared_experts": ("shared", "shared_gate"),
    "experts": EXPERT_MATRICES,
}
# Steps of a block whose experts are divided: their modules are parts of its mixture.
OF_MIXTURE = ("router", "shared_experts", "experts")
# The product at the end of a part of a block. Its bias is added once, where the sum of the devices' terms is taken up.
LAST_PRODUCT = {
    **dict.fromkeys(("attention", "attention_output", "output_of_parts"), "attention_output"),
    **dict.fromkeys(("cross_attention", "cross_output"), "cross_attention_output"),
    **dict.fromkeys(("mlp", "down"), "down"),
}


def step_parameters(model: ModelSpec, step: ChainStep) -> tuple[str, ...]:
    """Names in the whole model ("layers.3.qkv.weight") of what a step uses; none that the model has not."""
    if step.name in ("add", "finished", "give_both") and step.of[0]:
        part, block = step.of
        return tuple(
            n for n in _block_names(model, block) if n == f"layers.{block}.{LAST_PRODUCT[part]}.bias"
        )
    if step.name in MODULES:
        behind = f"layers.{step.block}.{LAST_PRODUCT.get(step.name, '')}.bias"
        names = (name for name in _block_names(model, step.block) if name != behind)
        place = 3 if step.name in OF_MIXTURE else 2
        return tuple(n for n in names if (n.split(".") + [""])[place] in MODULES[step.name])
    return _of_ends(model, step.name)


def is_of_experts(name: str) -> bool:
    """Is a parameter a matrix of every expert?"""
    return any(f".{matrix}." in name for matrix in EXPERT_MATRICES)


def _of_ends(model: ModelSpec, name: str) -> tuple[str, ...]:
    found: dict[str, tuple[str, ...]] = {
        "embedding": (TABLE,),
        "positions": ("positions.weight",) if model.has_learned_positions else (),
        "encoder_norm": ("encoder_norm.weight",),
        "target_embedding": (TABLE if model.has_tied_embeddings else TARGET_TABLE,),
        "final_norm": ("final_norm.weight",),
        "head": (TABLE if model.has_tied_embeddings else HEAD,),
    }
    return found.get(name, ())


@lru_cache(maxsize=512)
def _block_names(model: ModelSpec, block: int) -> tuple[str, ...]:
    own = (executed_name(model.architecture, each.name) for each in block_parameters(model, block))
    added = (each.name for each in lora_parameters(model, block))
    return tuple(dict.fromkeys((*own, *added)))


def segment_parameters(model: ModelSpec, segment: Segment) -> tuple[str, ...]:
    """Of all its steps."""
    return tuple(dict.fromkeys(name for step in segment.steps for name in step_parameters(model, step)))


def trained_parameters(model: ModelSpec, segment: Segment) -> tuple[str, ...]:
    """Those of them that train."""
    return tuple(name for name in segment_parameters(model, segment) if trains(model, name))
