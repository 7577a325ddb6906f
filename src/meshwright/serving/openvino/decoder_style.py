"""What the families that are served here do differently within a block, beside the sizes that a ModelSpec says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshwright.specs.config.export import check_weights_config
from meshwright.specs.error import SpecError
from meshwright.specs.model.block import Attention
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.model.rotary_scaling import LINEAR, RotaryScaling, rotary_frequencies

GEMMA3 = "gemma3_text"
# Gemma3TextConfig of transformers 5.
GEMMA3_LOCAL_THETA, GEMMA3_QUERY_SCALAR = 10_000.0, 256.0


@dataclass(frozen=True)
class Rotary:
    """How positions turn the heads of one kind of block."""

    theta: float
    scaling: RotaryScaling | None = None

    def frequencies(self, head_dim: int) -> tuple[float, ...]:
        """Of each pair, radians a token."""
        return rotary_frequencies(head_dim, self.theta, self.scaling)


@dataclass(frozen=True)
class DecoderStyle:
    """A Llama unless something else is said.

    Args:
        rotary: of blocks that see everything.
        local_rotary: of blocks with a window.
        query_scalar: scores are divided by its square root; 0: by that of the width of a head.
        activation: of the gate.
        norm_offset: added to the weights of norms.
        embedding_scale: by which embeddings are multiplied.
        has_result_norms: are the results of attention and MLP normed before they are added to the residual stream?
    """

    rotary: Rotary
    local_rotary: Rotary
    query_scalar: float = 0.0
    activation: Literal["silu", "gelu_tanh"] = "silu"
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    has_result_norms: bool = False

    def rotary_of(self, attention: Attention) -> Rotary:
        """How positions turn the heads of this attention."""
        return self.local_rotary if attention.window else self.rotary

    def score_scale(self, attention: Attention) -> float:
        """What products of queries and keys are multiplied by."""
        return float((self.query_scalar or attention.head_dim) ** -0.5)


def decoder_style(model: ModelSpec, config: Mapping[str, Any], where: str) -> DecoderStyle:
    """The style of a served model by its config.json.

    Raises:
        SpecError: a field may change what is computed and is not known here.
    """
    if model.architecture == GEMMA3:
        return _gemma3_style(model, config, where)
    check_weights_config(config, model.architecture, where)
    rotary = Rotary(model.rope_theta, model.rotary_scaling)
    return DecoderStyle(rotary, rotary)


def _gemma3_style(model: ModelSpec, config: Mapping[str, Any], where: str) -> DecoderStyle:
    if config.get("use_bidirectional_attention"):
        raise SpecError(f"{where}: 'use_bidirectional_attention' is set", allowed="nothing there")
    kinds = config.get("rope_parameters") or {}
    full = config.get("rope_scaling") or kinds.get("full_attention") or {}
    local = kinds.get("sliding_attention") or {}
    local_theta = local.get("rope_theta") or config.get("rope_local_base_freq") or GEMMA3_LOCAL_THETA
    return DecoderStyle(
        rotary=Rotary(model.rope_theta, _linear_scaling(full, where)),
        local_rotary=Rotary(float(local_theta), _linear_scaling(local, where)),
        query_scalar=float(config.get("query_pre_attn_scalar") or GEMMA3_QUERY_SCALAR),
        activation="gelu_tanh",
        norm_offset=1.0,
        embedding_scale=math.sqrt(model.hidden_size),
        has_result_norms=True,
    )


def _linear_scaling(fields: Mapping[str, Any], where: str) -> RotaryScaling | None:
    """Gemma 3 stretches all frequencies of its full attention by one factor, or none."""
    kind = fields.get("rope_type") or fields.get("type") or "default"
    if kind == "default":
        return None
    if kind != LINEAR:
        raise SpecError(f"{where}: rotary scaling is {kind!r}", allowed=f"{LINEAR}, default")
    return RotaryScaling(LINEAR, factor=float(fields["factor"]))
