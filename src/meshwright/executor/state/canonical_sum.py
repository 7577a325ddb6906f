"""Gradients added in one order whatever the layout: those of every microbatch apart, until all are in one place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Contribution(NamedTuple):
    """Which gradient it is; in the order in which one process would add them: by replica, by microbatch, and of one
    microbatch the last stage first."""

    replica: int
    microbatch: int
    stage: int

    def order(self) -> tuple[int, int, int]:
        """What contributions are sorted by."""
        return self.replica, self.microbatch, -self.stage


class CanonicalSum:
    """What one rank has of a group's gradients in one iteration."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int, int], Tensor] = {}

    def add(self, contribution: Contribution, flat: Tensor) -> None:
        """One contribution, flat. A stage and microbatch may have several: with a split vocabulary its tables' are apart."""
        before = self._parts.get(contribution.order())
        self._parts[contribution.order()] = flat if before is None else before.add_(flat)

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Orders of all contributions here, [n, 3], and their values, [n, elements]; they are forgotten."""
        orders = torch.tensor(list(self._parts), dtype=torch.int64).reshape(-1, 3)
        values = torch.stack(list(self._parts.values()))
        self._parts = {}
        return orders.to(values.device), values


def summed(orders: Tensor, values: Tensor) -> Tensor:
    """The sum of rows, one after the other in the order of their keys: the same bits for the same rows."""
    places = sorted(range(len(values)), key=lambda i: tuple(orders[i].tolist()))
    total = values[places[0]].clone()
    for place in places[1:]:
        total.add_(values[place])
    return total
