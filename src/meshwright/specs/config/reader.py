"""Reading fields of a Hugging Face config.json: whole numbers, flags and numbers, each refused by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from meshwright.specs.error import SpecError, near_matches

# Fields of config.json by the ModelSpec field they give. GPT-2 has its own names and accepts the common ones.
GPT2_FIELDS = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_layers": ("n_layer", "num_hidden_layers"),
    "num_heads": ("n_head", "num_attention_heads"),
    "vocabulary_size": ("vocab_size",),
    "max_sequence_length": ("n_positions", "max_position_embeddings"),
    "intermediate_size": ("n_inner",),
}
DECODER_FIELDS = {
    "hidden_size": ("hidden_size",),
    "num_layers": ("num_hidden_layers",),
    "num_heads": ("num_attention_heads",),
    "num_kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "vocabulary_size": ("vocab_size",),
    "max_sequence_length": ("max_position_embeddings",),
    "intermediate_size": ("intermediate_size",),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "num_experts_per_token": ("num_experts_per_tok",),
    "expert_intermediate_size": ("moe_intermediate_size",),
    "shared_intermediate_size": ("shared_expert_intermediate_size",),
    "query_rank": ("q_lora_rank",),
    "key_value_rank": ("kv_lora_rank",),
    "rotary_head_dim": ("qk_rope_head_dim",),
    "value_head_dim": ("v_head_dim",),
}


class ConfigReader(NamedTuple):
    """One config.json: its fields, the name of the file for messages, and the field names of its family."""

    config: Mapping[str, Any]
    where: str
    fields: Mapping[str, tuple[str, ...]]

    def size(self, field: str, default: int | None = None) -> int:
        """A whole number from 1; missing or null takes `default`, and is an error where there is none.

        `field` is one of ModelSpec, or a name in config.json that only one family has.
        """
        names = self.fields.get(field, (field,))
        present = [name for name in names if self.config.get(name) is not None]
        if not present and default is not None:
            return default
        if not present:
            self.missing(names[0])
        value = self.config[present[0]]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SpecError(
                f"{self.where}: field {present[0]!r} is {value!r}", allowed="a whole number from 1"
            )
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number from 0; null is 0, missing takes `default`, and is an error where there is none."""
        if name not in self.config and default is None:
            self.missing(name)
        value = self.config.get(name, default)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise SpecError(f"{self.where}: field {name!r} is {value!r}", allowed="a whole number from 0")
        return value

    def blocks(self, name: str) -> tuple[int, ...]:
        """A list of block numbers; missing or null is empty."""
        value = self.config.get(name) or []
        if not isinstance(value, list) or any(type(block) is not int for block in value):
            raise SpecError(f"{self.where}: field {name!r} is {value!r}", allowed="a list of block numbers")
        return tuple(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false; missing or null takes `default`."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise SpecError(f"{self.where}: field {name!r} is {value!r}", allowed="true or false")
        return value

    def number(self, name: str, default: float) -> float:
        """A positive number; missing or null takes `default`."""
        value = self.config.get(name)
        if value is None:
            return default
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value <= sys.float_info.max:
            raise SpecError(
                f"{self.where}: field {name!r} is {value!r}", allowed="a positive number that is finite"
            )
        return float(value)

    def missing(self, name: str) -> NoReturn:
        """Refuse the file: a field that decides a shape is not there."""
        near = near_matches(name, (key for key in self.config if key != name))
        hint = f"; it has {', '.join(map(repr, near))}" if near else ""
        state = "is null" if name in self.config else "is missing"
        raise SpecError(
            f"{self.where}: field {name!r} {state}{hint}",
            allowed=f"a whole number from 1 in {name!r}",
            next="take the config.json of the published model, or add the field",
        )
