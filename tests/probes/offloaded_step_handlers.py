"""What the offloaded step computes; LOAD and STORE are the executor's own copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from meshwright.executor.rank.handler import Handlers, Row


def update_unit(context: Any, row: Row, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """One step of a unit's state."""
    return (inputs[0] * 2 + row.part,)


HANDLERS: Handlers = {
    "update_unit": update_unit,
}
