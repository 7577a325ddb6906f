"""What a family of models adds to Llama's fields: biases, windows, experts, latent attention, caps.

Defaults of missing fields are those of the Config classes of transformers 5; what decides a shape of experts
or of latent attention has none and must be in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwright.specs.config.reader import ConfigReader
from meshwright.specs.error import SpecError
from meshwright.specs.model.block import ROUTINGS, Routing
from meshwright.specs.model.dimension import routing_dimensions
from meshwright.specs.model.shape import GATE_ALPHA, GATE_LIMIT

Fields = dict[str, Any]
SLIDING, FULL = "sliding_attention", "full_attention"  # in `layer_types`
MISTRAL_WINDOW = GEMMA_WINDOW = QWEN_WINDOW = 4096
QWEN_WINDOW_LAYERS = 28
GPT_OSS_WINDOW = 128
GREEDY, GROUP_GREEDY = "greedy", "group_limited_greedy"  # in `topk_method`
GEMMA3_PATTERN = 6  # every sixth block sees everything
ALTERNATE_PATTERN = 2  # every second block does
GEMMA2_ATTENTION_CAP, GEMMA2_FINAL_CAP = 50.0, 30.0


def family_fields(read: ConfigReader, architecture: str, num_layers: int) -> Fields:
    """The fields of ModelSpec that only this family has, by name; they replace the common ones.

    Raises SpecError naming file and field.
    """
    return _FAMILIES[architecture](read, num_layers)


def _llama(read: ConfigReader, num_layers: int) -> Fields:
    return {"has_mlp_bias": read.flag("mlp_bias", False)}


def _qwen2(read: ConfigReader, num_layers: int) -> Fields:
    return {"has_qkv_bias": True, "has_output_bias": False, **_qwen_window(read, num_layers)}


def _qwen3(read: ConfigReader, num_layers: int) -> Fields:
    return _qwen_window(read, num_layers)


def _qwen_window(read: ConfigReader, num_layers: int) -> Fields:
    """With windows, the blocks from `max_window_layers` have one."""
    if not read.flag("use_sliding_window", False):
        return {}
    first = read.whole("max_window_layers", QWEN_WINDOW_LAYERS)
    sliding = _sliding_layers(read, num_layers, tuple(range(min(first, num_layers), num_layers)))
    return _window(read, sliding, QWEN_WINDOW)


def _mistral(read: ConfigReader, num_layers: int) -> Fields:
    """The window of the first releases; later files say null."""
    return {**_no_bias(), **_window(read, range(num_layers), MISTRAL_WINDOW)}


def _mixtral(read: ConfigReader, num_layers: int) -> Fields:
    return {
        **_no_bias(),
        **_window(read, range(num_layers), 0),
        **_experts(read, "num_local_experts"),
        "expert_intermediate_size": read.size("intermediate_size"),
    }


def _qwen2_moe(read: ConfigReader, num_layers: int) -> Fields:
    """With windows, of the first `max_window_layers` blocks every second one has one."""
    sliding: tuple[int, ...] = ()
    if read.flag("use_sliding_window", False):
        last = read.whole("max_window_layers", QWEN_WINDOW_LAYERS)
        alternate = _all_but_every(ALTERNATE_PATTERN, num_layers)
        sliding = _sliding_layers(read, num_layers, tuple(i for i in alternate if i < last))
    return {
        "has_qkv_bias": read.flag("qkv_bias", True),
        "has_output_bias": False,
        **_window(read, sliding, QWEN_WINDOW),
        **_qwen_experts(read, num_layers, "qwen2_moe"),
        "shared_intermediate_size": read.size("shared_intermediate_size"),
    }


def _qwen3_moe(read: ConfigReader, num_layers: int) -> Fields:
    sliding = range(num_layers) if read.flag("use_sliding_window", False) else ()
    return {**_window(read, sliding, QWEN_WINDOW), **_qwen_experts(read, num_layers, "qwen3_moe")}


def _deepseek(read: ConfigReader, num_layers: int) -> Fields:
    """V2 and V3: shared experts are of the routed ones' size, the first blocks are dense."""
    frequency = read.config.get("moe_layer_freq", 1)
    if frequency != 1:
        raise SpecError(f"{read.where}: field 'moe_layer_freq' is {frequency!r}", allowed="1")
    if read.config.get("rope_interleave") is False:
        raise SpecError(
            f"{read.where}: field 'rope_interleave' is False", allowed="true: neighbours turn together"
        )
    inner, has_rank = read.size("expert_intermediate_size"), read.config.get("q_lora_rank") is not None
    if "q_lora_rank" not in read.config:
        read.missing("q_lora_rank")
    num_dense = read.whole("first_k_dense_replace")
    return {
        **_experts(read, "n_routed_experts"),
        "expert_intermediate_size": inner,
        "shared_intermediate_size": inner * read.size("n_shared_experts"),
        "dense_layers": tuple(range(min(num_dense, num_layers))),
        "query_rank": read.size("query_rank") if has_rank else 0,
        "key_value_rank": read.size("key_value_rank"),
        "rotary_head_dim": read.size("rotary_head_dim"),
        "value_head_dim": read.size("value_head_dim"),
    }


