"""Handlers of what a forward keeps and the host's memory holds until its backward: STORE_SAVED, LOAD_SAVED."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.handlers.relay_handler import SavedAttention
from meshwright.executor.meter.live_storage import born_on_host
from meshwright.executor.rank.context import Context
from meshwright.executor.rank.handler import Handlers, Row


def store_saved(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """What a forward has kept, in the host's memory; the device's is free."""
    (saved,) = inputs
    with born_on_host():
        return (_moved(saved, torch.device("cpu")),)


def load_saved(context: Context, row: Row, inputs: Sequence[Any]) -> Sequence[Any]:
    """The same on the device."""
    (saved,) = inputs
    return (_moved(saved, context.device),)


def _moved(saved: Any, device: torch.device) -> Any:
    """A copy of what attention keeps; of a graph the graph, whose tensors have moved."""
    if isinstance(saved, SavedAttention):
        copies: dict[str, Tensor] = {
            each.name: getattr(saved, each.name).to(device, copy=True) for each in fields(saved)
        }
        return replace(saved, **copies)
    saved.held.move(device)
    return saved


HANDLERS: Handlers = {"STORE_SAVED": store_saved, "LOAD_SAVED": load_saved}
