"""FamilyTraits: what the layers of a served model compute that its dimensions do not say."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.model.rotary_scaling import RotaryScaling


@dataclass(frozen=True)
class FamilyTraits:
    """A Llama's where nothing is said.

    Args:
        embedding_scale: what a token's row is multiplied by.
        scored_dim: scores are divided by its root; 0: by that of a head's numbers.
        window_theta: the base of rotary frequencies in layers with a window; 0: as in the others.
        whole_scaling: how the frequencies of layers without a window are changed.
        has_gelu_gate: the gate goes through GELU (by tanh) in place of SiLU.
    """

    embedding_scale: float = 1.0
    scored_dim: float = 0.0
    window_theta: float = 0.0
    whole_scaling: RotaryScaling | None = None
    has_gelu_gate: bool = False


LLAMA = FamilyTraits()