def _deepseek_v2(read: ConfigReader, num_layers: int) -> Fields:
    """Gates are the probabilities themselves, times a number; groups count by their best expert."""
    _check_text(read, "scoring_func", "softmax")
    method = _check_text(read, "topk_method", GREEDY, GROUP_GREEDY)
    if read.flag("norm_topk_prob", False):
        raise SpecError(
            f"{read.where}: field 'norm_topk_prob' is True", allowed="false, as transformers computes"
        )
    groups = _groups(read, 1, 1) if method == GROUP_GREEDY else (1, 1)
    scale = read.number("routed_scaling_factor", 1.0)
    return {
        **_deepseek(read, num_layers),
        "has_mlp_bias": read.flag("mlp_bias", False),
        **routing_dimensions(
            "deepseek_v2", Routing("softmax", *groups, has_unit_sum=False, gate_scale=scale)
        ),
    }


def _deepseek_v3(read: ConfigReader, num_layers: int) -> Fields:
    """Sigmoids, and corrections of choices in place of a loss that balances (arXiv 2412.19437, section 2.1.2)."""
    _check_text(read, "scoring_func", "sigmoid")
    _check_text(read, "topk_method", "noaux_tc")
    own = ROUTINGS["deepseek_v3"]
    routing = Routing(
        own.scores,
        *_groups(read, own.num_groups, own.num_groups_per_token),
        has_correction=True,
        has_unit_sum=read.flag("norm_topk_prob", True),
        gate_scale=read.number("routed_scaling_factor", own.gate_scale),
    )
    return {**_deepseek(read, num_layers), **routing_dimensions("deepseek_v3", routing)}


def _groups(read: ConfigReader, num_groups: int, num_per_token: int) -> tuple[int, int]:
    return read.size("n_group", num_groups), read.size("topk_group", num_per_token)


def _check_text(read: ConfigReader, name: str, *allowed: str) -> str:
    """One of the `allowed` texts; missing or null is the first."""
    value = read.config.get(name) or allowed[0]
    if value not in allowed:
        raise SpecError(f"{read.where}: field {name!r} is {value!r}", allowed=", ".join(allowed))
    return str(value)


def _gemma(read: ConfigReader, num_layers: int) -> Fields:
    return {}


def _gemma2(read: ConfigReader, num_layers: int) -> Fields:
    sliding = _sliding_layers(read, num_layers, _all_but_every(ALTERNATE_PATTERN, num_layers))
    return {
        **_window(read, sliding, GEMMA_WINDOW),
        **_caps(read, GEMMA2_ATTENTION_CAP, GEMMA2_FINAL_CAP),
    }


