"""StepTable: what takes the place of simulating every batch: surfaces of simulated steps, and how far off they are."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram, StepTime
from meshwright.serving.simulated.step_surface import Grid, StepSurface

NUM_CHECKED = 200  # batches that are simulated to tell the table's error


class TableError(NamedTuple):
    """Of the table against simulated steps: |table / simulated - 1|, and the mean of table / simulated - 1."""

    median: float
    p95: float
    largest: float
    bias: float


@dataclass(frozen=True, eq=False)
class StepTable:
    """Steps of a program by interpolation. Attributes: the program, and the largest batch: tokens, sequences, and tokens
    that a sequence has."""

    program: ForwardProgram
    most_tokens: int
    most_sequences: int
    most_context: int

    def step(self, batch: BatchShape) -> StepTime:
        """As of the program."""
        latency_s = self.latency.seconds(*batch)
        return StepTime(latency_s, latency_s if self.period is self.latency else self.period.seconds(*batch))

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        """As of `StepModel`: over each piece of the line of these decodes a closed sum."""
        return self.latency.run(num_decodes, num_context, most, span_s)

    @cached_property
    def latency(self) -> StepSurface:
        """Seconds through all stages."""
        grid = Grid.of(self.most_tokens, self.most_sequences, self.most_context)
        self.program.prepare(grid.batches())
        return StepSurface(lambda batch: self.program.step(batch).latency_s, grid)

    @cached_property
    def period(self) -> StepSurface:
        """Seconds of the slowest stage; of one stage the same."""
        if self.program.layout.pp == 1:
            return self.latency
        grid = Grid.of(self.most_tokens, self.most_sequences, self.most_context)
        return StepSurface(lambda batch: self.program.step(batch).period_s, grid)

    def error(self, number: int = NUM_CHECKED, seed: int = 0) -> TableError:
        """Against so many simulated batches: half of decodes only, half with chunks of prompts; sizes log-uniform."""
        draw = random.Random(seed)
        batches = [self._drawn(draw, has_chunks=bool(i % 2)) for i in range(number)]
        self.program.prepare(batches)
        off = [self.step(each).latency_s / self.program.step(each).latency_s - 1.0 for each in batches]
        ranked = sorted(map(abs, off))
        return TableError(ranked[number // 2], ranked[number * 19 // 20], ranked[-1], sum(off) / number)

    def _drawn(self, draw: random.Random, *, has_chunks: bool) -> BatchShape:
        def size(most: int) -> int:
            return round(math.exp(math.log(most) * draw.random()))

        decodes = size(self.most_sequences)
        context = decodes * size(self.most_context)
        if not has_chunks:
            return BatchShape.of((), decodes, context)
        left, chunks = max(1, self.most_tokens - decodes), []
        for _ in range(size(4)):
            length = size(left)
            chunks.append((draw.choice((0, 0, size(self.most_context // 2))), length))
            left = max(1, left - length)
        return BatchShape.of(chunks, decodes, context)
