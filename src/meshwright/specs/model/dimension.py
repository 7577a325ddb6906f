"""A decoder by flat dimensions, one number for all of its blocks, as configurations and tables say it; its digest.

Plan files of schemas 1 to 4 say models so, and digests are of this form: they stay what they were.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.specs.error import SpecError, near_matches
from meshwright.specs.model.block import (
    ROUTINGS,
    Attention,
    BlockRuns,
    BlockSpec,
    Experts,
    FeedForward,
    LatentRanks,
    Routing,
    merged_runs,
)
from meshwright.specs.model.rotary_scaling import RotaryScaling
from meshwright.specs.model.shape import ModelShape
from meshwright.specs.record import converted, plain

_NEEDED: Mapping[str, int] = dict.fromkeys(
    (
        *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim"),
        *("intermediate_size", "vocabulary_size", "max_sequence_length"),
    ),
    0,
)
# Dimensions that plan files of schema 1 do not have. At their defaults they stay out of the digest, so that a model
# keeps the digest it had before there were such models.
ADDED_DIMENSIONS: Mapping[str, Any] = {
    **dict.fromkeys(("num_experts", "num_experts_per_token", "expert_intermediate_size"), 0),
    **dict.fromkeys(("shared_intermediate_size", "query_rank", "key_value_rank", "rotary_head_dim"), 0),
    **dict.fromkeys(("value_head_dim", "sliding_window", "rope_original_length", "lora_rank"), 0),
    **dict.fromkeys(("attention_logit_cap", "final_logit_cap", "lora_alpha"), 0.0),
    **dict.fromkeys(("rope_factor", "rope_low_factor", "rope_high_factor"), 1.0),
    **dict.fromkeys(("rope_attention_factor", "rope_magnitude", "rope_all_magnitude"), 0.0),
    "has_whole_rope_ramp": True,
    **dict.fromkeys(("activation", "rope_scaling"), ""),
    **dict.fromkeys(("dense_layers", "sliding_layers", "trained", "lora_targets"), ()),
    **dict.fromkeys(("num_expert_groups", "num_expert_groups_per_token"), 1),
    "router_scores": "",
    "router_cosine_rank": 0,
    "has_router_correction": False,
    "has_unit_gates": True,
    "gate_scale": 1.0,
    "has_ladder_residual": False,
    "has_parallel_branches": False,
    "num_encoder_layers": 0,
}
_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("has_tied_embeddings", "has_qkv_bias", "has_output_bias", "has_mlp_bias"), False),
    "has_query_key_norm": False,
    "norm_epsilon": 1e-5,
    "rope_theta": 10_000.0,
    **ADDED_DIMENSIONS,
}
# Where a dimension is: in the model itself, or under which name in which part.
_OF_MODEL = (
    *("hidden_size", "vocabulary_size", "max_sequence_length", "has_tied_embeddings", "norm_epsilon"),
    *("rope_theta", "final_logit_cap", "trained", "lora_rank", "lora_alpha", "lora_targets"),
    *("has_ladder_residual", "has_parallel_branches"),
)
_OF_PART: Mapping[type, Mapping[str, str]] = {
    Attention: {
        **{name: name for name in ("num_heads", "num_kv_heads", "head_dim", "has_qkv_bias")},
        "has_output_bias": "has_output_bias",
        "has_query_key_norm": "has_query_key_norm",
        "attention_logit_cap": "logit_cap",
    },
    LatentRanks: {
        name: name for name in ("key_value_rank", "rotary_head_dim", "value_head_dim", "query_rank")
    },
    Experts: {
        "num_experts": "num_experts",
        "num_experts_per_token": "num_experts_per_token",
        "expert_intermediate_size": "intermediate_size",
        "has_mlp_bias": "has_bias",
        "shared_intermediate_size": "shared_intermediate_size",
    },
    Routing: {
        "router_scores": "scores",
        "num_expert_groups": "num_groups",
        "num_expert_groups_per_token": "num_groups_per_token",
        "has_router_correction": "has_correction",
        "has_unit_gates": "has_unit_sum",
        "gate_scale": "gate_scale",
        "router_cosine_rank": "cosine_rank",
    },
    FeedForward: {
        "intermediate_size": "intermediate_size",
        "has_mlp_bias": "has_bias",
        "activation": "activation",
    },
    RotaryScaling: {
        "rope_scaling": "kind",
        "rope_factor": "factor",
        "rope_low_factor": "low_factor",
        "rope_high_factor": "high_factor",
        "rope_original_length": "original_length",
        "rope_attention_factor": "attention_factor",
        "rope_magnitude": "magnitude",
        "rope_all_magnitude": "all_magnitude",
        "has_whole_rope_ramp": "is_whole",
    },
}
_NAMES = ("name", "architecture", "source")
_HASHED_DIGITS = 16


def shape_fields(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a model with these dimensions, all but its name, family and source.

    Raises SpecError naming the model and a dimension that is unknown, missing, or contradicts the others.
    """
    said = _typed(name, given)
    _check_layers(name, said)
    fields = {field: said[field] for field in _OF_MODEL}
    fields["rotary_scaling"] = _part(RotaryScaling, said, "rope_scaling")
    return {**fields, "blocks": _blocks(said)}


