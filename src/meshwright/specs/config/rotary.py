"""Scaled rotary frequencies in a Hugging Face config.json: read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.specs.config.reader import ConfigReader
from meshwright.specs.error import SpecError
from meshwright.specs.model.rotary_scaling import LLAMA3, ROTARY_SCALINGS, YARN, RotaryScaling

_UNSCALED = ("default", "")
_KNOWN = {
    *("rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
    *("original_max_position_embeddings", "partial_rotary_factor"),
}
_KNOWN_OF_YARN = {*("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate")}
BETA_FAST, BETA_SLOW = 32.0, 1.0  # turns, where a file does not say them


def rotary_fields(read: ConfigReader) -> dict[str, Any]:
    """The dimensions of a model for `rope_scaling`, since transformers 5 in `rope_parameters`.

    A kind that the executor does not compute is kept by name, so that such a model can be planned.

    Raises:
        SpecError: a part of the head does not turn, or a number is missing.
    """
    given = _given(read)
    inner = read._replace(config=given, where=f"{read.where}: {_name(read.config)}")
    for source in (inner, read):
        if source.config.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise SpecError(
                f"{source.where}: field 'partial_rotary_factor' is {source.config['partial_rotary_factor']!r}",
                allowed="1.0: all numbers of a head turn",
            )
    kind = given.get("rope_type") or given.get("type") or ""
    if kind in _UNSCALED:
        return {}
    if kind not in ROTARY_SCALINGS:
        return {"rope_scaling": str(kind)}
    known = _KNOWN | (_KNOWN_OF_YARN if kind == YARN else set())
    unknown = sorted(key for key in given if key not in known and given[key] is not None)
    if unknown:
        raise SpecError(f"{inner.where}: unknown field {unknown[0]!r}", allowed=", ".join(sorted(known)))
    if kind == YARN:
        return _yarn_fields(read, inner)
    fields: dict[str, Any] = {"rope_scaling": kind, "rope_factor": _needed(inner, "factor")}
    if kind == LLAMA3:
        length = read.size("max_sequence_length")
        fields["rope_low_factor"] = _needed(inner, "low_freq_factor")
        fields["rope_high_factor"] = _needed(inner, "high_freq_factor")
        fields["rope_original_length"] = inner.size("original_max_position_embeddings", length)
    return fields


def _yarn_fields(read: ConfigReader, inner: ConfigReader) -> dict[str, Any]:
    """As transformers reads them: a factor that is null is that of the model's length over the original one."""
    length = read.size("max_sequence_length")
    original = inner.size("original_max_position_embeddings", length)
    return {
        "rope_scaling": YARN,
        "rope_factor": inner.number("factor", length / original),
        "rope_low_factor": inner.number("beta_slow", BETA_SLOW),
        "rope_high_factor": inner.number("beta_fast", BETA_FAST),
        "rope_original_length": original,
        "rope_attention_factor": inner.number("attention_factor", 0.0),
        "rope_magnitude": _from_zero(inner, "mscale"),
        "rope_all_magnitude": _from_zero(inner, "mscale_all_dim"),
        "has_whole_rope_ramp": inner.flag("truncate", True),
    }


def _from_zero(read: ConfigReader, name: str) -> float:
    """A number from 0, which is none."""
    return read.number(name, 0.0) if read.config.get(name) else 0.0


def rotary_config(scaling: RotaryScaling) -> dict[str, Any]:
    """The field `rope_scaling` of a config.json that says this."""
    said: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == LLAMA3:
        said["low_freq_factor"], said["high_freq_factor"] = scaling.low_factor, scaling.high_factor
        said["original_max_position_embeddings"] = scaling.original_length
    return said if scaling.kind != YARN else {**said, **_yarn_config(scaling)}


def _yarn_config(scaling: RotaryScaling) -> dict[str, Any]:
    """Numbers that are 0 are left out: transformers then takes what follows from the others."""
    numbers = {
        "attention_factor": scaling.attention_factor,
        "mscale": scaling.magnitude,
        "mscale_all_dim": scaling.all_magnitude,
    }
    return {
        "beta_slow": scaling.low_factor,
        "beta_fast": scaling.high_factor,
        "original_max_position_embeddings": scaling.original_length,
        "truncate": scaling.is_whole,
        **{name: value for name, value in numbers.items() if value},
    }


def _name(config: Mapping[str, Any]) -> str:
    return "rope_scaling" if config.get("rope_scaling") else "rope_parameters"


def _given(read: ConfigReader) -> Mapping[str, Any]:
    given = read.config.get(_name(read.config)) or {}
    if not isinstance(given, Mapping) or any(isinstance(value, Mapping) for value in given.values()):
        raise SpecError(
            f"{read.where}: field {_name(read.config)!r} is {given!r}", allowed="one table for all blocks"
        )
    return given


def _needed(read: ConfigReader, name: str) -> float:
    if read.config.get(name) is None:
        raise SpecError(f"{read.where}: field {name!r} is missing", allowed="a positive number")
    return read.number(name, 1.0)
