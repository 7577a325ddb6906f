"""One step's inputs cut into several, as if each were a step: what computes them one behind the other has the same logits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from meshwright.serving.engine.runner import StepInputs


def cut_inputs(inputs: StepInputs, cuts: Sequence[int], block_tokens: int) -> list[StepInputs]:
    """Between the tokens of these numbers, also within a sequence: what is behind a cut finds all before it in its blocks.

    The rows of a part are those that lie in it, in rising order.
    """
    places = sorted({0, *(cut for cut in cuts if 0 < cut < len(inputs.token_ids)), len(inputs.token_ids)})
    return [_part(inputs, low, high, block_tokens) for low, high in pairwise(places)]


def _part(inputs: StepInputs, low: int, high: int, block_tokens: int) -> StepInputs:
    """Tokens `low` to `high`."""
    starts, ends = inputs.query_starts[:-1], inputs.query_starts[1:]
    own = np.flatnonzero((starts < high) & (ends > low))
    begins, stops = np.maximum(starts[own], low), np.minimum(ends[own], high)
    pasts = inputs.past_lengths[own] + (begins - starts[own])
    contexts = pasts + (stops - begins)
    counts = -(-contexts // block_tokens)
    tables = [
        inputs.block_ids[at : at + count] for at, count in zip(inputs.block_starts[own], counts, strict=True)
    ]
    rows = np.sort(inputs.rows[(inputs.rows >= low) & (inputs.rows < high)]) - low
    return StepInputs(
        token_ids=inputs.token_ids[low:high],
        positions=inputs.positions[low:high],
        query_starts=np.append(begins, high).astype(np.int32) - np.int32(low),
        past_lengths=pasts.astype(np.int32),
        block_ids=np.concatenate(tables),
        block_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        max_context=int(contexts.max()),
        rows=rows,
        adapters=tuple(inputs.adapters[each] for each in own.tolist()) if inputs.adapters else (),
    )
