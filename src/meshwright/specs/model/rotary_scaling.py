"""Rotary frequencies, and how they are stretched for sequences longer than those of pre-training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.specs.error import SpecError

LINEAR, LLAMA3, YARN = "linear", "llama3", "yarn"
ROTARY_SCALINGS = (LINEAR, LLAMA3, YARN)  # those the executor computes; others are known by their name only
MAGNITUDE = (
    0.1  # what turns grows by this much with each e-fold of the length (YaRN, arXiv 2309.00071, equation 22)
)
LEAST_RAMP = 1e-3  # pairs over which a ramp rises whose ends meet, as transformers has it


@dataclass(frozen=True)
class RotaryScaling:
    """`kind` "linear": all frequencies over `factor`. "llama3": those whose wavelength is above
    `original_length` / `low_factor` tokens over `factor`, those below `original_length` / `high_factor` as they
    are, those between blended linearly in `original_length` / wavelength (Llama 3.1).

    "yarn" (Peng et al. 2023, arXiv 2309.00071): between the same two, here of `low_factor` and `high_factor` turns within
    `original_length` (its beta slow and fast), blended linearly in the number of the pair, whose ends are whole numbers where
    `is_whole`. What turns is multiplied by `attention_factor` (0: by what follows from `magnitude` over `all_magnitude`, or
    without these from the factor alone); with latent attention scores are multiplied by the square of `all_magnitude`'s.
    """

    kind: str
    factor: float = 1.0
    low_factor: float = 1.0
    high_factor: float = 1.0
    original_length: int = 0
    attention_factor: float = 0.0
    magnitude: float = 0.0
    all_magnitude: float = 0.0
    is_whole: bool = True

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

    @property
    def turned_factor(self) -> float:
        """By what queries and keys are multiplied where they turn."""
        if self.kind != YARN:
            return 1.0
        if self.attention_factor:
            return self.attention_factor
        if self.magnitude and self.all_magnitude:
            return self._growth(self.magnitude) / self._growth(self.all_magnitude)
        return self._growth(1.0)

    @property
    def latent_score_factor(self) -> float:
        """By what scores of latent attention are multiplied."""
        return self._growth(self.all_magnitude) ** 2 if self.kind == YARN and self.all_magnitude else 1.0

    def _growth(self, magnitude: float) -> float:
        return 1.0 if self.factor <= 1 else MAGNITUDE * magnitude * math.log(self.factor) + 1.0

    def ramp(self, head_dim: int, theta: float) -> tuple[float, float]:
        """Of "yarn": the pair up to which frequencies stay, and the one from which they are over the factor."""
        ends = [
            head_dim * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (self.high_factor, self.low_factor)
        ]
        first, last = (math.floor(ends[0]), math.ceil(ends[1])) if self.is_whole else ends
        first, last = max(first, 0), min(last, head_dim - 1)
        return first, last if last != first else last + LEAST_RAMP


def rotary_frequencies(
    head_dim: int, theta: float, scaling: RotaryScaling | None = None
) -> tuple[float, ...]:
    """The angle of each of head_dim / 2 pairs at position 1, in radians. Raises as `RotaryScaling.scaled`."""
    plain = [theta ** (-pair / head_dim) for pair in range(0, head_dim, 2)]
    if scaling is None:
        return tuple(plain)
    if scaling.kind != YARN:
        return tuple(scaling.scaled(frequency) for frequency in plain)
    first, last = scaling.ramp(head_dim, theta)
    shares = (min(max((pair - first) / (last - first), 0.0), 1.0) for pair in range(len(plain)))
    return tuple(
        frequency * (1 - share) + frequency / scaling.factor * share
        for frequency, share in zip(plain, shares, strict=True)
    )
