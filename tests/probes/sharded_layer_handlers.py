"""What the names of the sharded layer do: gather the rows of a matrix, multiply by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.rank.exchange_handler import all_gather
from meshwright.executor.rank.handler import Handlers, Row


def apply_layer(context: Any, row: Row, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """hidden [B, H] times the whole layer [H, H], through a tanh that keeps it small."""
    whole_HH, hidden_BH = inputs
    return (torch.tanh(hidden_BH @ whole_HH),)


HANDLERS: Handlers = {
    "gather_layer": all_gather,
    "apply_layer": apply_layer,
}