def flat_dimensions(model: ModelShape) -> dict[str, Any]:
    """Every dimension of a model by its name. Raises SpecError where its blocks differ in more than a window, or in having
    experts.
    """
    layers, attention, experts = model.layers, model.attention, model.experts
    found = {**_DEFAULTS, "num_layers": model.num_layers, "intermediate_size": model.intermediate_size}
    routing = experts and experts.routing
    for part in (attention, attention.latent, experts, routing, model.mlp, model.rotary_scaling):
        if part:
            found |= {name: getattr(part, field) for name, field in _OF_PART[type(part)].items()}
    found |= {name: getattr(model, name) for name in (*_OF_MODEL, "num_encoder_layers")}
    if experts:
        found["dense_layers"] = tuple(i for i, block in enumerate(layers) if not block.experts)
    found["sliding_layers"] = tuple(i for i, block in enumerate(layers) if block.attention.window)
    found["sliding_window"] = max(block.attention.window for block in layers)
    if _blocks(found) != model.blocks:
        raise SpecError(f"{model.name}: its blocks differ in more than a window, or in having experts")
    return _typed(model.name, found)


def routing_dimensions(architecture: str, routing: Routing) -> dict[str, Any]:
    """The dimensions that say this routing; none where it is the family's own."""
    if routing == ROUTINGS.get(architecture, Routing()):
        return {}
    return {name: getattr(routing, field) for name, field in _OF_PART[Routing].items()}


def model_differences(one: ModelShape, other: ModelShape) -> dict[str, tuple[Any, Any]]:
    """Dimensions that two models do not have alike: what the one has and what the other. Raises SpecError."""
    ours, theirs = ({**flat_dimensions(each), "architecture": each.architecture} for each in (one, other))
    return {name: (value, theirs[name]) for name, value in ours.items() if value != theirs[name]}


def model_digest(model: ModelShape) -> str:
    """Hash of everything that decides shapes and arithmetic: 16 hexadecimal digits of the SHA-256."""
    try:
        return flat_digest(model.name, flat_dimensions(model), model.architecture)
    except SpecError:  # blocks that the flat form has no words for
        return _hashed(plain(replace(model, name="", source="")))


def flat_digest(name: str, given: Mapping[str, Any], architecture: str) -> str:
    """The digest of a model that is given by its dimensions; `name`, `architecture` and `source` may stand among them."""
    dimensions = _typed(name, {key: value for key, value in given.items() if key not in _NAMES})
    told = {key: value for key, value in dimensions.items() if value != ADDED_DIMENSIONS.get(key)}
    return _hashed({**told, "architecture": architecture})


def _hashed(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_HASHED_DIGITS]


def _typed(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All dimensions, each of the type that its default has; what is left out takes the default."""
    known = {**_NEEDED, **_DEFAULTS}
    unknown, missing = (
        [key for key in given if key not in known],
        [key for key in _NEEDED if key not in given],
    )
    for wrong, said in ((unknown, "is not one of a model"), (missing, "is missing")):
        if wrong:
            near = near_matches(wrong[0], known if wrong is unknown else given)
            raise SpecError(
                f"{name}: dimension {wrong[0]!r} {said}",
                allowed=", ".join(near or known),
                next="check the spelling",
            )
    return {
        key: converted(type(value), given.get(key, value), f"{name}: {key}") for key, value in known.items()
    }


def _part(kind: type[Any], said: Mapping[str, Any], *needs: str) -> Any:
    """A part of a block; None where all that it `needs` is zero."""
    if needs and not any(said[name] for name in needs):
        return None
    return kind(**{field: said[name] for name, field in _OF_PART[kind].items()})


def _blocks(said: Mapping[str, Any]) -> BlockRuns:
    latent = _part(LatentRanks, said, *_OF_PART[LatentRanks])
    full = replace(_part(Attention, said), latent=latent)
    sliding = replace(full, window=said["sliding_window"])
    dense = _part(FeedForward, said)
    experts = _part(Experts, said, *(name for name in _OF_PART[Experts] if name != "has_mlp_bias"))
    experts = experts and replace(experts, routing=_part(Routing, said, "router_scores"))
    windows, plain_layers = set(said["sliding_layers"]), set(said["dense_layers"])
    num_encoders = said["num_encoder_layers"]
    return merged_runs(
        BlockSpec(
            sliding if i in windows else full,
            dense if i in plain_layers else experts or dense,
            ("encoder" if i < num_encoders else "decoder") if num_encoders else "",
        )
        for i in range(said["num_layers"])
    )


def _check_layers(name: str, said: Mapping[str, Any]) -> None:
    """Do the lists of layers name blocks, and is there what they are for?"""
    for field in ("dense_layers", "sliding_layers"):
        layers = said[field]
        are_blocks = all(type(block) is int and 0 <= block < said["num_layers"] for block in layers)
        if not are_blocks or list(layers) != sorted(set(layers)):
            raise SpecError(
                f"{name}: {field} is {layers!r}",
                allowed=f"block numbers from 0 to {said['num_layers'] - 1} in rising order",
            )
    if said["num_encoder_layers"] and not 0 < said["num_encoder_layers"] < said["num_layers"]:
        raise SpecError(
            f"{name}: num_encoder_layers is {said['num_encoder_layers']} of {said['num_layers']} layers",
            allowed=f"0 to {said['num_layers'] - 1}: the decoder has the others",
        )
    if said["dense_layers"] and not said["num_experts"]:
        raise SpecError(f"{name}: dense_layers {said['dense_layers']} without experts", allowed="nothing")
    routing = [field for field in _OF_PART[Routing] if said[field] != ADDED_DIMENSIONS[field]]
    if routing and not (said["router_scores"] and said["num_experts"]):
        raise SpecError(
            f"{name}: {routing[0]} is {said[routing[0]]!r} without router_scores, or without experts",
            allowed="router_scores 'softmax' or 'sigmoid' beside it, or nothing: the family's own routing",
        )
    if bool(said["sliding_layers"]) != bool(said["sliding_window"]):
        raise SpecError(
            f"{name}: sliding_window {said['sliding_window']} in {len(said['sliding_layers'])} blocks",
            allowed="a window from 2 tokens and the blocks that have it, or neither",
        )
