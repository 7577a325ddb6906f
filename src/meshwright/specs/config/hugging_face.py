"""Reading a model's dimensions from a Hugging Face config.json: GPT-2, and the families that descend from Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.specs.config.family import family_fields
from meshwright.specs.config.reader import DECODER_FIELDS, GPT2_FIELDS, ConfigReader
from meshwright.specs.config.rotary import rotary_fields
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.shape import ARCHITECTURES, Architecture

# What a missing field means, by family (transformers 5, the Config classes).
GPT2_MLP_RATIO = 4  # n_inner left out means 4 * n_embd
_HEAD_DIMS = {"qwen3": 128, "gemma": 256, "gemma2": 256, "gemma3_text": 256, "gpt_oss": 64}
_ROPE_THETAS = {"mixtral": 1e6, "gemma3_text": 1e6, "gpt_oss": 150_000.0}  # the others 10,000
ROPE_THETA = 10_000.0
_EPSILONS = {"gpt2": 1e-5, "mixtral": 1e-5, "gpt_oss": 1e-5}  # the others 1e-6
EPSILON = 1e-6
# Scaled frequencies change no cost, so they are not read where the executor runs no such model.
_UNSCALED = ("gemma", "gemma2", "gemma3_text")
# What a file of the family without either field means.
_SCALED = {
    "gpt_oss": {
        "rope_type": "yarn",
        "factor": 32.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
}
_GATED_ACTIVATIONS = ("silu", "swish")
_GPT2_ACTIVATIONS = {
    "gelu_new": "",
    "gelu_pytorch_tanh": "",
    "gelu_fast": "",
    "gelu": "gelu",
    "gelu_python": "gelu",
}
# Families under a name of their own whose files say the same as another's: Kimi K2 runs as deepseek_v3 by its own guide
# (docs/deploy_guidance.md of MoonshotAI/Kimi-K2).
SAME_AS: Mapping[str, Architecture] = {"kimi_k2": "deepseek_v3"}
# What families lack here that people ask for: their blocks are none of those that a ModelSpec can have.
LACKING: Mapping[str, str] = {
    "gemma3": "a model of pictures and text; its text_config, whose model_type is gemma3_text, is read as a config.json",
    "llama4": "a model of pictures and text, whose text has attention within chunks and blocks without positions",
    "llama4_text": "attention within chunks and blocks without positions are not known here",
    "qwen3_next": "blocks of linear attention (gated delta rule) and gated attention are not known here",
    "glm4_moe": "positions that turn a part of each head (partial_rotary_factor) are not known here",
}
_GEMMA_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")  # "gelu" in files of Gemma 1 means the former


def model_from_config(
    config: Mapping[str, Any], *, name: str = "model", where: str = "config.json"
) -> ModelSpec:
    """ModelSpec of the fields of a config.json.

    Args:
        config: the parsed file.
        name: what to call the model.
        where: the file as the user knows it, for messages.

    Raises SpecError naming file, field and what is allowed.
    """
    architecture = _architecture(config, where)
    if architecture == "gpt2":
        return _gpt2(ConfigReader(config, where, GPT2_FIELDS), name)
    return _decoder(ConfigReader(config, where, DECODER_FIELDS), architecture, name)


def _architecture(config: Mapping[str, Any], where: str) -> Architecture:
    given = config.get("model_type")
    for architecture in ARCHITECTURES:
        if given == architecture:
            return architecture
    if given in SAME_AS:
        return SAME_AS[str(given)]
    state = f"is {given!r}" if "model_type" in config else "is missing"
    if given in LACKING:
        raise SpecError(
            f"{where}: field 'model_type' {state}: {LACKING[str(given)]}", allowed=", ".join(ARCHITECTURES)
        )
    if config.get("is_encoder_decoder"):
        raise SpecError(
            f"{where}: field 'model_type' {state}, an encoder-decoder",
            allowed=", ".join(ARCHITECTURES),
            next="encoder-decoders of Llama's blocks are trained: a llama config.json with num_encoder_layers beside "
            "num_hidden_layers, which counts both halves",
        )
    raise SpecError(
        f"{where}: field 'model_type' {state}",
        allowed=", ".join(ARCHITECTURES),
        next="a dense model of another family can be given by its dimensions with ModelSpec.decoder(...)",
    )


def _gpt2(read: ConfigReader, name: str) -> ModelSpec:
    hidden, heads = read.size("hidden_size"), read.size("num_heads")
    if hidden % heads:
        raise SpecError(
            f"{read.where}: n_embd {hidden} does not divide into n_head {heads}",
            allowed="a number of heads that divides the hidden size",
        )
    if read.flag("add_cross_attention", False):
        raise SpecError(f"{read.where}: 'add_cross_attention' is true", allowed="decoder-only models")
    for field, usual in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        if read.flag(field, usual) is not usual:
            raise SpecError(f"{read.where}: field {field!r} is {not usual}", allowed=str(usual).lower())
    activation = read.config.get("activation_function") or "gelu_new"
    if activation not in _GPT2_ACTIVATIONS:
        raise SpecError(
            f"{read.where}: field 'activation_function' is {activation!r}",
            allowed=", ".join(_GPT2_ACTIVATIONS),
        )
    return ModelSpec.of_dimensions(
        name=name,
        architecture="gpt2",
        num_layers=read.size("num_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=read.size("intermediate_size", GPT2_MLP_RATIO * hidden),
        vocabulary_size=read.size("vocabulary_size"),
        max_sequence_length=read.size("max_sequence_length"),
        has_tied_embeddings=read.flag("tie_word_embeddings", True),
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        norm_epsilon=read.number("layer_norm_epsilon", _EPSILONS["gpt2"]),
        activation=_GPT2_ACTIVATIONS[activation],
        source=read.where,
    )


def _decoder(read: ConfigReader, architecture: Architecture, name: str) -> ModelSpec:
    _check_activation(read, architecture)
    hidden, heads = read.size("hidden_size"), read.size("num_heads")
    has_attention_bias = read.flag("attention_bias", architecture == "gpt_oss")
    fields: dict[str, Any] = {
        "num_layers": read.size("num_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": _num_kv_heads(read, architecture, heads),
        "head_dim": _head_dim(read, architecture, heads),
        "intermediate_size": read.size("intermediate_size"),
        "vocabulary_size": read.size("vocabulary_size"),
        "max_sequence_length": read.size("max_sequence_length"),
        "has_tied_embeddings": read.flag("tie_word_embeddings", architecture.startswith("gemma")),
        "has_qkv_bias": has_attention_bias,
        "has_output_bias": has_attention_bias,
        "has_query_key_norm": architecture in ("qwen3", "qwen3_moe", "gemma3_text"),
        "norm_epsilon": read.number("rms_norm_eps", _EPSILONS.get(architecture, EPSILON)),
        "rope_theta": _rope_theta(read, _ROPE_THETAS.get(architecture, ROPE_THETA)),
        # ours alone: no published family has an encoder of such blocks
        "num_encoder_layers": read.whole("num_encoder_layers", 0),
    }
    if architecture not in _UNSCALED:
        is_said = read.config.get("rope_scaling") or read.config.get("rope_parameters")
        default = {} if is_said else {"rope_scaling": _SCALED.get(architecture)}
        fields |= rotary_fields(read._replace(config={**read.config, **default}))
    fields |= family_fields(read, architecture, fields["num_layers"])
    return ModelSpec.of_dimensions(name=name, architecture=architecture, source=read.where, **fields)


def _check_activation(read: ConfigReader, architecture: Architecture) -> None:
    allowed = _GEMMA_ACTIVATIONS if architecture.startswith("gemma") else _GATED_ACTIVATIONS
    for field in ("hidden_act", "hidden_activation"):
        activation = read.config.get(field)
        if activation is not None and activation not in allowed:
            raise SpecError(f"{read.where}: field {field!r} is {activation!r}", allowed=allowed[0])


def _num_kv_heads(read: ConfigReader, architecture: Architecture, num_heads: int) -> int:
    """Llama without the field has as many as heads; the others' files always say, null means as many.

    Latent attention makes keys and values for every head.
    """
    if architecture.startswith("deepseek"):
        return num_heads
    is_optional = architecture == "llama" or "num_key_value_heads" in read.config
    return read.size("num_kv_heads", num_heads if is_optional else None)


def _head_dim(read: ConfigReader, architecture: Architecture, num_heads: int) -> int:
    """Given, or the family's default, or the hidden size over the heads; of latent attention both parts."""
    if architecture.startswith("deepseek"):
        return read.size("qk_nope_head_dim") + read.size("rotary_head_dim")
    hidden = read.size("hidden_size")
    if read.config.get("head_dim") is None and architecture not in _HEAD_DIMS and hidden % num_heads:
        raise SpecError(
            f"{read.where}: hidden_size {hidden} does not divide into num_attention_heads {num_heads}",
            allowed="a number of heads that divides the hidden size, or a field 'head_dim'",
        )
    return read.size("head_dim", _HEAD_DIMS.get(architecture, hidden // num_heads))


def _rope_theta(read: ConfigReader, default: float) -> float:
    """`rope_theta`, since transformers 5 inside `rope_parameters`; of Gemma 3 that of full attention."""
    parameters = read.config.get("rope_scaling") or read.config.get("rope_parameters")
    if isinstance(parameters, Mapping) and isinstance(parameters.get("full_attention"), Mapping):
        parameters = parameters["full_attention"]
    if isinstance(parameters, Mapping) and "rope_theta" in parameters:
        return read._replace(config=parameters).number("rope_theta", default)
    return read.number("rope_theta", default)
