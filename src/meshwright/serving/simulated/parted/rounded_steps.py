"""RoundedSteps: batches that are nearly alike are simulated once, where surfaces of single kernels do not add up."""

from __future__ import annotations

import math

from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import StepTime
from meshwright.serving.simulated.step_model import EveryStep

PER_DOUBLING = 8  # numbers to which those of a batch are rounded, in each doubling: at most 4.4 % off


class RoundedSteps(EveryStep):
    """Of many batches one is simulated. Beside chunks the number of tokens is kept; decodes, what each of them sees, and what
    each token of a chunk sees are rounded."""

    def step(self, batch: BatchShape) -> StepTime:
        """Of the batch to which one is rounded."""
        return self._steps.step(rounded_batch(batch))


def rounded_batch(batch: BatchShape) -> BatchShape:
    """The batch that stands for one: `PER_DOUBLING` numbers a doubling of decodes, and of what tokens see."""
    decodes = _rounded(batch.num_decodes) if batch.num_decodes else 0
    chunk_tokens = max(1, batch.num_tokens - decodes) if batch.chunk_tokens else 0
    decodes = batch.num_tokens - chunk_tokens if chunk_tokens else decodes
    pairs = chunk_tokens * _rounded(batch.chunk_pairs / batch.chunk_tokens) if chunk_tokens else 0
    context = decodes * _rounded(batch.num_context / batch.num_decodes) if decodes else 0
    return BatchShape(chunk_tokens, pairs, batch.num_chunks, decodes, context)


def _rounded(number: float) -> int:
    """The nearest number of the grid, from 1."""
    return max(1, round(2 ** (round(PER_DOUBLING * math.log2(max(number, 1.0))) / PER_DOUBLING)))
