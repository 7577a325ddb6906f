"""A cosine router: the published formula, its gradients by autograd, and weight gradients that come later."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from meshwright.executor.ops.expert.cosine_router import CosineRouter
from meshwright.executor.ops.weight_gradient_queue import WeightGradientQueue, deferring, registering

TOKENS, HIDDEN, RANK, EXPERTS = 7, 6, 3, 5


def drawn() -> tuple[CosineRouter, torch.Tensor, torch.Tensor]:
    """A router, tokens, and a gradient of its logits."""
    draw = torch.Generator().manual_seed(1)
    router = CosineRouter(HIDDEN, RANK, EXPERTS).double()
    with torch.no_grad():
        for parameter in (router.weight, router.projection):
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
        router.temperature.fill_(0.3)
    hidden = torch.randn(TOKENS, HIDDEN, generator=draw, dtype=torch.float64)
    return router, hidden, torch.randn(TOKENS, EXPERTS, generator=draw, dtype=torch.float64)


def expected(router: CosineRouter, hidden: torch.Tensor, given: torch.Tensor) -> list[torch.Tensor]:
    """Logits, and gradients of tokens, embeddings, projection and temperature, by torch's own operations."""
    hidden = hidden.clone().requires_grad_()
    weight, projection, temperature = (
        parameter.detach().clone().requires_grad_()
        for parameter in (router.weight, router.projection, router.temperature)
    )
    logits = F.normalize(F.linear(hidden, projection)) @ F.normalize(weight).t() / temperature
    return [logits.detach(), *torch.autograd.grad(logits, (hidden, weight, projection, temperature), given)]


@pytest.mark.parametrize("is_late", [False, True])
def test_it_is_the_formula_whenever_weights_are_owed(is_late: bool) -> None:
    router, tokens, given = drawn()
    hidden, queue = tokens.clone().requires_grad_(), WeightGradientQueue("router")
    with registering(queue):
        logits = router(hidden)
    if is_late:
        with deferring(queue):
            logits.backward(given)
        assert router.weight.grad is None and router.temperature.grad is None
        assert queue.run() == 2  # of the projection, and of embeddings and temperature
    else:
        logits.backward(given)
    found = [
        logits.detach(),
        hidden.grad,
        router.weight.grad,
        router.projection.grad,
        router.temperature.grad,
    ]
    for ours, theirs in zip(found, expected(router, tokens, given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_logits_are_cosines() -> None:
    """At most one over the temperature, whatever the length of a token."""
    router, tokens, _ = drawn()
    logits = router(tokens).detach()
    assert float(logits.abs().max()) <= 1 / 0.3 + 1e-12
    torch.testing.assert_close(router(100 * tokens).detach(), logits)
