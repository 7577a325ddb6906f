"""Do the dimensions of a model fit each other? What `ModelSpec` refuses, with what would be accepted."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_args

from meshwright.specs.bound.bound import MOST_LAYERS, MOST_SIZE, check_most
from meshwright.specs.error import SpecError
from meshwright.specs.model.block import SCORES, Attention, Experts, LatentRanks
from meshwright.specs.model.rotary_scaling import LLAMA3, YARN
from meshwright.specs.model.shape import ARCHITECTURES, ModelShape
from meshwright.specs.printable import check_printable

CAPS = ("logit_cap", "final_logit_cap")


def check_model(model: ModelShape) -> None:
    """Raises SpecError naming the model and the first dimension that cannot be."""
    check_printable("model", model.name)
    check_printable(f"{model.name}: source", model.source)
    if model.architecture not in ARCHITECTURES:
        raise SpecError(
            f"{model.name}: architecture {model.architecture!r} is not known",
            allowed=", ".join(ARCHITECTURES),
        )
    if not model.blocks or any(count < 1 for _, count in model.blocks):
        raise SpecError(f"{model.name}: num_layers is {model.num_layers}", allowed="a whole number from 1")
    check_most(f"{model.name}: num_layers", model.num_layers, MOST_LAYERS)
    _check_counts(model.name, model)
    for block in model.kinds:
        _check_counts(model.name, block)
        _check_heads(model, block.attention)
        if block.attention.latent:
            _check_latent(model.name, block.attention, block.attention.latent)
        if block.experts:
            _check_experts(model.name, block.experts)
        elif getattr(block.feed_forward, "activation", "") not in (("", "gelu") if model.is_gpt2 else ("",)):
            raise SpecError(
                f"{model.name}: {block.feed_forward} in a {model.architecture} model",
                allowed="activation '' or 'gelu' in GPT-2, '' in the others",
            )
    _check_rotary(model)
    _check_branches(model)
    _check_halves(model)


def _check_counts(name: str, part: Any) -> None:
    """Counts of a part and of the parts inside it: from 1, or from 0 where a field may be left out."""
    for field in fields(part):
        value = getattr(part, field.name)
        least = 0 if field.default == 0 else 1
        if field.type == "int" and (type(value) is not int or value < least):
            raise SpecError(f"{name}: {field.name} is {value!r}", allowed=f"a whole number from {least}")
        if field.type == "int":
            check_most(f"{name}: {field.name}", value, MOST_SIZE)
        if field.name in CAPS and not value >= 0:
            raise SpecError(f"{name}: {field.name} is {value!r}", allowed="a number from 0")
        if is_dataclass(value):
            _check_counts(name, value)


def _check_heads(model: ModelShape, attention: Attention) -> None:
    if attention.num_heads % attention.num_kv_heads:
        raise SpecError(
            f"{model.name}: {attention.num_heads} heads cannot share {attention.num_kv_heads} key-value heads",
            allowed="a number of key-value heads that divides the number of heads",
        )
    if not model.is_gpt2 and attention.turned_dim % 2:
        field = "rotary_head_dim" if attention.latent else "head_dim"
        raise SpecError(
            f"{model.name}: {field} is {attention.turned_dim}, and rotary positions turn pairs of numbers",
            allowed=f"an even {field}",
        )
    if model.is_gpt2 and not attention.query_size == attention.key_size == model.hidden_size:
        raise SpecError(
            f"{model.name}: hidden size {model.hidden_size}, but {attention.num_heads} heads of {attention.head_dim}",
            allowed="for GPT-2 a hidden size that the number of heads divides",
        )
    if attention.window == 1:
        raise SpecError(f"{model.name}: a window of 1 token", allowed="a window from 2 tokens, or 0: none")


def _check_latent(name: str, attention: Attention, latent: LatentRanks) -> None:
    is_inside = latent.rotary_head_dim < attention.head_dim
    if not is_inside or attention.num_kv_heads != attention.num_heads:
        raise SpecError(
            f"{name}: latent attention with rotary_head_dim {latent.rotary_head_dim} of head_dim "
            f"{attention.head_dim}, {attention.num_kv_heads} key-value heads",
            allowed=f"a rotary part inside head_dim, {attention.num_heads} key-value heads",
        )


def _check_experts(name: str, experts: Experts) -> None:
    if experts.num_experts_per_token > experts.num_experts:
        raise SpecError(
            f"{name}: a token goes to {experts.num_experts_per_token} of {experts.num_experts} experts",
            allowed=f"1 to {experts.num_experts} experts a token",
        )
    _check_routing(name, experts)


def _check_routing(name: str, experts: Experts) -> None:
    routing = experts.routing
    if routing is None:
        return
    if routing.scores not in get_args(SCORES) or not routing.gate_scale > 0 or routing.cosine_rank < 0:
        allowed = f"{', '.join(get_args(SCORES))}, a scale above 0, a cosine's rank from 0"
        raise SpecError(f"{name}: {routing}", allowed=allowed)


def _check_branches(model: ModelShape) -> None:
    """Parallel branches are of dense decoders whose parts have no norms behind them."""
    held = {
        "a ladder residual": model.has_ladder_residual,
        "experts": any(block.experts for block in model.kinds),
        "norms behind its parts": model.is_gemma,
        "frozen parameters": model.is_adapted,
    }
    if missing := [name for name, is_there in held.items() if is_there and model.has_parallel_branches]:
        raise SpecError(
            f"{model.name}: parallel branches with {' and '.join(missing)}",
            allowed="a dense decoder, all of which trains",
        )


def _check_halves(model: ModelShape) -> None:
    """An encoder and a decoder behind it, or neither; of what both are built for."""
    halves = [block.half for block in model.layers]
    if not any(halves):
        return
    number = halves.count("encoder")
    if halves != ["encoder"] * number + ["decoder"] * (len(halves) - number) or number in (0, len(halves)):
        raise SpecError(
            f"{model.name}: its blocks are of the halves {halves}",
            allowed="the encoder's blocks, and the decoder's behind them; or none of either",
        )
    held = {
        "learned positions": model.has_learned_positions,
        "norms behind its parts": model.is_gemma,
        "attention sinks": model.has_attention_sinks,
        "a ladder residual": model.has_ladder_residual,
        "parallel branches": model.has_parallel_branches,
        "frozen parameters": model.is_adapted,
        "latent attention": any(block.attention.latent for block in model.kinds),
        "a sliding window": any(block.attention.window for block in model.kinds),
    }
    if missing := [name for name, is_there in held.items() if is_there]:
        raise SpecError(
            f"{model.name}: an encoder-decoder with {' and '.join(missing)}",
            allowed="blocks of the Llama, Qwen and Mistral families: rotary positions, attention by heads",
        )


def _check_rotary(model: ModelShape) -> None:
    scaling = model.rotary_scaling
    if scaling is None:
        return
    if model.is_gpt2:
        raise SpecError(f"{model.name}: {scaling} without rotary positions", allowed="none")
    if not scaling.factor > 0:
        raise SpecError(f"{model.name}: {scaling}", allowed="a factor above 0")
    if scaling.kind in (LLAMA3, YARN) and not (
        0 < scaling.low_factor < scaling.high_factor and scaling.original_length > 0
    ):
        raise SpecError(f"{model.name}: {scaling}", allowed="0 < low < high, and a length from 1")
