"""Gemma 3 (arXiv 2503.19786), text alone: served from a folder of Hugging Face, whose file says more than dimensions.

Norms stand before and behind attention and MLP, and multiply by one and their weight; layers with a window have a base of
rotary frequencies of their own, and only those without one are stretched; the gate is a GELU's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.models.weights.expert_name import published_shapes
from meshwright.executor.models.weights.hugging_face import HuggingFaceSource, TensorFolder
from meshwright.executor.models.weights.parameter_map import NameMap
from meshwright.executor.serving.family_traits import FamilyTraits
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.parameter_name import LLAMA_MODULES
from meshwright.specs.model.rotary_scaling import LINEAR, RotaryScaling

GEMMA3 = "gemma3_text"
_LAYER = "model.layers.{}"
MODULES: Mapping[str, tuple[str, ...]] = {
    **LLAMA_MODULES,
    "layers.{}.attention_result_norm": (f"{_LAYER}.post_attention_layernorm",),
    "layers.{}.mlp_norm": (f"{_LAYER}.pre_feedforward_layernorm",),
    "layers.{}.mlp_result_norm": (f"{_LAYER}.post_feedforward_layernorm",),
}
# What a missing field means (transformers 5, Gemma3TextConfig).
LOCAL_THETA, SCORED_DIM = 10_000.0, 256.0
WHOLE, WINDOW = "full_attention", "sliding_attention"


class GemmaNames(NameMap):
    """Names of its parameters: the executor trains no such blocks, so its own map does not have them."""

    def __init__(self, model: ModelSpec) -> None:
        self.model, self._modules = model, MODULES
        self.shapes, self.constants = published_shapes(model), {}


def names_of(model: ModelSpec) -> NameMap:
    """The names of the parameters of any model that is served."""
    return GemmaNames(model) if model.architecture == GEMMA3 else NameMap(model)


class GemmaSource(HuggingFaceSource):
    """Its folder. Norms have one added, and stay wide: 16 bits would round what is beside the one away."""

    def value(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `ParameterSource`."""
        if "norm" not in name:
            return super().value(name, shape, dtype)
        return 1.0 + super().value(name, shape, torch.promote_types(dtype, torch.float32))


def open_gemma(
    folder: str | os.PathLike[str],
    model: ModelSpec,
    config: Mapping[str, Any],
    weights: TensorFolder | None = None,
) -> tuple[GemmaSource, FamilyTraits]:
    """Where its parameters come from, and what its layers compute.

    Raises:
        SpecError: frequencies are stretched in a way that is not known here.
    """
    told = config.get("rope_parameters")
    by_kind = told if isinstance(told, Mapping) and WHOLE in told else {}
    whole = by_kind.get(WHOLE) or config.get("rope_scaling") or {}
    local = (by_kind.get(WINDOW) or {}).get("rope_theta") or config.get("rope_local_base_freq") or LOCAL_THETA
    kind = whole.get("rope_type") or whole.get("type") or "default"
    if kind not in ("default", LINEAR):
        raise SpecError(f"{folder}: {kind!r} rotary scaling of a {GEMMA3} model", allowed=f"none, {LINEAR}")
    scaling = RotaryScaling(LINEAR, factor=float(whole["factor"])) if kind == LINEAR else None
    traits = FamilyTraits(
        embedding_scale=model.hidden_size**0.5,
        scored_dim=float(config.get("query_pre_attn_scalar") or SCORED_DIM),
        window_theta=float(local),
        whole_scaling=scaling,
        has_gelu_gate=True,
    )
    return GemmaSource(folder, model, GemmaNames(model), weights), traits
