"""The loss that overwrites its logits equals torch's, and needs no memory beside them."""

import pytest
import torch

from meshwright.executor.meter.live_storage import LiveStorage
from meshwright.executor.ops.token_cross_entropy import IGNORED_TARGET, NUM_PARTS, token_cross_entropy

WEIGHT = 0.3


def losses_and_gradients(x_BSV, targets_BS):
    found = []
    for is_consumed in (False, True):
        leaf = x_BSV.clone().requires_grad_()
        loss = token_cross_entropy(leaf * 1, targets_BS, WEIGHT, is_consumed=is_consumed)
        loss.backward()
        found.append((loss.detach(), leaf.grad))
    return found


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 1e-7), (torch.bfloat16, 1e-2)], ids=str
)
def test_a_loss_that_overwrites_its_logits_is_the_same(dtype, tolerance):
    torch.manual_seed(0)
    x_BSV, targets_BS = torch.randn(3, 7, 50, dtype=dtype), torch.randint(50, (3, 7))
    targets_BS[0, 1] = IGNORED_TARGET
    (plain, expected), (ours, gradient) = losses_and_gradients(x_BSV, targets_BS)
    assert float((plain - ours).abs()) <= 1e-6
    assert float((expected - gradient).abs().max()) <= tolerance
    assert float(gradient[0, 1].abs().max()) == 0.0


def test_logits_are_the_only_memory():
    num_tokens, vocabulary = 64, 1000
    x_TV = torch.randn(num_tokens, vocabulary, requires_grad=True)
    targets_T = torch.randint(vocabulary, (num_tokens,))
    peaks = []
    for is_consumed in (False, True):
        y_TV = x_TV * 1
        with LiveStorage() as live:
            live.include([y_TV.detach()])
            loss = token_cross_entropy(y_TV, targets_T, WEIGHT, is_consumed=is_consumed)
            torch.autograd.grad(loss, y_TV)
        peaks.append(live.peak_bytes)
    whole = x_TV.nbytes
    assert peaks[0] >= 3 * whole
    assert peaks[1] <= whole * (1 + 1 / NUM_PARTS) + 32 * num_tokens


def test_a_second_backward_is_an_error():
    y_TV = torch.randn(4, 10, requires_grad=True) * 1
    loss = token_cross_entropy(y_TV, torch.zeros(4, dtype=torch.int64), WEIGHT, is_consumed=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
