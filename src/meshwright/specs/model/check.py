"""Do the dimensions of a model fit each other? What `ModelSpec` refuses, with what would be accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.specs.error import SpecError
from meshwright.specs.model.rotary_scaling import LLAMA3

if TYPE_CHECKING:
    from meshwright.specs.model.model import ModelSpec

_POSITIVE = (
    *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim"),
    *("intermediate_size", "vocabulary_size", "max_sequence_length"),
)
_OPTIONAL = (
    *("num_experts", "num_experts_per_token", "expert_intermediate_size", "shared_intermediate_size"),
    *("query_rank", "key_value_rank", "rotary_head_dim", "value_head_dim", "sliding_window"),
)


def check_model(model: ModelSpec) -> None:
    """Raises SpecError naming the model and the first dimension that cannot be."""
    _check_counts(model)
    _check_heads(model)
    _check_experts(model)
    _check_latent(model)
    _check_layers(model)
    _check_arithmetic(model)


def _check_counts(model: ModelSpec) -> None:
    for least, names in ((1, _POSITIVE), (0, _OPTIONAL)):
        for field in names:
            value = getattr(model, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SpecError(f"{model.name}: {field} is {value!r}", allowed=f"a whole number from {least}")
    for field in ("attention_logit_cap", "final_logit_cap"):
        if not getattr(model, field) >= 0:
            raise SpecError(f"{model.name}: {field} is {getattr(model, field)!r}", allowed="a number from 0")


def _check_heads(model: ModelSpec) -> None:
    if model.num_heads % model.num_kv_heads:
        raise SpecError(
            f"{model.name}: {model.num_heads} heads cannot share {model.num_kv_heads} key-value heads",
            allowed="a number of key-value heads that divides the number of heads",
        )
    turned = model.rotary_head_dim or model.head_dim
    if not model.is_gpt2 and turned % 2:
        field = "rotary_head_dim" if model.rotary_head_dim else "head_dim"
        raise SpecError(
            f"{model.name}: {field} is {turned}, and rotary positions turn pairs of numbers",
            allowed=f"an even {field}",
        )
    if model.is_gpt2 and not model.query_size == model.key_size == model.hidden_size:
        raise SpecError(
            f"{model.name}: hidden size {model.hidden_size}, but {model.num_heads} heads of {model.head_dim}",
            allowed="for GPT-2 a hidden size that the number of heads divides",
        )


def _check_experts(model: ModelSpec) -> None:
    """All of the experts' sizes or none, and a router that can choose."""
    needed = (model.num_experts, model.num_experts_per_token, model.expert_intermediate_size)
    if any(needed) != all(needed) or (model.shared_intermediate_size and not model.num_experts):
        raise SpecError(
            f"{model.name}: num_experts {needed[0]}, num_experts_per_token {needed[1]}, "
            f"expert_intermediate_size {needed[2]}, shared_intermediate_size {model.shared_intermediate_size}",
            allowed="the first three from 1 in a model with experts, all zero in a dense one",
        )
    if model.num_experts_per_token > model.num_experts:
        raise SpecError(
            f"{model.name}: a token goes to {model.num_experts_per_token} of {model.num_experts} experts",
            allowed=f"1 to {model.num_experts} experts a token",
        )


def _check_latent(model: ModelSpec) -> None:
    """Ranks and widths of latent attention come together."""
    others = (model.query_rank, model.rotary_head_dim, model.value_head_dim)
    is_whole = 0 < model.rotary_head_dim < model.head_dim and model.value_head_dim > 0
    if model.key_value_rank and not (is_whole and model.num_kv_heads == model.num_heads):
        raise SpecError(
            f"{model.name}: latent attention with rotary_head_dim {model.rotary_head_dim} of head_dim "
            f"{model.head_dim}, value_head_dim {model.value_head_dim}, {model.num_kv_heads} key-value heads",
            allowed=f"a rotary part inside head_dim, a value_head_dim from 1, {model.num_heads} key-value heads",
        )
    if not model.key_value_rank and any(others):
        raise SpecError(
            f"{model.name}: query_rank, rotary_head_dim, value_head_dim are {others} without a key_value_rank",
            allowed="zeros, or a key_value_rank from 1 (latent attention)",
        )


def _check_layers(model: ModelSpec) -> None:
    for field in ("dense_layers", "sliding_layers"):
        layers = getattr(model, field)
        are_blocks = all(type(block) is int and 0 <= block < model.num_layers for block in layers)
        if not are_blocks or list(layers) != sorted(set(layers)):
            raise SpecError(
                f"{model.name}: {field} is {layers!r}",
                allowed=f"block numbers from 0 to {model.num_layers - 1} in rising order",
            )
    if model.dense_layers and not model.num_experts:
        raise SpecError(f"{model.name}: dense_layers {model.dense_layers} without experts", allowed="nothing")
    if bool(model.sliding_layers) != bool(model.sliding_window) or model.sliding_window == 1:
        raise SpecError(
            f"{model.name}: sliding_window {model.sliding_window} in {len(model.sliding_layers)} blocks",
            allowed="a window from 2 tokens and the blocks that have it, or neither",
        )


def _check_arithmetic(model: ModelSpec) -> None:
    """Activation and rotary scaling."""
    allowed = ("", "gelu") if model.is_gpt2 else ("",)
    if model.activation not in allowed:
        raise SpecError(
            f"{model.name}: activation {model.activation!r} in a {model.architecture} model",
            allowed=" or ".join(map(repr, allowed)),
        )
    if model.is_gpt2 and model.rope_scaling:
        raise SpecError(
            f"{model.name}: rope_scaling {model.rope_scaling!r} without rotary positions", allowed="''"
        )
    if model.rope_scaling and not model.rope_factor > 0:
        raise SpecError(f"{model.name}: rope_factor is {model.rope_factor}", allowed="a number above 0")
    is_ordered = 0 < model.rope_low_factor < model.rope_high_factor
    if model.rope_scaling == LLAMA3 and not (is_ordered and model.rope_original_length > 0):
        raise SpecError(
            f"{model.name}: rope_low_factor {model.rope_low_factor}, rope_high_factor {model.rope_high_factor}, "
            f"rope_original_length {model.rope_original_length}",
            allowed="0 < low < high, and a length from 1",
        )
