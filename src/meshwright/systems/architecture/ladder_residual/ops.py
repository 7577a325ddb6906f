"""Handlers of LADDER_ATTENTION, LADDER_MLP, their all-reduces and LADDER_END: a device's part of blocks, forwards.

`options` of the job: `size` (fields of `SublayerSize`, of the whole model).

Shapes: B samples, S tokens, E width, N numbers of a sublayer's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from meshwright.executor.models.sublayer import KINDS, SublayerSize, sublayer
from meshwright.executor.rank.exchange_handler import all_reduce
from meshwright.executor.rank.handler import Handlers, Row
from meshwright.systems.architecture.ladder_residual.mechanism import END, REDUCTIONS, SUBLAYERS


def _run(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The stream with what has been all-reduced, and this device's part of the sublayer's output."""
    x_BSE, *reduced, (weight_N,) = inputs
    for y_BSE in reduced:
        x_BSE = x_BSE + y_BSE
    size = SublayerSize(**context.options["size"]).part(context.num_ranks)
    kind = KINDS[SUBLAYERS.index(row.name)]
    return x_BSE, sublayer(size, kind)(x_BSE, weight_N)


def end(context: Any, row: Row, inputs: Sequence[Any]) -> Sequence[Tensor]:
    """The stream with all outputs."""
    total: Tensor = inputs[0]
    for y_BSE in inputs[1:]:
        total = total + y_BSE
    return (total,)


HANDLERS: Handlers = {
    **dict.fromkeys(REDUCTIONS, all_reduce),
    **dict.fromkeys(SUBLAYERS, _run),
    END: end,
}
