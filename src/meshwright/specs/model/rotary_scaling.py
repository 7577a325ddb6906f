"""Rotary frequencies, and how they are stretched for sequences longer than those of pre-training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.specs.error import SpecError

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

    def scaled(self, frequency: float) -> float:
        """The frequency that takes the place of this one (radians a token). Raises SpecError for a kind not known here."""
        if self.kind == LINEAR:
            return frequency / self.factor
        if self.kind != LLAMA3:
            raise SpecError(
                f"rotary scaling {self.kind!r} is not computed here", allowed=", ".join(ROTARY_SCALINGS)
            )
        turns = self.original_length * frequency / (2 * math.pi)  # within the length of pre-training
        kept = (turns - self.low_factor) / (self.high_factor - self.low_factor)
        slow = frequency / self.factor
        return slow + min(max(kept, 0.0), 1.0) * (frequency - slow)


def rotary_frequencies(
    head_dim: int, theta: float, scaling: RotaryScaling | None = None
) -> tuple[float, ...]:
    """The angle of each of head_dim / 2 pairs at position 1, in radians. Raises as `RotaryScaling.scaled`."""
    plain = (theta ** (-pair / head_dim) for pair in range(0, head_dim, 2))
    return tuple(scaling.scaled(frequency) if scaling else frequency for frequency in plain)
