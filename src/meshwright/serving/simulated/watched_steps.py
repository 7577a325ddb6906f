"""WatchedSteps: how long steps take on an engine that was watched, as a sum of what each step computes.

Seconds are a fixed part and so much a token of prompts, a pair of such a token and one that it sees, a decode, a token that
decodes see; none of these is below zero. A run of one engine on one machine is enough, and says nothing of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from meshwright.serving.loop.run_record import RecordedStep, RunRecord
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import StepTime
from meshwright.specs.error import SpecError

LEAST_STEPS = 20


@dataclass(frozen=True)
class WatchedSteps:
    """Seconds: of a step, of a prompt's token, of a pair, of a decode, of a token that decodes see."""

    fixed_s: float
    token_s: float
    pair_s: float
    decode_s: float
    context_s: float

    @classmethod
    def of(cls, watched: Iterable[tuple[BatchShape, float]]) -> WatchedSteps:
        """The sums that miss steps least, by their relative errors. Raises SpecError for fewer than `LEAST_STEPS` steps."""
        steps = [(shape, seconds) for shape, seconds in watched if seconds > 0.0]
        if len(steps) < LEAST_STEPS:
            raise SpecError(f"{len(steps)} steps were watched", allowed=f"{LEAST_STEPS} or more")
        parts = np.array([_parts(shape) for shape, _ in steps], np.float64)
        seconds = np.array([each for _, each in steps])
        scales = parts.max(axis=0).clip(1.0)
        found, _ = nnls(parts / scales / seconds[:, None], np.ones(len(steps)))
        return cls(*(found / scales).tolist())

    def step(self, batch: BatchShape) -> StepTime:
        """Of one batch."""
        costs = (self.fixed_s, self.token_s, self.pair_s, self.decode_s, self.context_s)
        seconds = sum(cost * number for cost, number in zip(costs, _parts(batch), strict=True))
        return StepTime(seconds, seconds)

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        """See `StepModel`."""
        seconds, number = 0.0, 0
        while number == 0 or (number < most and seconds < span_s):
            context = num_context + number * num_decodes
            seconds += self.fixed_s + self.decode_s * num_decodes + self.context_s * context
            number += 1
        return number, seconds


def watched_steps(record: RunRecord) -> list[tuple[BatchShape, float]]:
    """Each step of a record that ran, and its seconds, from its own start or the end of the one before it."""
    lengths: dict[tuple[str, int], int] = {}
    found, last_s = [], 0.0
    for step in record.steps:
        found.append((_shape(step, record, lengths), step.end_s - max(step.start_s, last_s)))
        last_s = step.end_s
    return [(shape, seconds) for shape, seconds in found if seconds == seconds]


def _shape(step: RecordedStep, record: RunRecord, lengths: dict[tuple[str, int], int]) -> BatchShape:
    """Of a step; `lengths`: tokens of every sequence before it, which go on."""
    context = 0
    for decoding in step.decodes:
        context += lengths[decoding]
        lengths[decoding] += 1
    for name, output, start, num in step.chunks:
        prompt = record.requests[name].fields["num_prompt_tokens"]
        if start + num >= max(prompt, lengths.get((name, output), 0)):
            lengths[name, output] = start + num + 1
    return BatchShape.of([chunk[2:] for chunk in step.chunks], len(step.decodes), context)


def _parts(shape: BatchShape) -> tuple[float, ...]:
    """One number a cost."""
    return 1.0, shape.chunk_tokens, shape.chunk_pairs, shape.num_decodes, shape.num_context
