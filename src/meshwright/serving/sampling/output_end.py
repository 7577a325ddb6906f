"""Whether a token ends an output."""

from __future__ import annotations

from collections.abc import Collection

from meshwright.serving.request.sampling_parameters import SamplingParameters


def is_last(token_id: int, parameters: SamplingParameters, end_ids: Collection[int]) -> bool:
    """Is it one of the model's own `end_ids` (unless they are ignored), or one that the request stops at?"""
    return token_id in parameters.stop_token_ids or (not parameters.ignore_eos and token_id in end_ids)
