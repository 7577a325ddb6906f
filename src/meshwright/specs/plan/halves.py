"""check_halves: what an encoder-decoder's plan may not ask for, since its windows are cut in two halves."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.specs.error import PlanError
from meshwright.specs.model.shape import ModelShape


def check_halves(model: ModelShape, sequence_length: int, tokens_by: int, beside: Mapping[str, bool]) -> None:
    """Raise PlanError where a half of a window is no whole number of tokens for `tokens_by` devices that divide it, or where
    an encoder-decoder stands `beside` what is not there for one. Nothing of a decoder alone."""
    if not model.num_encoder_layers:
        return
    if sequence_length % (model.num_halves * tokens_by):
        raise PlanError(
            f"sequences of {sequence_length} tokens, of which {tokens_by} devices divide the halves of {model.name}",
            allowed=f"a multiple of {model.num_halves * tokens_by} tokens",
        )
    if asked := [name for name, is_there in beside.items() if is_there]:
        raise PlanError(
            f"{' and '.join(asked)} with the encoder-decoder {model.name}",
            allowed="pp, dp, tp, sequence_parallel, any sharding, any recompute of whole stages or by segments",
            next="leave it out: cross attention reads all tokens of the encoder, and its experts are on every device",
        )
