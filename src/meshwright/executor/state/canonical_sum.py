"""Gradients added in one order whatever the layout: those of every microbatch apart, until all are in one place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NOBODY = (-1, -1, -1)  # the order of what fills up


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
    """What one rank has of a group's gradients in one iteration. ``most``: contributions of the copy that has most of them;
    a schedule may hand copies of a stage unlike shares of the microbatches."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._parts: dict[tuple[int, int, int], Tensor] = {}

    def add(self, contribution: Contribution, flat: Tensor) -> None:
        """One contribution, flat. A stage and microbatch may have several: with a split vocabulary its tables' are apart."""
        before = self._parts.get(contribution.order())
        self._parts[contribution.order()] = flat if before is None else before.add_(flat)

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Orders of all contributions here, [most, 3], and their values, [most, elements]; they are forgotten. What is
        gathered is equally long everywhere: behind the contributions stand as many of `NOBODY` as are missing."""
        values = torch.stack(list(self._parts.values()))
        missing = self.most - len(values)
        orders = torch.tensor([*self._parts, *[NOBODY] * missing], dtype=torch.int64)
        self._parts = {}
        if missing:
            values = torch.cat([values, values.new_zeros((missing, values.shape[1]))])
        return orders.to(values.device), values


def summed(orders: Tensor, values: Tensor) -> Tensor:
    """The sum of rows, one after the other in the order of their keys: the same bits for the same rows, whatever there is of
    `NOBODY` among them."""
    keys = [tuple(order) for order in orders.tolist()]
    places = sorted((i for i, key in enumerate(keys) if key != NOBODY), key=keys.__getitem__)
    total = values[places[0]].clone()
    for place in places[1:]:
        total.add_(values[place])
    return total
