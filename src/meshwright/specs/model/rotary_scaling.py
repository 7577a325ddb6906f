"""Rotary frequencies stretched for sequences longer than those of pre-training."""

from __future__ import annotations

from dataclasses import dataclass

LINEAR, LLAMA3 = "linear", "llama3"
ROTARY_SCALINGS = (LINEAR, LLAMA3)  # those the executor computes; others are known by their name only


@dataclass(frozen=True)
class RotaryScaling:
    """`kind` "linear": all frequencies over `factor`. "llama3": those whose wavelength is above
    `original_length` / `low_factor` tokens over `factor`, those below `original_length` / `high_factor` as they
    are, those between blended linearly in `original_length` / wavelength (Llama 3.1).
    """

    kind: str
    factor: float = 1.0
    low_factor: float = 1.0
    high_factor: float = 1.0
    original_length: int = 0
