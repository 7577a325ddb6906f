"""Losses of a router, whose gradients join those of its logits behind the gates: balance by sequences, and z.

Shapes: T tokens, X experts, K experts a token, B sequences, S tokens of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.executor.ops.expert.routing import HALF_DTYPES
from meshwright.specs.training.router_losses import RouterLosses


@dataclass
class RouterLoss:
    """Of one block's router on one device. ``tokens_per_step``: of all devices; ``total``: what was found in this iteration,
    a share of the step's loss."""

    losses: RouterLosses
    sequence_length: int
    tokens_per_step: int
    total: Tensor | None = None

    def attached(
        self, gates_TK: Tensor, logits_TX: Tensor, experts_TK: Tensor, is_sigmoid: bool, num_copies: float
    ) -> Tensor:
        """The gates, whose backward also runs that of the losses, of whole sequences. ``num_copies``: devices that have these
        very tokens, of which each has an equal share."""
        gates_TK = self.with_size(gates_TK, logits_TX, num_copies)
        if not self.losses.balance:
            return gates_TK
        shares_TX = shares_of(logits_TX, is_sigmoid)
        shares_BX = shares_TX.view(-1, self.sequence_length, shares_TX.shape[1]).sum(1)
        return self.with_balance(gates_TK, shares_BX, experts_TK, num_copies)

    def with_size(self, gates_TK: Tensor, logits_TX: Tensor, num_copies: float) -> Tensor:
        """The gates with the z-loss, where there is one."""
        return self._attached(gates_TK, self.losses.z, lambda: z_loss(_wide(logits_TX)), num_copies)

    def with_balance(
        self, gates_TK: Tensor, shares_BX: Tensor, experts_TK: Tensor, num_copies: float
    ) -> Tensor:
        """The gates with the loss that balances, where there is one. ``experts_TK``: of all tokens of the sequences."""

        def loss() -> Tensor:
            return balance_loss(shares_BX, experts_TK, self.sequence_length)

        return self._attached(gates_TK, self.losses.balance, loss, num_copies)

    def _attached(
        self, gates_TK: Tensor, coefficient: float, loss: Callable[[], Tensor], num_copies: float
    ) -> Tensor:
        if not coefficient or not torch.is_grad_enabled():  # nothing is learned, or it is computed once more
            return gates_TK
        share = coefficient * loss() / (self.tokens_per_step * num_copies)
        found = share.detach()
        self.total = found if self.total is None else self.total + found
        return _Attached.apply(gates_TK, share)  # type: ignore[no-untyped-call, no-any-return]


def shares_of(logits_TX: Tensor, is_sigmoid: bool) -> Tensor:
    """Every expert's share of a token's scores, [T, X]."""
    scores_TX = _wide(logits_TX).sigmoid() if is_sigmoid else _wide(logits_TX).softmax(1)
    return scores_TX / scores_TX.sum(1, keepdim=True)


def _wide(logits_TX: Tensor) -> Tensor:
    return logits_TX.to(torch.float32) if logits_TX.dtype in HALF_DTYPES else logits_TX


def z_loss(logits_TX: Tensor) -> Tensor:
    """Sum over tokens of log(sum exp(logits))^2."""
    return logits_TX.logsumexp(1).square().sum()


def balance_loss(shares_BX: Tensor, experts_TK: Tensor, sequence_length: int) -> Tensor:
    """Sum over tokens of the balance of their sequence, 1 where its experts are alike. Counts have no gradient.

    ``shares_BX``: summed over a sequence's tokens; over some of them, it is their term of the sum. ``experts_TK``: of all.
    """
    num_experts, per_token = shares_BX.shape[1], experts_TK.shape[1]
    chosen_TX = F.one_hot(experts_TK, num_experts).sum(1).to(shares_BX.dtype)
    counts_BX = chosen_TX.view(-1, sequence_length, num_experts).sum(1)
    return (counts_BX * shares_BX).sum() * num_experts / (per_token * sequence_length)


class _Attached(torch.autograd.Function):
    """A value beside a loss that is a term of the whole one."""

    @staticmethod
    def forward(ctx: Any, gates_TK: Tensor, loss: Tensor) -> Tensor:
        ctx.dtype = loss.dtype
        return gates_TK.view_as(gates_TK)

    @staticmethod
    def backward(ctx: Any, dgates_TK: Tensor) -> tuple[Tensor, Tensor]:
        return dgates_TK, torch.ones((), dtype=ctx.dtype, device=dgates_TK.device)