def _gemma3(read: ConfigReader, num_layers: int) -> Fields:
    pattern = read.size("sliding_window_pattern", GEMMA3_PATTERN)
    sliding = _sliding_layers(read, num_layers, _all_but_every(pattern, num_layers))
    return {**_window(read, sliding, GEMMA_WINDOW), **_caps(read, 0.0, 0.0)}


def _gpt_oss(read: ConfigReader, num_layers: int) -> Fields:
    for name, computed in (("swiglu_alpha", GATE_ALPHA), ("swiglu_limit", GATE_LIMIT)):
        if read.number(name, computed) != computed:
            raise SpecError(f"{read.where}: field {name!r} is {read.config[name]!r}", allowed=str(computed))
    sliding = _sliding_layers(read, num_layers, _all_but_every(ALTERNATE_PATTERN, num_layers))
    return {
        **_window(read, sliding, GPT_OSS_WINDOW),
        **_experts(read, "num_local_experts"),
        "expert_intermediate_size": read.size("intermediate_size"),
    }


_FAMILIES: Mapping[str, Callable[[ConfigReader, int], Fields]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
}


def _no_bias() -> Fields:
    """Mistral's attention has none whatever the file says."""
    return {"has_qkv_bias": False, "has_output_bias": False}


def _experts(read: ConfigReader, published: str) -> Fields:
    """`published` is what the family's own files call the number; transformers may save another name."""
    is_there = any(read.config.get(name) is not None for name in read.fields["num_experts"])
    num_experts = read.size("num_experts" if is_there else published)
    return {"num_experts": num_experts, "num_experts_per_token": read.size("num_experts_per_token")}


def _qwen_experts(read: ConfigReader, num_layers: int, architecture: str) -> Fields:
    """Every block has experts, or every `decoder_sparse_step`-th, except those of `mlp_only_layers`."""
    step, dense = read.size("decoder_sparse_step", 1), read.blocks("mlp_only_layers")
    return {
        **_experts(read, "num_experts"),
        "expert_intermediate_size": read.size("expert_intermediate_size"),
        **routing_dimensions(architecture, Routing(has_unit_sum=read.flag("norm_topk_prob", False))),
        "dense_layers": tuple(i for i in range(num_layers) if i in dense or (i + 1) % step),
    }


def _window(read: ConfigReader, layers: range | tuple[int, ...], default: int) -> Fields:
    """`sliding_window` tokens in `layers`; null or zero means that all blocks see everything."""
    window = read.whole("sliding_window", default)
    if window == 0 or not layers:
        return {}
    return {"sliding_window": window, "sliding_layers": tuple(layers)}


def _all_but_every(pattern: int, num_layers: int) -> tuple[int, ...]:
    return tuple(block for block in range(num_layers) if (block + 1) % pattern)


def _sliding_layers(read: ConfigReader, num_layers: int, default: tuple[int, ...]) -> tuple[int, ...]:
    """The blocks that `layer_types` calls sliding; without that list `default`."""
    kinds = read.config.get("layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise SpecError(
            f"{read.where}: field 'layer_types' is {kinds!r}",
            allowed=f"a list of {num_layers} kinds of attention",
        )
    if not set(kinds) <= {SLIDING, FULL}:
        raise SpecError(f"{read.where}: field 'layer_types' has {kinds!r}", allowed=f"{FULL}, {SLIDING}")
    return tuple(block for block, kind in enumerate(kinds) if kind == SLIDING)


def _caps(read: ConfigReader, attention: float, final: float) -> Fields:
    """Caps of scores and logits; null is no cap, a missing field the family's."""
    caps = {"attention_logit_cap": attention, "final_logit_cap": final}
    names = {"attention_logit_cap": "attn_logit_softcapping", "final_logit_cap": "final_logit_softcapping"}
    for field, name in names.items():
        if name in read.config:
            caps[field] = 0.0 if read.config[name] is None else read.number(name, 0.0)
    return caps
