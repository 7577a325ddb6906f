"""Training in one process, beside which studies put what several processes trained: an optimizer's steps, a mean loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

Batches = Iterable[tuple[Tensor, Tensor]]  # inputs and targets
Loss = Callable[[Tensor, Tensor], Tensor]  # of a batch, by weights that the optimizer has


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread within the block: threads that wait for each other on busy cores take many times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def optimise(
    loss: Loss, optimizer: torch.optim.Optimizer, batches: Batches, rate: Callable[[int], float]
) -> None:
    """A step for every batch, at the rate of its number."""
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.zero_grad()
        torch.autograd.backward(loss(*batch))
        optimizer.step()


@one_thread()
def mean_of_batches(loss: Loss, batches: Batches) -> float:
    """The mean of the batches' losses; no graph."""
    with torch.no_grad():
        return float(np.mean([float(loss(*batch)) for batch in batches]))
