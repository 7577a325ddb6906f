"""Which tokens top-k, min-p and top-p leave of a distribution, and with which weights.

Tokens stand in one order: by logit, of equal ones the lower token first (16-bit logits often are equal). Every filter keeps a
beginning of that order, so that what it keeps is decided by definition and never by a sort. As in vLLM the temperature comes
first, and top-p is the share of what top-k and min-p have left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.request.sampling_parameters import SamplingParameters
from meshwright.serving.sampling.largest import largest

# How many of the largest tokens are looked at to find top-p's set; where they do not reach p, the next number.
NUCLEUS_SIZES = (256, 2048)

Kept = tuple[NDArray[np.int64], NDArray[np.float64]]


def is_filtered(parameters: SamplingParameters) -> bool:
    """May some tokens be left out?"""
    return parameters.top_k > 0 or parameters.min_p > 0.0 or parameters.top_p < 1.0


def kept_tokens(logits: NDArray[np.float32], parameters: SamplingParameters) -> Kept:
    """Tokens that may be drawn and their weights, which are in proportion to their probabilities.

    Args:
        logits: ``[V]``; the largest is finite.
        parameters: temperature (above 0), top_k, min_p and top_p.
    """
    peak, temperature = float(logits.max()), parameters.temperature
    if 0 < parameters.top_k < len(logits):
        ids = largest(logits, parameters.top_k)
    elif parameters.min_p > 0.0:
        ids = _all_by_size(logits, peak, temperature, parameters.min_p)
    elif parameters.top_p < 1.0:
        return _nucleus(logits, peak, temperature, parameters.top_p)
    else:
        ids = np.arange(len(logits))
    weights = _weights(logits[ids], peak, temperature)
    num_kept = int(np.count_nonzero(weights >= parameters.min_p))
    return _reaching(ids[:num_kept], weights[:num_kept], parameters.top_p, float(weights[:num_kept].sum()))


def _nucleus(logits: NDArray[np.float32], peak: float, temperature: float, top_p: float) -> Kept:
    """The smallest set whose probability reaches `top_p`."""
    weights = _weights(logits, peak, temperature)
    total = float(weights.sum())
    for size in NUCLEUS_SIZES:
        ids = largest(logits, size)
        if weights[ids].sum() >= top_p * total:
            break
    else:
        # All tokens that weigh less than this have less than 1 - p together (half of it: sums are rounded).
        ids = np.flatnonzero(weights >= 0.5 * (1.0 - top_p) * total / len(logits))
        ids = ids[np.argsort(-logits[ids], kind="stable")]
    return _reaching(ids, weights[ids], top_p, total)


def _reaching(ids: NDArray[np.int64], weights: NDArray[np.float64], top_p: float, total: float) -> Kept:
    """The beginning whose weights reach a share `top_p` of `total`; all, where they do not."""
    if top_p >= 1.0:
        return ids, weights
    num_kept = int(np.searchsorted(np.cumsum(weights), top_p * total)) + 1
    return ids[:num_kept], weights[:num_kept]


def _all_by_size(
    logits: NDArray[np.float32], peak: float, temperature: float, min_p: float
) -> NDArray[np.int64]:
    """All tokens that may weigh `min_p` of the largest or more, largest first."""
    # A little below the bound, which float32 cannot say exactly: the weights decide.
    floor = peak + temperature * np.log(min_p)
    ids = np.flatnonzero(logits >= np.nextafter(np.float32(floor), np.float32(-np.inf)))
    return ids[np.argsort(-logits[ids], kind="stable")]


def _weights(logits: NDArray[np.float32], peak: float, temperature: float) -> NDArray[np.float64]:
    """exp((logit - peak) / temperature), 1 of the largest."""
    with np.errstate(
        over="ignore"
    ):  # a temperature next to nothing: infinitely far below the peak is weight 0
        exponents = (logits.astype(np.float64) - peak) / temperature
    return np.exp(exponents, out=exponents)
