"""What the names of the stale exchange do: integer recurrences in float64, so that equal means equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from meshwright.executor.rank.handler import Handlers, Row


def encode(context: Any, row: Row, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """A feature of the patch."""
    return (3 * inputs[0] + 1,)


def denoise(context: Any, row: Row, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The next patch, and the halo that it was made with."""
    feature, halo = inputs
    return feature + 2 * halo, halo.clone()


HANDLERS: Handlers = {
    "encode": encode,
    "denoise": denoise,
}
