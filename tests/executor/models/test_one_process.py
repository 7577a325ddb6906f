"""Steps of an optimizer at the rate of their number, and the mean loss of batches, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.executor.models.one_process import mean_of_batches, optimise


def test_every_batch_is_a_step_at_its_rate_and_the_loss_is_their_mean() -> None:
    weight = torch.tensor(1.0, requires_grad=True)
    batches = [(torch.tensor(1.0), torch.tensor(3.0)), (torch.tensor(2.0), torch.tensor(2.0))]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (weight * x - y) ** 2

    optimise(loss, torch.optim.SGD([weight], lr=9.0), batches, lambda step: (0.25, 0.125)[step])
    # 1 - 0.25 * 2 (1 - 3) = 2, then 2 - 0.125 * 2 * 2 (4 - 2) = 1
    assert weight.item() == pytest.approx(1.0)
    assert mean_of_batches(loss, batches) == pytest.approx((4.0 + 0.0) / 2)
