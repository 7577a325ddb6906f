"""Requests that nobody recorded: only their lengths are said, and how much these differ."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.serving.request.request import Request
from meshwright.specs.option import option


@dataclass(frozen=True)
class DrawnLengths:
    """A load in which prompts and outputs are so long in the mean, each drawn alone from a gamma distribution."""

    prompt: int = option(500, "Tokens of a prompt in the mean.", least=1)
    output: int = option(200, "Tokens of an output in the mean.", least=1)
    num: int = option(1000, "Requests.", least=1)
    variation: float = option(0.0, "Standard deviation of a length over its mean; 0: all are equal.", least=0)
    seed: int = option(0, "Of the lengths.")

    def requests(self) -> list[Request]:
        """They all come at 0, until somebody says when."""
        draw = random.Random(self.seed)
        lengths = zip(self._drawn(draw, self.prompt), self._drawn(draw, self.output), strict=True)
        return [
            Request(f"drawn-{number}", prompt, output, 0.0, num_output_tokens=output)
            for number, (prompt, output) in enumerate(lengths)
        ]

    def _drawn(self, draw: random.Random, mean: int) -> Iterator[int]:
        """Whole numbers from 1."""
        for _ in range(self.num):
            if not self.variation:
                yield mean
                continue
            shape = self.variation**-2
            yield max(1, round(draw.gammavariate(shape, mean / shape)))
