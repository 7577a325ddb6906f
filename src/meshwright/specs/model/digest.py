"""The digest of a model: a hash of everything that decides shapes and arithmetic."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.specs.model.model import ModelSpec

# Fields that plan files of schema 1 do not have. At their defaults they stay out of the digest, so that a model
# keeps the digest it had before there were such models.
ADDED_FIELDS = (
    *("num_experts", "num_experts_per_token", "expert_intermediate_size", "shared_intermediate_size"),
    *("dense_layers", "query_rank", "key_value_rank", "rotary_head_dim", "value_head_dim"),
    *("sliding_window", "sliding_layers", "attention_logit_cap", "final_logit_cap"),
    *(
        "activation",
        "rope_scaling",
        "rope_factor",
        "rope_low_factor",
        "rope_high_factor",
        "rope_original_length",
    ),
    *("trained", "lora_rank", "lora_alpha", "lora_targets"),
)
UNHASHED_FIELDS = ("name", "source")  # they change nothing that is computed


def model_digest(model: ModelSpec) -> str:
    """16 hexadecimal digits of the SHA-256 of the fields, in the order of their names."""
    defaults = {field.name: field.default for field in fields(model)}
    hashed = {
        key: value
        for key, value in asdict(model).items()
        if key not in UNHASHED_FIELDS and not (key in ADDED_FIELDS and value == defaults[key])
    }
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]
