"""The distribution that sampling parameters describe, in float64, by the most obvious code."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.serving.request.sampling_parameters import SamplingParameters


def exact_distribution(
    logits: Sequence[float],
    parameters: SamplingParameters,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
) -> list[float]:
    """The probability of every token."""
    adjusted = _adjusted(logits, parameters, prompt, output)
    order = sorted(range(len(adjusted)), key=lambda token: (-adjusted[token], token))
    if parameters.temperature == 0.0:
        return [float(token == order[0]) for token in range(len(adjusted))]
    peak = adjusted[order[0]]
    weights = [math.exp((value - peak) / parameters.temperature) for value in adjusted]
    kept = [token for token in order if weights[token] >= parameters.min_p * weights[order[0]]]
    kept = kept[: parameters.top_k or None]
    total, share, nucleus = sum(weights[token] for token in kept), 0.0, []
    for token in kept:
        if parameters.top_p == 1.0 or share < parameters.top_p:
            nucleus.append(token)
        share += weights[token] / total
    total = sum(weights[token] for token in nucleus)
    return [weights[token] / total if token in nucleus else 0.0 for token in range(len(adjusted))]


def _adjusted(
    logits: Sequence[float], parameters: SamplingParameters, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    values = [float(value) for value in logits]
    for token, bias in parameters.logit_bias:
        values[token] += bias
    for token in {*prompt, *output}:
        factor = parameters.repetition_penalty
        values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
    for token in output:
        values[token] -= parameters.frequency_penalty
    for token in set(output):
        values[token] -= parameters.presence_penalty
    return values
