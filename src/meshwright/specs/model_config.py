"""Reading a model's dimensions from a Hugging Face config.json: GPT-2, Llama, Qwen2 and Qwen3 (dense)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from meshwright.specs.error import SpecError, near_matches
from meshwright.specs.model import ARCHITECTURES, Architecture, ModelSpec

# Fields of config.json by the ModelSpec field they give. GPT-2 has its own names and accepts the common ones.
_GPT2_FIELDS = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_layers": ("n_layer", "num_hidden_layers"),
    "num_heads": ("n_head", "num_attention_heads"),
    "vocabulary_size": ("vocab_size",),
    "max_sequence_length": ("n_positions", "max_position_embeddings"),
    "intermediate_size": ("n_inner",),
}
_LLAMA_FIELDS = {
    "hidden_size": ("hidden_size",),
    "num_layers": ("num_hidden_layers",),
    "num_heads": ("num_attention_heads",),
    "num_kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "vocabulary_size": ("vocab_size",),
    "max_sequence_length": ("max_position_embeddings",),
    "intermediate_size": ("intermediate_size",),
}
GPT2_MLP_RATIO = 4  # n_inner left out means 4 * n_embd (transformers, GPT2Config)
QWEN3_HEAD_DIM = 128  # head_dim left out (transformers, Qwen3Config)
ROPE_THETA = 10_000.0  # base of rotary positions when left out (transformers, PreTrainedConfig)
_EPSILON = {
    "gpt2": 1e-5,
    "llama": 1e-6,
    "qwen2": 1e-6,
    "qwen3": 1e-6,
}  # transformers, the four Config classes
_GATED_ACTIVATIONS = ("silu", "swish")


class _Reader(NamedTuple):
    """One config.json: its fields, the name of the file for messages, and the field names of its family."""

    config: Mapping[str, Any]
    where: str
    fields: Mapping[str, tuple[str, ...]]

    def size(self, field: str, default: int | None = None) -> int:
        """A whole number from 1; missing or null takes `default`, and is an error where there is none."""
        names = self.fields[field]
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
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise SpecError(f"{self.where}: field {name!r} is {value!r}", allowed="a positive number")
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
        return _gpt2(_Reader(config, where, _GPT2_FIELDS), name)
    return _llama(_Reader(config, where, _LLAMA_FIELDS), architecture, name)


def _architecture(config: Mapping[str, Any], where: str) -> Architecture:
    given = config.get("model_type")
    for architecture in ARCHITECTURES:
        if given == architecture:
            return architecture
    state = f"is {given!r}" if "model_type" in config else "is missing"
    raise SpecError(
        f"{where}: field 'model_type' {state}",
        allowed=", ".join(ARCHITECTURES),
        next="a dense model of another family can be given by its dimensions with ModelSpec.decoder(...)",
    )


def _gpt2(read: _Reader, name: str) -> ModelSpec:
    hidden, heads = read.size("hidden_size"), read.size("num_heads")
    if hidden % heads:
        raise SpecError(
            f"{read.where}: n_embd {hidden} does not divide into n_head {heads}",
            allowed="a number of heads that divides the hidden size",
        )
    if read.flag("add_cross_attention", False):
        raise SpecError(f"{read.where}: 'add_cross_attention' is true", allowed="decoder-only models")
    return ModelSpec(
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
        norm_epsilon=read.number("layer_norm_epsilon", _EPSILON["gpt2"]),
        source=read.where,
    )


def _llama(read: _Reader, architecture: Architecture, name: str) -> ModelSpec:
    activation = read.config.get("hidden_act", "silu")
    if activation not in _GATED_ACTIVATIONS:
        raise SpecError(f"{read.where}: field 'hidden_act' is {activation!r}", allowed="silu")
    hidden, heads = read.size("hidden_size"), read.size("num_heads")
    has_attention_bias = architecture != "qwen2" and read.flag("attention_bias", False)
    return ModelSpec(
        name=name,
        architecture=architecture,
        num_layers=read.size("num_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_num_kv_heads(read, architecture, heads),
        head_dim=_head_dim(read, architecture, hidden, heads),
        intermediate_size=read.size("intermediate_size"),
        vocabulary_size=read.size("vocabulary_size"),
        max_sequence_length=read.size("max_sequence_length"),
        has_tied_embeddings=read.flag("tie_word_embeddings", False),
        has_qkv_bias=has_attention_bias or architecture == "qwen2",
        has_output_bias=has_attention_bias,
        has_mlp_bias=architecture == "llama" and read.flag("mlp_bias", False),
        has_query_key_norm=architecture == "qwen3",
        norm_epsilon=read.number("rms_norm_eps", _EPSILON[architecture]),
        rope_theta=_rope_theta(read),
        source=read.where,
    )


def _num_kv_heads(read: _Reader, architecture: Architecture, num_heads: int) -> int:
    """Llama without the field has as many as heads; Qwen's published files always say, null means as many."""
    is_optional = architecture == "llama" or "num_key_value_heads" in read.config
    return read.size("num_kv_heads", num_heads if is_optional else None)


def _head_dim(read: _Reader, architecture: Architecture, hidden: int, num_heads: int) -> int:
    """Given, or Qwen3's default, or the hidden size over the heads."""
    if read.config.get("head_dim") is None and architecture != "qwen3" and hidden % num_heads:
        raise SpecError(
            f"{read.where}: hidden_size {hidden} does not divide into num_attention_heads {num_heads}",
            allowed="a number of heads that divides the hidden size, or a field 'head_dim'",
        )
    return read.size("head_dim", QWEN3_HEAD_DIM if architecture == "qwen3" else hidden // num_heads)


def _rope_theta(read: _Reader) -> float:
    """`rope_theta`, since transformers 5 inside `rope_parameters`."""
    parameters = read.config.get("rope_parameters")
    if isinstance(parameters, Mapping) and "rope_theta" in parameters:
        return read._replace(config=parameters).number("rope_theta", ROPE_THETA)
    return read.number("rope_theta", ROPE_THETA)
