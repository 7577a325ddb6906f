"""The learning rate as a function of the step: a linear warm-up, then half a cosine to a share of the peak."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.specs.error import SpecError


@dataclass(frozen=True)
class LearningRate:
    """The rate of every step: a pure function, so a run that resumes at step n goes on with what n has.

    Args:
        peak: the highest rate.
        num_warmup: steps of a line that reaches the peak at the last of them; 0: none.
        num_steps: where the cosine ends, counted from step 0; None: the peak is kept after the warm-up.
        final_share: what is left at the end, as a share of the peak (Loshchilov and Hutter, arXiv 1608.03983, with a
            floor); it stays so behind the end.
        lead: of a training that is counted in tokens, how many of its steps now those before would have been, less how many
            they were: batches may have had another size.

    Raises SpecError on numbers that cannot be.
    """

    peak: float
    num_warmup: int = 0
    num_steps: float | None = None
    final_share: float = 1.0
    lead: float = 0.0

    def __post_init__(self) -> None:
        if not (self.peak >= 0 and math.isfinite(self.peak)):
            raise SpecError(f"a learning rate of {self.peak!r}", allowed="a number from 0")
        if not 0 <= self.final_share <= 1:
            raise SpecError(
                f"a final learning rate of {self.final_share!r} times the peak", allowed="a share from 0 to 1"
            )
        if self.num_warmup < 0 or (self.num_steps is not None and self.num_steps < 1):
            raise SpecError(
                f"{self.num_warmup} steps of warm-up in {self.num_steps} steps",
                allowed="a warm-up from 0 and a length from 1",
            )

    def at(self, step: int) -> float:
        """The rate of a step, the first is 0."""
        place = step + self.lead
        if place < self.num_warmup:
            return self.peak * (place + 1) / self.num_warmup
        if self.num_steps is None or self.final_share == 1.0:
            return self.peak
        length = max(1.0, self.num_steps - 1 - self.num_warmup)
        done = min(1.0, (place - self.num_warmup) / length)
        return self.peak * (self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * done)))
