"""What the names of the uneven all-to-all do. N tokens of a device, D their size, E experts (one a device)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshwright.executor.rank.exchange_handler import all_to_all, exchange_counts
from meshwright.executor.rank.handler import Handlers, Row


def expert_of(tokens_ND: Tensor, num_experts: int) -> Tensor:
    """Where each token goes: by its first number, so that routing is uneven and known."""
    return tokens_ND[:, 0].long() % num_experts


def gate(context: Any, row: Row, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Tokens sorted by expert, the order they had, and how many go to each."""
    experts_N = expert_of(inputs[0], context.num_ranks)
    order_N = torch.argsort(experts_N, stable=True)
    return inputs[0][order_N], order_N, torch.bincount(experts_N, minlength=context.num_ranks)


def expert(context: Any, row: Row, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Every expert does something of its own."""
    return (inputs[0] * (context.rank + 2) + context.rank,)


def merge(context: Any, row: Row, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """What came back, where it was."""
    returned_ND, order_N = inputs
    combined_ND = torch.empty_like(returned_ND)
    combined_ND[order_N] = returned_ND
    return (combined_ND,)


HANDLERS: Handlers = {
    "EXCHANGE_COUNTS": exchange_counts,
    "DISPATCH": all_to_all,
    "COMBINE": all_to_all,
    "gate": gate,
    "expert": expert,
    "merge": merge,
}
