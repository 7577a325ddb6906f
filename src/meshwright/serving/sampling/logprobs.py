"""Log-probabilities of tokens, of the model's own distribution.

They are logarithms of the softmax of the logits as the model gave them: before temperature, biases, penalties, filters and
grammar (vLLM's `raw_logprobs`, its default), so they add up to the probability that the model itself gives to an output.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.sampling.largest import largest


class TopLogprobs(NamedTuple):
    """The most probable tokens ``[k]``, most probable first, and their log-probabilities."""

    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]


def logprob_offset(logits: NDArray[np.float32]) -> np.float32:
    """What is subtracted from each of ``[V]`` to make it a log-probability."""
    peak = logits.max()
    return np.float32(peak + np.log(np.exp(logits - peak).sum(dtype=np.float64)))


def top_logprobs(logits: NDArray[np.float32], offset: np.float32, count: int) -> TopLogprobs:
    """Of the `count` most probable tokens."""
    token_ids = largest(logits, count)
    return TopLogprobs(token_ids, logits[token_ids] - offset)
