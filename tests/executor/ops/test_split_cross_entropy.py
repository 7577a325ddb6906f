"""Both algorithms of a split cross entropy against the dense one, in one process: loss, dX, dW, padding, 16 bits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.split_cross_entropy import (
    Normalizer,
    PartialSoftmax,
    early_input_gradient,
    logit_gradient,
    partial_softmax,
)

TOKENS, HIDDEN, WEIGHT = 11, 6, 0.3


def combined(parts: list[PartialSoftmax]) -> Normalizer:
    """What the barrier does."""
    maximum_T = torch.stack([part.maximum_T for part in parts]).amax(0)
    sum_T = torch.stack([part.sum_T * (part.maximum_T - maximum_T).exp() for part in parts]).sum(0)
    return Normalizer(maximum_T, sum_T, torch.stack([part.target_T for part in parts]).sum(0))


def shards(weight_VE: Tensor, num: int) -> list[tuple[Tensor, int, int]]:
    """(rows with padding that is no zero, first row, number of rows) of every device."""
    size = -(-len(weight_VE) // num)
    found = []
    for first in range(0, size * num, size):
        own = weight_VE[first : first + size]
        padding = torch.full((size - len(own), weight_VE.shape[1]), 1e3, dtype=weight_VE.dtype)
        found.append((torch.cat([own, padding]), min(first, len(weight_VE)), len(own)))
    return found


@pytest.mark.parametrize("has_one_barrier", [True, False])
@pytest.mark.parametrize(("vocabulary", "num_devices"), [(32, 4), (37, 4), (5, 4), (7, 1)])
def test_equals_the_dense_loss(vocabulary: int, num_devices: int, has_one_barrier: bool) -> None:
    torch.manual_seed(vocabulary)
    x_TE = torch.randn(TOKENS, HIDDEN, dtype=torch.float64, requires_grad=True)
    weight_VE = torch.randn(vocabulary, HIDDEN, dtype=torch.float64).mul_(4).requires_grad_()
    targets_T = torch.randint(vocabulary, (TOKENS,))
    dense = F.cross_entropy(x_TE @ weight_VE.t(), targets_T, reduction="sum") * WEIGHT
    torch.autograd.backward(dense)
    with torch.no_grad():
        rows = shards(weight_VE, num_devices)
        parts = [partial_softmax(x_TE, w, targets_T, first, num, has_one_barrier) for w, first, num in rows]
        whole = combined(parts)
        gradients = [logit_gradient(part, whole, WEIGHT) for part in parts]
        if has_one_barrier:
            dx = sum(early_input_gradient(part, whole, WEIGHT) for part in parts)
        else:
            dx = sum(g @ w for g, (w, _, _) in zip(gradients, rows, strict=True))
        dw = torch.cat([(g.t() @ x_TE)[:num] for g, (_, _, num) in zip(gradients, rows, strict=True)])
    assert float(whole.loss()) * WEIGHT == pytest.approx(dense.item(), rel=1e-12)
    assert x_TE.grad is not None and weight_VE.grad is not None
    torch.testing.assert_close(dx, x_TE.grad, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(dw, weight_VE.grad, rtol=1e-12, atol=1e-13)


def test_padding_has_no_share_and_no_gradient() -> None:
    x_TE, weight_RE = torch.randn(3, 2), torch.full((4, 2), 50.0)
    part = partial_softmax(x_TE, weight_RE, torch.tensor([0, 1, 2]), 0, 1, False)
    assert (part.exponentials_TR[:, 1:] == 0).all()
    gradient_TR = logit_gradient(part, combined([part]), 1.0)
    assert (gradient_TR[:, 1:] == 0).all()


def test_sums_of_16_bit_logits_are_in_float32() -> None:
    x_TE, weight_RE = torch.randn(5, 4, dtype=torch.bfloat16), torch.randn(3000, 4, dtype=torch.bfloat16)
    part = partial_softmax(x_TE, weight_RE, torch.zeros(5, dtype=torch.int64), 0, 3000, True)
    assert {part.exponentials_TR.dtype, part.maximum_T.dtype, part.sum_T.dtype} == {torch.float32}
    logits_TR = (x_TE @ weight_RE.t()).float()
    wanted = F.cross_entropy(logits_TR, torch.zeros(5, dtype=torch.int64), reduction="sum")
    assert float(combined([part]).loss()) == pytest.approx(float(wanted), rel=1e-5)
    assert early_input_gradient(part, combined([part]), 1.0).dtype == torch.bfloat16
