"""What a model's config.json says of how its weights were quantised, as the layout in which they lie; what is not read is
refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwright.serving.stored.packed_weights import (
    AwqLayout,
    GptqLayout,
    PackedLayout,
    ScaledLayout,
    WeightLayout,
)
from meshwright.specs.error import SpecError

FIELDS = ("quantization_config", "compression_config")  # the second in older folders of compressed-tensors
GPTQ_BITS = (2, 4, 8)
FIRST_GPTQ, SECOND_GPTQ = "gptq", "gptq_v2"
PACKED, SCALED = "pack-quantized", ("float-quantized", "int-quantized", "naive-quantized")
OTHERWISE = "serve a folder of the model in bfloat16, or another quantised one"
Fields = Mapping[str, Any]


def quantisation_of(config: Fields) -> Fields:
    """The fields that say how weights were quantised; empty: they were not."""
    return next((config[name] for name in FIELDS if config.get(name)), {})


def without_quantisation(config: Fields) -> dict[str, Any]:
    """The other fields of a config.json."""
    return {name: value for name, value in config.items() if name not in FIELDS}


def method_of(config: Fields) -> str:
    """What quantised the weights, by the field's name for it; empty: nothing."""
    return str(quantisation_of(config).get("quant_method", "")).lower()


def layout_of(config: Fields, where: str) -> WeightLayout:
    """How the quantised weights of a model lie in its files.

    Raises:
        SpecError: the method, or what it was told, is not read here.
    """
    method, told = method_of(config), quantisation_of(config)
    if method not in LAYOUTS:
        raise SpecError(
            f"{where}: weights quantised by {method or 'nobody named'} are not read",
            allowed=", ".join(LAYOUTS), next=OTHERWISE,
        )  # fmt: skip
    return LAYOUTS[method](told, f"{where}: weights quantised by {method}")


def _awq(told: Fields, what: str) -> WeightLayout:
    version = str(told.get("version") or told.get("format") or "gemm").lower()
    _check(what, told.get("backend") != "llm-awq" and version == "gemm", f"version {version}", "gemm")
    _check(what, told.get("bits", 4) == 4, f"{told.get('bits')} bits", "4")
    _check(what, told.get("zero_point", True), "no zero points", "zero_point: true")
    return AwqLayout()


def _gptq(told: Fields, what: str) -> WeightLayout:
    version = str(told.get("checkpoint_format") or FIRST_GPTQ).lower()
    _check(
        what, version in (FIRST_GPTQ, SECOND_GPTQ), f"in the format {version}", f"{FIRST_GPTQ}, {SECOND_GPTQ}"
    )
    bits = told.get("bits", 4)
    _check(what, bits in GPTQ_BITS, f"{bits} bits", ", ".join(map(str, GPTQ_BITS)))
    _check(what, not told.get("dynamic"), "rules of its own for some modules (dynamic)", "the same for all")
    return GptqLayout(bits, 1 if version == FIRST_GPTQ else 0)


def _float8(told: Fields, what: str) -> WeightLayout:
    experts = told.get("expert_dtype", "fp8")
    _check(what, experts == "fp8", f"experts in {experts}", "fp8")
    return ScaledLayout(tuple(told.get("weight_block_size") or ()))


def _compressed(told: Fields, what: str) -> WeightLayout:
    groups = list((told.get("config_groups") or {}).values())
    formats = {str(told.get("format"))} | {str(group["format"]) for group in groups if group.get("format")}
    formats -= {"None", "mixed-precision"}
    _check(
        what, formats == {PACKED} or bool(formats) and formats <= set(SCALED),
        f"format {' and '.join(sorted(formats)) or 'unnamed'}", f"{PACKED}, or {', '.join(SCALED)}",
    )  # fmt: skip
    for name in ("sparsity_config", "transform_config"):
        changed = told.get(name)
        is_off = not changed or changed.get("format") == "dense"
        _check(what, is_off, f"{name} {changed}", "none")
    if formats == {PACKED}:
        return PackedLayout()
    blocks = {tuple((group.get("weights") or {}).get("block_structure") or ()) for group in groups}
    _check(what, len(blocks) <= 1, f"blocks of several sizes {sorted(blocks)}", "one size")
    return ScaledLayout(*blocks)


def _check(what: str, is_read: bool, found: str, allowed: str) -> None:
    if not is_read:
        raise SpecError(f"{what}: {found}", allowed=allowed, next=OTHERWISE)


LAYOUTS: Mapping[str, Callable[[Fields, str], WeightLayout]] = {
    "awq": _awq, "gptq": _gptq, "fp8": _float8, "fbgemm_fp8": _float8, "compressed-tensors": _compressed,
}  # fmt: skip
