"""WatchedSteps: how long steps take on an engine that was watched, as a sum of what each step computes.

Seconds are a line in the rows of a step that bends where they double (one row is another kernel than two, and few rows cost
as their weights do), and so much a prompt's token, a pair of such a token and one that it sees, a decode, a token that
decodes see; no slope is below zero. A run of one engine on one machine is enough, and says nothing of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from scipy.optimize import nnls

from meshwright.serving.loop.run_record import RecordedStep, RunRecord
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import StepTime
from meshwright.serving.simulated.step_model import run_one_by_one
from meshwright.serving.simulated.step_surface import Line, at, doubling_nodes, line
from meshwright.specs.error import SpecError

LEAST_STEPS = 20
ROUNDS = 20  # of weighing by what is missed
LEAST_MISS = 0.02  # misses of less weigh alike


@dataclass(frozen=True)
class WatchedSteps:
    """Seconds: of a step by its rows, of a prompt's token, of a pair, of a decode, of a token that decodes see."""

    rows: Line
    token_s: float
    pair_s: float
    decode_s: float
    context_s: float

    @classmethod
    def of(cls, watched: Iterable[tuple[BatchShape, float]]) -> WatchedSteps:
        """The sums that miss steps least, by the mean of their relative errors: a step that was held up counts as one, not as
        how long it was held up. Raises SpecError for fewer than `LEAST_STEPS` steps."""
        steps = [(shape, seconds) for shape, seconds in watched if seconds > 0.0]
        if len(steps) < LEAST_STEPS:
            raise SpecError(f"{len(steps)} steps were watched", allowed=f"{LEAST_STEPS} or more")
        nodes = doubling_nodes(1, max(shape.num_tokens for shape, _ in steps))
        parts = np.array([(*_rises(shape.num_tokens, nodes), *_sums(shape)) for shape, _ in steps])
        seconds = np.array([each for _, each in steps])
        scales = parts.max(axis=0)
        scales[scales == 0.0] = 1.0
        shares = parts / scales / seconds[:, None]
        weights = np.ones(len(steps))
        for _ in range(ROUNDS):
            found, _ = nnls(shares * weights[:, None], weights)
            weights = 1.0 / np.sqrt(np.abs(shares @ found - 1.0).clip(LEAST_MISS))
        *rises, token_s, pair_s, decode_s, context_s = (found / scales).tolist()
        return cls(line(nodes, [*accumulate(rises)]), token_s, pair_s, decode_s, context_s)

    def step(self, batch: BatchShape) -> StepTime:
        """Of one batch."""
        costs = (self.token_s, self.pair_s, self.decode_s, self.context_s)
        seconds = at(self.rows, batch.num_tokens)
        seconds += sum(cost * number for cost, number in zip(costs, _sums(batch), strict=True))
        return StepTime(seconds, seconds)

    def run(self, num_decodes: int, num_context: int, most: int, span_s: float) -> tuple[int, float]:
        """See `StepModel`."""
        return run_one_by_one(self, num_decodes, num_context, most, span_s)


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


def _rises(num_tokens: int, nodes: Sequence[float]) -> Iterator[float]:
    """How much of each rise of the line a step has: all of the first, and of the others the share between their nodes; of the
    last one more where it has more rows."""
    yield 1.0
    for number, (low, high) in enumerate(pairwise(nodes), 2):
        share = (num_tokens - low) / (high - low)
        yield max(0.0, share if number == len(nodes) else min(1.0, share))


def _sums(shape: BatchShape) -> tuple[int, int, int, int]:
    """One number for each other cost."""
    return shape.chunk_tokens, shape.chunk_pairs, shape.num_decodes, shape.num_context
